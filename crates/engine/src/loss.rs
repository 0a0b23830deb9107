//! [`Loss`]: loss functions on a model's outputs, on the host, without the system's `libm`.

use std::ops::Range;

use ronde_kernels::{Vectorised, softmax_cross_entropy, vectorised};

use crate::EngineError;
use crate::ops::memory;

/// The target that is not counted, as for positions after the end of a text.
pub const IGNORED: u32 = u32::MAX;

/// The contribution of one shard: sums over its samples, not divided by their number.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LossOutput {
    /// The sum of the samples' losses; in nats for classes.
    pub loss_sum: f64,
    /// The number of targets with the greatest logit; the first of equals counts. 0 for values.
    pub correct: u64,
    /// The number of targets among the five greatest logits. 0 for values.
    pub correct_top5: u64,
    /// The number of targets that are not [`IGNORED`].
    pub counted: u64,
    /// The gradient of `loss_sum` by the outputs.
    pub gradient: Vec<f32>,
}

/// The loss function: for class numbers or for values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// `-log(softmax(logits)[target])`; the mean over a sample's targets that are not [`IGNORED`].
    CrossEntropy {
        /// The number of logits of one target.
        classes: usize,
    },
    /// `(output - target)^2`; the mean over a sample's outputs. Targets are the bits of `f32`
    /// values.
    SquaredError {
        /// The number of outputs of a sample.
        outputs: usize,
    },
}

impl Loss {
    /// Returns the loss of `samples` samples with equally many targets each, row by row, and its
    /// gradient.
    ///
    /// Computed in f64, targets in order. Outputs that are not finite give a NaN loss. Cost: one
    /// exponential per logit.
    ///
    /// # Errors
    /// When the lengths do not match or a target is not a class number.
    pub fn of(
        &self,
        outputs: &[f32],
        targets: &[u32],
        samples: usize,
    ) -> Result<LossOutput, EngineError> {
        let (Self::CrossEntropy { classes: row } | Self::SquaredError { outputs: row }) = *self;
        let logits = match self {
            Self::CrossEntropy { .. } => targets.len().checked_mul(row),
            Self::SquaredError { .. } => Some(targets.len()),
        };
        let fits = row > 0 && logits == Some(outputs.len());
        let each = targets.len().checked_div(samples).unwrap_or(0);
        if !fits || each * samples != targets.len() {
            return Err(EngineError::LogitCount {
                logits: outputs.len(),
                labels: targets.len(),
                classes: row,
            });
        }
        let mut total = LossOutput {
            gradient: memory::take(outputs.len()),
            ..LossOutput::default()
        };
        for sample in 0..samples {
            let targets = &targets[sample * each..(sample + 1) * each];
            match self {
                Self::CrossEntropy { classes } => {
                    let width = each * classes;
                    let rows = sample * width..(sample + 1) * width;
                    total.add_classes(outputs, rows, *classes, targets, sample)?;
                }
                Self::SquaredError { .. } => {
                    total.add_values(outputs, sample * each..(sample + 1) * each, targets);
                }
            }
        }
        Ok(total)
    }
}

/// `-log(softmax(logits)[label])`, summed over samples of one label each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftmaxCrossEntropy;

impl SoftmaxCrossEntropy {
    /// Returns [`Loss::CrossEntropy`] of `labels.len()` samples with `classes` logits each.
    ///
    /// # Errors
    /// When the lengths do not match or a label is not below `classes`.
    pub fn loss(logits: &[f32], classes: usize, labels: &[u32]) -> Result<LossOutput, EngineError> {
        Loss::CrossEntropy { classes }.of(logits, labels, labels.len())
    }
}

impl LossOutput {
    /// Adds a sample whose logits and gradients are the elements `rows`.
    fn add_classes(
        &mut self,
        outputs: &[f32],
        rows: Range<usize>,
        classes: usize,
        targets: &[u32],
        sample: usize,
    ) -> Result<(), EngineError> {
        let counted = targets.iter().filter(|&&target| target != IGNORED).count();
        let mut sum = 0.0;
        let share = 1.0 / counted.max(1) as f32;
        for (place, &label) in targets.iter().enumerate() {
            let start = rows.start + place * classes;
            let (row, at) = (&outputs[start..start + classes], start..start + classes);
            if label == IGNORED {
                self.gradient[at].fill(0.0);
            } else if (label as usize) < classes {
                sum += self.add_row(row, at.clone(), label as usize);
                if counted > 1 {
                    vectorised(ScaleByShare(&mut self.gradient[at], share));
                }
            } else {
                return Err(EngineError::Label {
                    sample,
                    label,
                    classes,
                });
            }
        }
        if counted > 1 {
            sum /= counted as f64;
        }
        self.loss_sum += sum;
        self.counted += counted as u64;
        Ok(())
    }

    fn add_row(&mut self, row: &[f32], at: Range<usize>, label: usize) -> f64 {
        let above = vectorised(RankOfLabel { row, label });
        self.correct_top5 += u64::from(above < 5);
        let found = softmax_cross_entropy(row, label, &mut self.gradient[at]);
        self.correct += u64::from(found.greatest == label);
        found.loss
    }

    fn add_values(&mut self, outputs: &[f32], at: Range<usize>, targets: &[u32]) {
        let (outputs, count) = (&outputs[at.clone()], at.len() as f64);
        let mut sum = 0.0;
        let elements = outputs.iter().zip(targets).zip(&mut self.gradient[at]);
        for ((output, target), gradient) in elements {
            let error = f64::from(*output) - f64::from(f32::from_bits(*target));
            sum += error * error;
            *gradient = (2.0 * error / count) as f32;
        }
        self.loss_sum += sum / count;
        self.counted += outputs.len() as u64;
    }
}

