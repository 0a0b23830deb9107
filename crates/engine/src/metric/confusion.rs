//! [`ConfusionCounts`]: counts the predicted classes of each class into a [`ConfusionMatrix`].

use super::classes::greatest;
use crate::error::EngineError;
use crate::loss::IGNORED;
use crate::loss::check_label;
use crate::predictions::Predictions;

/// Counts how often the targets of each class are predicted as each class. The predicted class is that of the greatest
/// logit, of equal ones the first. Targets that are [`IGNORED`], and those whose logits are all NaN, do not count.
///
/// The counts are sums as those of a [`Metric`](crate::Metric): whole numbers, so any order of adding them has the same
/// result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfusionCounts {
    classes: usize,
}

impl ConfusionCounts {
    /// The largest number of classes that are counted.
    pub const CLASSES_MAX: usize = 256;

    /// Creates the counts for targets of `classes` logits each; `None` for more than [`ConfusionCounts::CLASSES_MAX`].
    #[must_use]
    pub fn new(classes: usize) -> Option<Self> {
        (classes <= Self::CLASSES_MAX).then_some(Self { classes })
    }

    /// Returns the number of sums: one for each pair of classes.
    #[must_use]
    pub fn sums(&self) -> usize {
        self.classes * self.classes
    }

    /// Adds some samples to the sums, which are zero at first.
    ///
    /// # Errors
    /// When the outputs or targets are not those of the classes.
    pub fn add(&self, predictions: &Predictions<'_>, sums: &mut [f64]) -> Result<(), EngineError> {
        predictions.expect_outputs("confusion matrix", self.classes)?;
        for (sample, (outputs, targets)) in predictions.samples().enumerate() {
            for (row, &label) in outputs.chunks(self.classes).zip(targets) {
                if label == IGNORED {
                    continue;
                }
                check_label(sample, label, self.classes)?;
                if let Some(found) = greatest(row) {
                    sums[label as usize * self.classes + found] += 1.0;
                }
            }
        }
        Ok(())
    }

    /// Returns the matrix of sums over all samples.
    #[must_use]
    pub fn matrix(&self, sums: &[f64]) -> ConfusionMatrix {
        let rows = sums.chunks_exact(self.classes.max(1));
        let rows = rows.map(|row| row.iter().map(|count| *count as u64).collect());
        ConfusionMatrix(rows.collect())
    }
}

/// How often the targets of each class were predicted as each class: `rows()[true][predicted]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConfusionMatrix(Vec<Vec<u64>>);

impl ConfusionMatrix {
    /// Creates a matrix from its counts: a row for each true class, with an element for each predicted class.
    #[must_use]
    pub fn new(rows: Vec<Vec<u64>>) -> Self {
        Self(rows)
    }

    /// Returns the counts: a row for each true class, with an element for each predicted class.
    #[must_use]
    pub fn rows(&self) -> &[Vec<u64>] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sklearn.metrics.confusion_matrix([0, 1, 2, 2, 1], [0, 2, 2, 2, 1])`.
    #[test]
    fn targets_are_counted_by_their_predicted_class() {
        let counts = ConfusionCounts::new(3).unwrap();
        let row = |class: usize| (0..3).map(move |at| f32::from(u8::from(at == class)));
        let mut outputs: Vec<f32> = [0, 2, 2, 2, 1].into_iter().flat_map(row).collect();
        // A target that is ignored, one without a prediction, and one with equal logits.
        outputs.extend([[1.0, 0.0, 0.0], [f32::NAN; 3], [0.5; 3]].concat());
        let targets = [0, 1, 2, 2, 1, IGNORED, 1, 2];
        let mut sums = vec![0.0; counts.sums()];
        let predictions = Predictions::new(&outputs, &targets, 8).unwrap();
        counts.add(&predictions, &mut sums).unwrap();
        let expected = [vec![1, 0, 0], vec![0, 1, 1], vec![1, 0, 2]];
        assert_eq!(counts.matrix(&sums).rows(), expected);
    }

    #[test]
    fn other_classes_are_refused() {
        assert!(ConfusionCounts::new(257).is_none());
        let counts = ConfusionCounts::new(2).unwrap();
        let mut sums = vec![0.0; counts.sums()];
        let mut add = |outputs: &[f32], targets: &[u32]| {
            let predictions = Predictions::new(outputs, targets, 1).unwrap();
            counts.add(&predictions, &mut sums)
        };
        assert!(add(&[0.0; 3], &[0]).is_err());
        assert!(add(&[0.0; 2], &[2]).is_err());
    }
}
