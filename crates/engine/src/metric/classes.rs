//! [`MacroF1`] for classes, and [`MeanAbsoluteError`] for values.

use super::Metric;
use crate::error::EngineError;
use crate::loss::IGNORED;
use crate::loss::check_label;
use crate::predictions::Predictions;

/// The F1 score of each class, `2 hits / (predicted + true)`, averaged over the classes that occur among the targets or the
/// predictions; NaN if none does. The predicted class is that of the greatest logit, of equal ones the first. Targets that
/// are [`IGNORED`] do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MacroF1 {
    /// The number of classes.
    pub classes: usize,
}

impl Metric for MacroF1 {
    fn name(&self) -> &str {
        "f1"
    }

    /// For each class: hits, and predicted and true ones together.
    fn sums(&self) -> usize {
        2 * self.classes
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        _: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        predictions.expect_outputs("metric f1", self.classes)?;
        for (sample, (outputs, targets)) in predictions.samples().enumerate() {
            for (row, &label) in outputs.chunks(self.classes).zip(targets) {
                if label == IGNORED {
                    continue;
                }
                check_label(sample, label, self.classes)?;
                let label = label as usize;
                sums[2 * label + 1] += 1.0;
                let Some(found) = greatest(row) else { continue };
                sums[2 * found + 1] += 1.0;
                if found == label {
                    sums[2 * label] += 1.0;
                }
            }
        }
        Ok(())
    }

    fn value(&self, sums: &[f64]) -> f64 {
        let known = sums.chunks_exact(2).filter(|class| class[1] > 0.0);
        let (sum, count) = known.fold((0.0, 0.0), |(sum, count), class| {
            (sum + 2.0 * class[0] / class[1], count + 1.0)
        });
        sum / count
    }
}

/// The mean absolute difference between outputs and targets. Targets are the bits of `f32` values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeanAbsoluteError;

impl Metric for MeanAbsoluteError {
    fn name(&self) -> &str {
        "mean_absolute_error"
    }

    fn is_lower_better(&self) -> bool {
        true
    }

    fn add(
        &self,
        predictions: &Predictions<'_>,
        _: f64,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        predictions.expect_outputs("metric mean_absolute_error", 1)?;
        for (output, target) in predictions.outputs().iter().zip(predictions.targets()) {
            sums[0] += (f64::from(*output) - f64::from(Predictions::value(*target))).abs();
        }
        sums[1] += predictions.outputs().len() as f64;
        Ok(())
    }
}

/// Returns the index of the greatest number, of equal ones the first; `None` if all are NaN.
pub(super) fn greatest(row: &[f32]) -> Option<usize> {
    let numbers = (0..row.len()).filter(|index| !row[*index].is_nan());
    numbers.reduce(|best, index| if row[index] > row[best] { index } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(metric: &dyn Metric, outputs: &[f32], targets: &[u32], samples: usize) -> f64 {
        let mut sums = vec![0.0; metric.sums()];
        let predictions = Predictions::new(outputs, targets, samples).unwrap();
        metric.add(&predictions, 0.0, &mut sums).unwrap();
        metric.value(&sums)
    }

    /// `sklearn.metrics.f1_score([0, 1, 2, 2, 1], [0, 2, 2, 2, 1], average="macro")` is 0.8222; class 3 does not occur.
    #[test]
    fn f1_is_the_mean_over_the_classes_that_occur() {
        let f1 = MacroF1 { classes: 4 };
        let row = |class: usize| (0..4).map(move |at| f32::from(u8::from(at == class)));
        let outputs: Vec<f32> = [0, 2, 2, 2, 1].into_iter().flat_map(row).collect();
        let found = value(&f1, &outputs, &[0, 1, 2, 2, 1], 5);
        assert!((found - 0.822_222_222_222_222_2).abs() < 1e-12, "{found}");
        assert!(value(&f1, &[], &[], 0).is_nan());
        let ignored = value(&f1, &outputs, &[0, IGNORED, IGNORED, IGNORED, IGNORED], 5);
        assert_eq!(ignored, 1.0);
        // An output of NaNs is not a prediction.
        assert_eq!(value(&f1, &[f32::NAN; 4], &[1], 1), 0.0);
    }

    #[test]
    fn absolute_errors_are_averaged_over_all_values() {
        let targets = [1.0_f32, -2.0, 0.5, 0.0].map(f32::to_bits);
        let found = value(&MeanAbsoluteError, &[2.0, -2.0, 0.0, 0.5], &targets, 2);
        assert_eq!(found, 0.5);
    }
}