/// Multiplies a gradient by the weight of one of several targets.
struct ScaleByShare<'a>(&'a mut [f32], f32);

impl Vectorised for ScaleByShare<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        self.0.iter_mut().for_each(|value| *value *= self.1);
    }
}

/// Counts the logits that are ranked before a label's: greater ones, and equal ones with a lower
/// index.
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

    #[test]
    fn values_by_hand() {
        let output = SoftmaxCrossEntropy::loss(&[0.0, 0.0, 1.0, 3.0], 2, &[1, 0]).unwrap();
        let second = 2.0 + (1.0 + (-2.0_f64).exp()).ln();
        assert!((output.loss_sum - (2.0_f64.ln() + second)).abs() < 1e-12);
        assert_eq!(output.correct, 0);
        let p = (1.0 / (1.0 + 2.0_f64.exp())) as f32;
        let expected = [0.5, -0.5, p - 1.0, 1.0 - p];
        for (got, expected) in output.gradient.iter().zip(expected) {
            assert!((got - expected).abs() < 1e-6, "{got} for {expected}");
        }
    }

    #[test]
    fn great_logits_do_not_overflow_and_nan_shows() {
        let output = SoftmaxCrossEntropy::loss(&[1e30, -1e30, 0.0], 3, &[0]).unwrap();
        assert_eq!((output.loss_sum, output.correct), (0.0, 1));
        assert_eq!(output.gradient, [0.0; 3]);
        let output = SoftmaxCrossEntropy::loss(&[f32::NAN, 0.0], 2, &[1]).unwrap();
        assert!(output.loss_sum.is_nan());
    }

    #[test]
    fn the_gradient_is_the_slope() {
        let logits = [0.3, -1.2, 0.7, 2.0, 0.1, -0.4];
        let labels = [2, 1];
        let at = |logits: &[f32]| SoftmaxCrossEntropy::loss(logits, 3, &labels).unwrap();
        let gradient = at(&logits).gradient;
        for i in 0..logits.len() {
            let shifted = |by: f32| {
                let mut logits = logits;
                logits[i] += by;
                at(&logits).loss_sum
            };
            let slope = (shifted(1e-3) - shifted(-1e-3)) / 2e-3;
            assert!((slope - f64::from(gradient[i])).abs() < 1e-4);
        }
    }

    #[test]
    fn a_sample_of_several_targets_is_their_mean_without_the_ignored() {
        let logits = [0.3, -1.2, 0.7, 2.0, 0.1, -0.4, 1.0, 1.0, 1.0];
        let loss = Loss::CrossEntropy { classes: 3 };
        let one = |at: usize, label| {
            SoftmaxCrossEntropy::loss(&logits[3 * at..3 * at + 3], 3, &[label]).unwrap()
        };
        let (a, c) = (one(0, 2), one(2, 1));
        let all = loss.of(&logits, &[2, IGNORED, 1], 1).unwrap();
        assert_eq!(all.loss_sum, (a.loss_sum + c.loss_sum) / 2.0);
        assert_eq!((all.counted, all.correct, all.correct_top5), (2, 1, 2));
        let half: Vec<f32> = a.gradient.iter().map(|g| g * 0.5).collect();
        assert_eq!(all.gradient[..3], half);
        assert_eq!(all.gradient[3..6], [0.0; 3]);
        let nothing = loss.of(&logits[..3], &[IGNORED], 1).unwrap();
        assert_eq!((nothing.loss_sum, nothing.counted), (0.0, 0));
        assert!(loss.of(&logits, &[0, 1, 2], 2).is_err());
    }

    #[test]
    fn the_five_greatest_count() {
        let logits = [6.0, 5.0, 4.0, 3.0, 2.0, 2.0, 0.0];
        let top5 = |label| {
            SoftmaxCrossEntropy::loss(&logits, 7, &[label])
                .unwrap()
                .correct_top5
        };
        assert_eq!([0, 4, 5, 6].map(top5), [1, 1, 0, 0]);
    }

    #[test]
    fn squared_errors_by_hand() {
        let targets = [1.0_f32, 0.0].map(f32::to_bits);
        let output = Loss::SquaredError { outputs: 1 }
            .of(&[3.0, -1.0], &targets, 2)
            .unwrap();
        assert_eq!((output.loss_sum, output.counted), (5.0, 2));
        assert_eq!(output.gradient, [4.0, -2.0]);
    }

    #[test]
    fn wrong_lengths_are_refused_and_no_samples_give_zero() {
        assert!(matches!(
            SoftmaxCrossEntropy::loss(&[0.0; 4], 2, &[0, 2]),
            Err(EngineError::Label {
                sample: 1,
                label: 2,
                classes: 2
            })
        ));
        for (logits, classes, labels) in [(3, 2, 1), (4, 2, 1), (0, 0, 0)] {
            let result = SoftmaxCrossEntropy::loss(&vec![0.0; logits], classes, &vec![0; labels]);
            assert!(matches!(result, Err(EngineError::LogitCount { .. })));
        }
        let nothing = SoftmaxCrossEntropy::loss(&[], 2, &[]).unwrap();
        assert_eq!((nothing.loss_sum, nothing.gradient.len()), (0.0, 0));
    }
}
