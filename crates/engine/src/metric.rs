//! [`Metric`]: a measure of a model's predictions in evaluations.

mod average_precision;
mod classes;
mod confusion;

use ronde_kernels::{Vectorised, vectorised};

use crate::error::EngineError;
use crate::loss::IGNORED;
use crate::loss::{check_label, counted, nearest};
use crate::predictions::Predictions;

pub use average_precision::MeanAveragePrecision;
pub use classes::{MacroF1, MeanAbsoluteError};
pub use confusion::{ConfusionCounts, ConfusionMatrix};

/// A measure of a model's predictions, computed from sums over samples: its value is displayed and stored with each
/// evaluation, and does not depend on the number of workers, because the sums of fixed batches are added in order.
///
/// ```
/// use ronde_engine::{EngineError, Metric, Predictions};
///
/// /// The mean absolute difference between outputs and targets.
/// struct MeanAbsoluteError;
///
/// impl Metric for MeanAbsoluteError {
///     fn name(&self) -> &str {
///         "mean_absolute_error"
///     }
///
///     fn is_lower_better(&self) -> bool {
///         true
///     }
///
///     fn add(&self, predictions: &Predictions<'_>, _: f64, sums: &mut [f64]) -> Result<(), EngineError> {
///         predictions.expect_outputs("mean_absolute_error", 1)?;
///         for (output, target) in predictions.outputs().iter().zip(predictions.targets()) {
///             sums[0] += f64::from((output - Predictions::value(*target)).abs());
///         }
///         sums[1] += predictions.outputs().len() as f64;
///         Ok(())
///     }
/// }
///
/// let mut sums = [0.0; 2];
/// let targets = [1.0_f32, 2.0].map(f32::to_bits);
/// MeanAbsoluteError.add(&Predictions::new(&[4.0, 1.5], &targets, 2)?, 0.0, &mut sums)?;
/// assert_eq!(MeanAbsoluteError.value(&sums), 1.75);
/// # Ok::<(), EngineError>(())
/// ```
pub trait Metric: Send + Sync {
    /// Returns the name in evaluations and events: lower-case letters, digits and underscores.
    fn name(&self) -> &str;

    /// Returns whether a lower value is better, as for an error; by default a higher one is.
    fn is_lower_better(&self) -> bool {
        false
    }

    /// Returns the number of sums; by default two, a sum and a count.
    fn sums(&self) -> usize {
        2
    }

    /// Adds some samples to the sums, which are zero at first. `loss_sum` is the sum of the losses of their counted targets.
    ///
    /// # Errors
    /// When the outputs or targets do not fit the metric.
    fn add(
        &self,
        predictions: &Predictions<'_>,
        loss_sum: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError>;

    /// Returns the value for the sums over all samples; by default the first divided by the second.
    fn value(&self, sums: &[f64]) -> f64 {
        sums[0] / sums[1]
    }
}

/// The fraction of targets among the `top` greatest logits, 0 to 1. Of equal logits the first ones count. Targets that
/// are [`IGNORED`] do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopAccuracy {
    classes: usize,
    top: u32,
    name: String,
}

impl TopAccuracy {
    /// Creates the metric for targets of `classes` logits each: `accuracy` for a `top` of 1, otherwise
    /// `accuracy_top5` and so on.
    #[must_use]
    pub fn new(classes: usize, top: u32) -> Self {
        let name = match top {
            1 => "accuracy".to_owned(),
            top => format!("accuracy_top{top}"),
        };
        Self { classes, top, name }
    }
}

impl Metric for TopAccuracy {
    fn name(&self) -> &str {
        &self.name
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        _: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        predictions.expect_outputs(&format!("metric {}", self.name), self.classes)?;
        for (sample, (outputs, targets)) in predictions.samples().enumerate() {
            for (row, &label) in outputs.chunks(self.classes).zip(targets) {
                if label == IGNORED {
                    continue;
                }
                check_label(sample, label, self.classes)?;
                let label = label as usize;
                let is_found =
                    !row[label].is_nan() && vectorised(RankOfLabel { row, label }) < self.top;
                sums[0] += f64::from(u8::from(is_found));
                sums[1] += 1.0;
            }
        }
        Ok(())
    }
}

/// The overlap of predicted and true masks: the number of values in both, divided by the number in either, over all
/// samples. An output above 0 predicts a value above one half. Targets are the bits of `f32` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntersectionOverUnion;

impl Metric for IntersectionOverUnion {
    fn name(&self) -> &str {
        "iou"
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        _: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        predictions.expect_outputs("metric iou", 1)?;
        for (output, target) in predictions.outputs().iter().zip(predictions.targets()) {
            let (found, expected) = (*output > 0.0, Predictions::value(*target) > 0.5);
            sums[0] += f64::from(u8::from(found && expected));
            sums[1] += f64::from(u8::from(found || expected));
        }
        Ok(())
    }
}

/// The sum of the smallest outputs of all samples: with the squared distances from all centres as outputs, the inertia of
/// k-means. Targets are not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inertia;

