//! [`ModelCopies`]: copies of the weights and buffers of a model beside those that are trained: their moving average, and
//! those of the best model.

use std::sync::Arc;

use ronde_core::Step;

use crate::config::TrainSection;

/// The copies that a run keeps. They are part of its state: in checkpoints, and copied to workers that join.
#[derive(Debug, Default)]
pub(crate) struct ModelCopies {
    /// The moving average, with its decay.
    average: Option<(f64, Arc<Vec<f32>>)>,
    /// The best model before the last step. The best model may also be the current one, which is copied only before it
    /// changes: then this vector depends on the applied steps alone, also while some members have evaluated the current model
    /// and others have not.
    best: Option<Arc<Vec<f32>>>,
}

impl ModelCopies {
    /// Creates the copies of a run with the initial weights and buffers `values`.
    pub(crate) fn new(section: &TrainSection, values: &[f32]) -> Self {
        Self {
            average: section
                .average_decay
                .map(|decay| (decay, Arc::new(values.to_vec()))),
            best: section
                .keep_best
                .as_ref()
                .map(|_| Arc::new(values.to_vec())),
        }
    }

    /// Returns the names in checkpoints of the copies that a run keeps.
    pub(crate) fn names(section: &TrainSection) -> Vec<&'static str> {
        let average = section.average_decay.map(|_| "average");
        let best = section.keep_best.as_ref().map(|_| "best");
        average.into_iter().chain(best).collect()
    }

    /// Returns the copies, in the order of [`ModelCopies::names`].
    pub(crate) fn vectors(&self) -> impl Iterator<Item = &[f32]> {
        let average = self.average.as_ref().map(|(_, average)| average.as_slice());
        let best = self.best.as_ref().map(|best| best.as_slice());
        average.into_iter().chain(best)
    }

    /// Returns the same copies, mutable.
    pub(crate) fn vectors_mut(&mut self) -> impl Iterator<Item = &mut [f32]> {
        let average = self.average.as_mut().map(|(_, average)| average);
        let copies = average.into_iter().chain(&mut self.best);
        copies.map(|copy| Arc::make_mut(copy).as_mut_slice())
    }

    /// Returns the moving average, if the run has one. The model can share it while it is evaluated.
    pub(crate) fn average_mut(&mut self) -> Option<&mut Arc<Vec<f32>>> {
        self.average.as_mut().map(|(_, average)| average)
    }

    /// Returns the best model before the last step, if the run keeps it.
    pub(crate) fn best_mut(&mut self) -> Option<&mut Arc<Vec<f32>>> {
        self.best.as_mut()
    }

    /// Adds the values after a step to the moving average; the first ones are its initial value. Each element is computed
    /// alone, so the bits do not depend on the workers.
    pub(crate) fn update_average(&mut self, step: Step, values: &[f32]) {
        let Some((decay, average)) = &mut self.average else {
            return;
        };
        let average = Arc::make_mut(average);
        if step == Step(0) {
            average.copy_from_slice(values);
            return;
        }
        let share = (1.0 - *decay) as f32;
        for (average, value) in average.iter_mut().zip(values) {
            *average += share * (value - *average);
        }
    }

    /// Copies the evaluated model, the average if there is one, as the best one.
    pub(crate) fn keep_best(&mut self, values: &[f32]) {
        let evaluated = self.average.as_ref().map_or(values, |(_, average)| average);
        if let Some(best) = &mut self.best {
            Arc::make_mut(best).copy_from_slice(evaluated);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_follows_the_values_and_starts_with_those_of_the_first_step() {
        let section = TrainSection {
            average_decay: Some(0.75),
            keep_best: Some("loss".to_owned()),
            ..TrainSection::default()
        };
        let mut copies = ModelCopies::new(&section, &[9.0, 9.0]);
        copies.update_average(Step(0), &[1.0, 2.0]);
        copies.update_average(Step(1), &[3.0, 2.0]);
        assert_eq!(**copies.average_mut().unwrap(), [1.5, 2.0]);
        copies.keep_best(&[3.0, 2.0]);
        assert_eq!(
            **copies.best_mut().unwrap(),
            [1.5, 2.0],
            "the model that is evaluated"
        );
        assert_eq!(ModelCopies::names(&section), ["average", "best"]);
        assert_eq!(copies.vectors().count(), 2);
        let mut none = ModelCopies::new(&TrainSection::default(), &[1.0]);
        none.update_average(Step(0), &[2.0]);
        assert_eq!(none.vectors_mut().count(), 0);
    }
}
