//! [`BinaryCrossEntropy`], [`DiceLoss`] and [`SmoothL1`]: losses of values in masks and boxes.

use super::{Loss, LossOutput};
use crate::error::EngineError;
use crate::predictions::Predictions;

/// Returns `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + libm::exp(-x))
    } else {
        let power = libm::exp(x);
        power / (1.0 + power)
    }
}

/// Returns `-t ln(sigmoid(x)) - (1 - t) ln(1 - sigmoid(x))`.
pub(super) fn logistic_loss(x: f64, t: f64) -> f64 {
    x.max(0.0) - x * t + libm::log1p(libm::exp(-x.abs()))
}

/// Computes a loss sample by sample: `of_sample` gets the outputs, targets and gradients of one, and returns its loss.
fn each_sample(
    function: &str,
    predictions: &Predictions<'_>,
    of_sample: impl Fn(&[f32], &[u32], &mut [f32]) -> f64,
) -> Result<LossOutput, EngineError> {
    predictions.expect_outputs(function, 1)?;
    let mut total = LossOutput {
        loss_sum: 0.0,
        gradient: vec![0.0; predictions.outputs().len()],
    };
    let width = predictions.outputs_per_sample();
    for (sample, (outputs, targets)) in predictions.samples().enumerate() {
        let gradient = &mut total.gradient[sample * width..(sample + 1) * width];
        total.loss_sum += of_sample(outputs, targets, gradient);
    }
    Ok(total)
}

/// `-t ln(sigmoid(x)) - (1 - t) ln(1 - sigmoid(x))` of logits `x`; the mean over a sample's outputs. Targets are the bits
/// of `f32` values from 0 to 1. Computed in f64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BinaryCrossEntropy;

impl Loss for BinaryCrossEntropy {
    fn name(&self) -> String {
        "binary_cross_entropy".to_owned()
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        let of_sample = |outputs: &[f32], targets: &[u32], gradient: &mut [f32]| {
            let count = outputs.len() as f64;
            let mut sum = 0.0;
            for ((output, target), gradient) in outputs.iter().zip(targets).zip(gradient) {
                let (x, t) = (f64::from(*output), f64::from(Predictions::value(*target)));
                sum += logistic_loss(x, t);
                *gradient = ((sigmoid(x) - t) / count) as f32;
            }
            sum / count
        };
        each_sample("loss binary_cross_entropy", predictions, of_sample)
    }
}

/// `1 - (2 sum(p t) + 1) / (sum(p) + sum(t) + 1)` of each sample, where `p` is the sigmoid of a logit. Targets are the bits
/// of `f32` values from 0 to 1. Computed in f64. Source: Milletari, Navab, Ahmadi, "V-Net", 3DV 2016, section 3, without
/// the squares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiceLoss;

impl Loss for DiceLoss {
    fn name(&self) -> String {
        "dice".to_owned()
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        let of_sample = |outputs: &[f32], targets: &[u32], gradient: &mut [f32]| {
            let pairs = || {
                let targets = targets.iter().map(|t| f64::from(Predictions::value(*t)));
                outputs.iter().map(|x| sigmoid(f64::from(*x))).zip(targets)
            };
            let (mut both, mut all) = (0.0, 0.0);
            for (p, t) in pairs() {
                both += p * t;
                all += p + t;
            }
            let (over, under) = (2.0 * both + 1.0, all + 1.0);
            for ((p, t), gradient) in pairs().zip(gradient) {
                let slope = (over - 2.0 * t * under) / (under * under);
                *gradient = (slope * p * (1.0 - p)) as f32;
            }
            1.0 - over / under
        };
        each_sample("loss dice", predictions, of_sample)
    }
}

/// `e^2 / 2` for errors `e` below 1, otherwise `|e| - 1/2`; the mean over a sample's outputs. Targets are the bits of `f32`
/// values. Computed in f64. Source: Girshick, "Fast R-CNN", ICCV 2015, section 2.3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmoothL1;