impl Metric for Inertia {
    fn name(&self) -> &str {
        "inertia"
    }

    fn is_lower_better(&self) -> bool {
        true
    }

    fn sums(&self) -> usize {
        1
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        _: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        for (outputs, _) in predictions.samples() {
            sums[0] += nearest(outputs).map_or(0.0, |nearest| f64::from(outputs[nearest]));
        }
        Ok(())
    }

    fn value(&self, sums: &[f64]) -> f64 {
        sums[0]
    }
}

/// `exp` of the mean loss over all targets that are not [`IGNORED`], such as the tokens of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Perplexity;

impl Metric for Perplexity {
    fn name(&self) -> &str {
        "perplexity"
    }

    fn is_lower_better(&self) -> bool {
        true
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        loss_sum: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        sums[0] += loss_sum;
        sums[1] += counted(predictions.targets()) as f64;
        Ok(())
    }

    fn value(&self, sums: &[f64]) -> f64 {
        libm::exp(sums[0] / sums[1])
    }
}

/// Counts the logits that are ranked before a label's: greater ones, and equal ones with a lower index.
struct RankOfLabel<'a> {
    row: &'a [f32],
    label: usize,
}

impl Vectorised for RankOfLabel<'_> {
    type Output = u32;

    #[inline(always)]
    fn run(self) -> u32 {
        let value = self.row[self.label];
        let (before, after) = self.row.split_at(self.label);
        let not_less: u32 = before.iter().map(|x| u32::from(*x >= value)).sum();
        let greater: u32 = after.iter().map(|x| u32::from(*x > value)).sum();
        not_less + greater
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metric: &dyn Metric, outputs: &[f32], targets: &[u32], samples: usize) -> f64 {
        let mut sums = vec![0.0; metric.sums()];
        let predictions = Predictions::new(outputs, targets, samples).unwrap();
        metric.add(&predictions, 0.5, &mut sums).unwrap();
        metric.value(&sums)
    }

    #[test]
    fn the_greatest_and_the_five_greatest_count() {
        let logits = [6.0, 5.0, 4.0, 3.0, 2.0, 2.0, 0.0];
        let top = |top, label| value(&TopAccuracy::new(7, top), &logits, &[label], 1);
        assert_eq!(
            [0, 4, 5, 6].map(|label| top(5, label)),
            [1.0, 1.0, 0.0, 0.0]
        );
        assert_eq!([0, 1].map(|label| top(1, label)), [1.0, 0.0]);
        assert_eq!(TopAccuracy::new(7, 5).name(), "accuracy_top5");
    }

    #[test]
    fn the_first_of_equals_counts_and_nan_and_the_ignored_do_not() {
        let accuracy = TopAccuracy::new(2, 1);
        assert_eq!(value(&accuracy, &[1.0; 4], &[0, 1], 2), 0.5);
        assert_eq!(value(&accuracy, &[f32::NAN; 2], &[0], 1), 0.0);
        let targets = [1, IGNORED];
        assert_eq!(value(&accuracy, &[0.0, 1.0, 1.0, 0.0], &targets, 1), 1.0);
    }

    #[test]
    fn perplexity_is_the_exponential_of_the_mean_loss() {
        assert_eq!(value(&Perplexity, &[], &[1, 0], 2), libm::exp(0.25));
        let texts = [4, IGNORED, 7, 1, IGNORED, IGNORED, IGNORED, 2];
        assert_eq!(value(&Perplexity, &[], &texts, 2), libm::exp(0.125));
    }

    #[test]
    fn other_numbers_of_outputs_and_labels_out_of_range_are_refused() {
        let add = |outputs: &[f32], targets: &[u32]| {
            let predictions = Predictions::new(outputs, targets, targets.len()).unwrap();
            TopAccuracy::new(3, 1).add(&predictions, 0.0, &mut [0.0; 2])
        };
        let error = add(&[0.0; 4], &[0, 0]).unwrap_err();
        assert!(
            error.to_string().starts_with("metric accuracy: "),
            "{error}"
        );
        let error = add(&[0.0; 3], &[3]).unwrap_err();
        assert!(matches!(error, EngineError::Label { label: 3, .. }));
    }

    #[test]
    fn inertia_is_the_sum_of_the_smallest_distances() {
        assert_eq!(value(&Inertia, &[3.0, 1.0, 0.5, 2.0], &[9, 9], 2), 1.5);
        assert_eq!(value(&Inertia, &[], &[], 0), 0.0);
    }

    #[test]
    fn overlap_counts_values_in_both_and_in_either() {
        let targets = [1.0_f32, 0.0, 1.0, 0.0].map(f32::to_bits);
        let predictions = Predictions::new(&[2.0, 0.5, -1.0, 0.0], &targets, 2).unwrap();
        let mut sums = [0.0; 2];
        IntersectionOverUnion
            .add(&predictions, 0.0, &mut sums)
            .unwrap();
        assert_eq!(sums, [1.0, 3.0]);
    }
}
