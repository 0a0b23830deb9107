//! [`SoftmaxCrossEntropy`]: the loss of classification, on the host, without the system's `libm`.

use ronde_kernels::softmax_cross_entropy;

use crate::EngineError;

/// What one shard contributes: sums over its samples, never divided here.
#[derive(Debug, Clone, PartialEq)]
pub struct LossOutput {
    /// Sum of the samples' losses in nats.
    pub loss_sum: f64,
    /// Samples whose greatest logit is that of their label; the first of equals counts.
    pub correct: u64,
    /// Gradient of `loss_sum` by the logits.
    pub gradient: Vec<f32>,
}

/// `-log(softmax(logits)[label])`, summed over samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SoftmaxCrossEntropy;

impl SoftmaxCrossEntropy {
    /// The loss of `labels.len()` samples with `classes` logits each, row by row, and its gradient.
    ///
    /// Computed in f64, samples in order. Logits that are not finite give a NaN loss. Cost: one
    /// exponential per logit.
    ///
    /// # Errors
    /// When the counts do not fit or a label is not below `classes`.
    pub fn loss(logits: &[f32], classes: usize, labels: &[u32]) -> Result<LossOutput, EngineError> {
        if classes == 0 || labels.len().checked_mul(classes) != Some(logits.len()) {
            return Err(EngineError::LogitCount {
                logits: logits.len(),
                labels: labels.len(),
                classes,
            });
        }
        let mut output = LossOutput {
            loss_sum: 0.0,
            correct: 0,
            gradient: Vec::with_capacity(logits.len()),
        };
        for (sample, (row, &label)) in logits.chunks_exact(classes).zip(labels).enumerate() {
            if label as usize >= classes {
                return Err(EngineError::Label {
                    sample,
                    label,
                    classes,
                });
            }
            output.add(row, label as usize);
        }
        Ok(output)
    }
}

impl LossOutput {
    fn add(&mut self, row: &[f32], label: usize) {
        let at = self.gradient.len();
        self.gradient.resize(at + row.len(), 0.0);
        let found = softmax_cross_entropy(row, label, &mut self.gradient[at..]);
        self.loss_sum += found.loss;
        self.correct += u64::from(found.greatest == label);
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
    fn what_does_not_fit_is_refused_and_nothing_is_zero() {
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