impl Loss for SmoothL1 {
    fn name(&self) -> String {
        "smooth_l1".to_owned()
    }

    fn loss_and_gradient(&self, predictions: &Predictions<'_>) -> Result<LossOutput, EngineError> {
        let of_sample = |outputs: &[f32], targets: &[u32], gradient: &mut [f32]| {
            let count = outputs.len() as f64;
            let mut sum = 0.0;
            for ((output, target), gradient) in outputs.iter().zip(targets).zip(gradient) {
                let error = f64::from(*output) - f64::from(Predictions::value(*target));
                sum += if error.abs() < 1.0 {
                    0.5 * error * error
                } else {
                    error.abs() - 0.5
                };
                *gradient = (error.clamp(-1.0, 1.0) / count) as f32;
            }
            sum / count
        };
        each_sample("loss smooth_l1", predictions, of_sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::hashed;

    /// Compares losses with given ones, and gradients with differences of the loss.
    fn check(loss: &dyn Loss, outputs: &[f32], targets: &[f32], expected: &[f64]) {
        let targets: Vec<u32> = targets.iter().map(|t| t.to_bits()).collect();
        let of = |outputs: &[f32]| {
            let predictions = Predictions::new(outputs, &targets, expected.len()).unwrap();
            loss.checked(&predictions).unwrap()
        };
        let found = of(outputs);
        let sum: f64 = expected.iter().sum();
        assert!(
            (found.loss_sum - sum).abs() < 1e-6,
            "{} for {sum}",
            found.loss_sum
        );
        for (index, gradient) in found.gradient.iter().enumerate() {
            let at = |by: f32| {
                let mut moved = outputs.to_vec();
                moved[index] += by;
                of(&moved).loss_sum
            };
            let slope = (at(1e-3) - at(-1e-3)) / 2e-3;
            assert!(
                (slope - f64::from(*gradient)).abs() < 1e-3,
                "{slope} for {gradient}"
            );
        }
    }

    #[test]
    fn losses_follow_their_formulas_and_the_gradients_their_slopes() {
        // By hand: for example ln(1 + e^-0.5) and ln(1 + e^-1), divided by 2.
        let (outputs, targets) = ([0.5, -1.0, 2.0, 0.0], [1.0, 0.0, 0.25, 1.0]);
        check(
            &BinaryCrossEntropy,
            &outputs,
            &targets,
            &[0.393_669, 1.160_037_6],
        );
        check(&SmoothL1, &outputs, &targets, &[0.3125, 0.875]);
        let p = |x: f64| 1.0 / (1.0 + libm::exp(-x));
        let dice = |[a, b]: [f64; 2], [s, t]: [f64; 2]| {
            1.0 - (2.0 * (p(a) * s + p(b) * t) + 1.0) / (p(a) + p(b) + s + t + 1.0)
        };
        let expected = [dice([0.5, -1.0], [1.0, 0.0]), dice([2.0, 0.0], [0.25, 1.0])];
        check(&DiceLoss, &outputs, &targets, &expected);
    }

    #[test]
    fn extreme_logits_have_finite_losses() {
        let outputs = [1e4, -1e4];
        let targets = [0.0_f32, 1.0].map(f32::to_bits);
        let of = |loss: &dyn Loss, outputs: &[f32]| {
            let predictions = Predictions::new(outputs, &targets, outputs.len() / 2).unwrap();
            loss.checked(&predictions)
        };
        let found = of(&BinaryCrossEntropy, &outputs).unwrap();
        assert_eq!((found.loss_sum, found.gradient), (1e4, vec![0.5, -0.5]));
        assert!(of(&DiceLoss, &outputs).unwrap().loss_sum.is_finite());
        let wrong = of(&SmoothL1, &hashed(3, 4)).unwrap_err().to_string();
        assert!(wrong.contains("smooth_l1"), "{wrong}");
    }
}
