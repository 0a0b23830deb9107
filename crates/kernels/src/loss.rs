//! Softmax and cross-entropy of rows of logits, with the gradient.

use crate::exponential::exp;
use crate::simd::{SimdKernel, SimdVector, dispatch};

const LANES: usize = 16;

/// The loss of one row, and the class with the largest logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowLoss {
    /// `-log(softmax(logits)[label])` in nats.
    pub loss: f64,
    /// The first class with the largest logit.
    pub greatest: usize,
}

/// Computes the loss of one row of logits in f64, and its gradient: `softmax(logits)`, minus 1 at the label. The loss
/// is NaN if a logit is not finite. Cost: one vectorised exponential per logit.
///
/// # Panics
/// If `label` is not a class, or the lengths of `gradient` and `logits` differ.
pub fn softmax_cross_entropy(logits: &[f32], label: usize, gradient: &mut [f32]) -> RowLoss {
    assert!(
        label < logits.len() && gradient.len() == logits.len(),
        "label {label} and {} gradients of {} logits",
        gradient.len(),
        logits.len()
    );
    dispatch(LogitRow {
        logits,
        label,
        gradient,
    })
}

/// Returns the greatest of some logits; -infinity if there are none.
#[must_use]
pub fn greatest_logit(logits: &[f32]) -> f32 {
    logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b))
}

/// Replaces logits by the exponentials of their differences from the greatest logit of their row, and returns the sum in f64. NaN
/// gives NaN. Cost: one vectorised exponential per logit.
pub fn exponentials(logits: &mut [f32], maximum: f32) -> f64 {
    dispatch(Exponentials {
        logits,
        maximum: f64::from(maximum),
    })
}

struct Exponentials<'a> {
    logits: &'a mut [f32],
    maximum: f64,
}

impl SimdKernel for Exponentials<'_> {
    type Output = f64;

    #[inline(always)]
    fn run<V: SimdVector>(self) -> f64 {
        let mut lanes = [0.0; LANES];
        for logits in self.logits.chunks_mut(LANES) {
            for (lane, x) in logits.iter_mut().enumerate() {
                let found = exp(f64::from(*x) - self.maximum);
                lanes[lane] += found;
                *x = found as f32;
            }
        }
        lanes.iter().sum()
    }
}

/// Multiplies values by a factor in f64.
pub fn scale_in_f64(values: &mut [f32], factor: f64) {
    dispatch(ScaledInF64 { values, factor });
}

struct ScaledInF64<'a> {
    values: &'a mut [f32],
    factor: f64,
}

impl SimdKernel for ScaledInF64<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        for value in self.values.iter_mut() {
            *value = (f64::from(*value) * self.factor) as f32;
        }
    }
}

struct LogitRow<'a> {
    logits: &'a [f32],
    label: usize,
    gradient: &'a mut [f32],
}

impl SimdKernel for LogitRow<'_> {
    type Output = RowLoss;

    #[inline(always)]
    fn run<V: SimdVector>(self) -> RowLoss {
        let greatest = first_of_greatest(self.logits);
        let maximum = f64::from(self.logits[greatest]);
        let mut lanes = [0.0; LANES];
        for (logits, gradient) in self
            .logits
            .chunks(LANES)
            .zip(self.gradient.chunks_mut(LANES))
        {
            for (lane, (x, to)) in logits.iter().zip(gradient).enumerate() {
                let found = exp(f64::from(*x) - maximum);
                lanes[lane] += found;
                *to = found as f32;
            }
        }
        let sum: f64 = lanes.iter().sum();
        let share = 1.0 / sum;
        for to in self.gradient.iter_mut() {
            *to = (f64::from(*to) * share) as f32;
        }
        self.gradient[self.label] -= 1.0;
        RowLoss {
            loss: libm::log(sum) - (f64::from(self.logits[self.label]) - maximum),
            greatest,
        }
    }
}

/// Returns the index of the first maximum; 0 if the values cannot be compared.
#[inline(always)]
fn first_of_greatest(values: &[f32]) -> usize {
    let mut most = [f32::NEG_INFINITY; LANES];
    for chunk in values.chunks(LANES) {
        for (most, value) in most.iter_mut().zip(chunk) {
            *most = if *value > *most { *value } else { *most };
        }
    }
    let most = most.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let has = |chunk: &[f32]| chunk.iter().fold(false, |found, x| found | (*x == most));
    let at = values.chunks(4 * LANES).position(has).unwrap_or(0) * 4 * LANES;
    let within = values[at..].iter().position(|x| *x == most);
    within.map_or(0, |within| at + within)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, values};

    #[test]
    fn loss_and_gradient_fit_the_definition() {
        at_every_level(|| {
            for classes in [1, 2, 10, 16, 33, 1000] {
                let logits: Vec<f32> = values(classes, 3).iter().map(|x| 8.0 * x).collect();
                let label = classes / 2;
                let mut gradient = vec![f32::NAN; classes];
                let row = softmax_cross_entropy(&logits, label, &mut gradient);
                let powers: Vec<f64> = logits.iter().map(|&x| libm::exp(f64::from(x))).collect();
                let sum: f64 = powers.iter().sum();
                assert!(
                    (row.loss - (sum / powers[label]).ln()).abs() < 1e-12,
                    "{classes}"
                );
                assert!(logits.iter().all(|&x| x <= logits[row.greatest]));
                let before = &logits[..row.greatest];
                assert!(before.iter().all(|&x| x < logits[row.greatest]));
                for (class, (got, power)) in gradient.iter().zip(&powers).enumerate() {
                    let expected = power / sum - f64::from(u8::from(class == label));
                    assert!(
                        (f64::from(*got) - expected).abs() < 1e-6,
                        "{classes}: {got} for {expected}"
                    );
                }
            }
        });
    }

    #[test]
    fn non_finite_logits_give_nan_and_large_logits_do_not_overflow() {
        at_every_level(|| {
            let mut gradient = [0.0; 2];
            assert!(
                softmax_cross_entropy(&[f32::NAN, 0.0], 1, &mut gradient)
                    .loss
                    .is_nan()
            );
            assert!(
                softmax_cross_entropy(&[0.0, f32::INFINITY], 0, &mut gradient)
                    .loss
                    .is_nan()
            );
            let row = softmax_cross_entropy(&[1e30, -1e30], 0, &mut gradient);
            assert_eq!((row.loss, gradient), (0.0, [0.0; 2]));
            let mut equal = vec![1.0; 200];
            equal[150..].fill(2.0);
            let row = softmax_cross_entropy(&equal, 0, &mut vec![0.0; 200]);
            assert_eq!(row.greatest, 150);
        });
    }
}
