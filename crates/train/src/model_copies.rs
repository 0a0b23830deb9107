//! [`ModelCopies`]: copies of the weights and buffers of a model beside those that are trained: their moving average, and
//! those of the best model.
//!
//! The copy of the best model changes only when the next step is applied; until then, the best model is the current one. So an
//! evaluation that a loss has interrupted can be repeated.

use ronde_core::Step;
use ronde_parallel::remap;
use ronde_protocol::holdings::HeldRanges;

use crate::config::TrainSection;

/// The copies that a run keeps. They are part of its state: in checkpoints, and copied to workers that join. A rank has them of
/// the elements that it holds, one held range after the other.
#[derive(Debug, Default)]
pub(crate) struct ModelCopies {
    /// The moving average, with its decay.
    average: Option<(f64, Vec<f32>)>,
    /// The best model before the last step. The best model may also be the current one, which is copied only before it
    /// changes or is saved: then this vector depends on the applied steps alone, also while some members have evaluated the
    /// current model and others have not.
    best: Option<Vec<f32>>,
}

impl ModelCopies {
    /// Creates the copies of a run with its initial weights and buffers.
    pub(crate) fn new<'a>(
        section: &TrainSection,
        held: impl Iterator<Item = &'a [f32]> + Clone,
    ) -> Self {
        let values = || held.clone().flatten().copied().collect();
        Self {
            average: section.average_decay.map(|decay| (decay, values())),
            best: section.keep_best.as_ref().map(|_| values()),
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
        let best = self.best.as_deref();
        average.into_iter().chain(best)
    }

    /// Returns the same copies, mutable.
    pub(crate) fn vectors_mut(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        let average = self.average.as_mut().map(|(_, average)| average);
        average.into_iter().chain(&mut self.best)
    }

    /// Keeps the values of other elements from now on; those that were not held are zeros.
    pub(crate) fn hold(&mut self, from: &HeldRanges, to: &HeldRanges) {
        if from != to {
            for values in self.vectors_mut() {
                remap(values, from, to);
            }
        }
    }

    /// Returns the moving average, if the run has one.
    pub(crate) fn average_mut(&mut self) -> Option<&mut [f32]> {
        let average = self.average.as_mut();
        average.map(|(_, average)| average.as_mut_slice())
    }

    /// Returns the best model before the last step, if the run keeps it.
    pub(crate) fn best_mut(&mut self) -> Option<&mut [f32]> {
        self.best.as_deref_mut()
    }

    /// Adds the values after a step to the moving average; the first ones are its initial value. Each element is computed
    /// alone, so the bits do not depend on the workers.
    pub(crate) fn update_average<'a>(&mut self, step: Step, held: impl Iterator<Item = &'a [f32]>) {
        let Some((decay, average)) = &mut self.average else {
            return;
        };
        let both = average.iter_mut().zip(held.flatten());
        if step == Step(0) {
            both.for_each(|(average, value)| *average = *value);
            return;
        }
        let share = (1.0 - *decay) as f32;
        both.for_each(|(average, value)| *average += share * (value - *average));
    }

    /// Copies the evaluated model, the average if there is one, as the best one.
    pub(crate) fn keep_best<'a>(&mut self, held: impl Iterator<Item = &'a [f32]>) {
        let Some(best) = &mut self.best else { return };
        match &self.average {
            Some((_, average)) => best.copy_from_slice(average),
            None => {
                best.iter_mut()
                    .zip(held.flatten())
                    .for_each(|(best, value)| *best = *value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(values: &[f32]) -> impl Iterator<Item = &[f32]> + Clone {
        std::iter::once(values)
    }

    #[test]
    fn the_average_follows_the_values_and_starts_with_those_of_the_first_step() {
        let section = TrainSection {
            average_decay: Some(0.75),
            keep_best: Some("loss".to_owned()),
            ..TrainSection::default()
        };
        let mut copies = ModelCopies::new(&section, once(&[9.0, 9.0]));
        copies.update_average(Step(0), once(&[1.0, 2.0]));
        copies.update_average(Step(1), once(&[3.0, 2.0]));
        assert_eq!(*copies.average_mut().unwrap(), [1.5, 2.0]);
        copies.keep_best(once(&[3.0, 2.0]));
        assert_eq!(
            *copies.best_mut().unwrap(),
            [1.5, 2.0],
            "the model that is evaluated"
        );
        assert_eq!(ModelCopies::names(&section), ["average", "best"]);
        assert_eq!(copies.vectors().count(), 2);
        let mut none = ModelCopies::new(&TrainSection::default(), once(&[1.0]));
        none.update_average(Step(0), once(&[2.0]));
        assert_eq!(none.vectors_mut().count(), 0);
    }
}
