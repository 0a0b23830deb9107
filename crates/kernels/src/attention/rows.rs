//! The softmax of the rows of a strip, and its gradient.

use super::Strip;
use crate::exponential::exp_f32;
use crate::simd::{SimdKernel, SimdVector};

/// The number of lanes of the sum of a row.
const LANES: usize = 16;

/// Returns the greatest value that is a number.
#[inline(always)]
fn greatest(row: &[f32]) -> f32 {
    let mut most = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (most, x) in most.iter_mut().zip(chunk) {
            *most = if *x > *most { *x } else { *most };
        }
    }
    for (most, x) in most.iter_mut().zip(rest) {
        *most = if *x > *most { *x } else { *most };
    }
    most.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b))
}

/// Converts scores to weights, and writes the greatest score and the inverse sum of each row.
pub(super) struct RowSoftmax<'a> {
    pub(super) strip: &'a Strip,
    pub(super) weights: &'a mut [f32],
    pub(super) statistics: &'a mut [f32],
}

impl SimdKernel for RowSoftmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let rows = self.weights.chunks_mut(self.strip.stride);
        let statistics = self.statistics.chunks_exact_mut(2);
        for (number, (row, statistics)) in rows.zip(statistics).enumerate() {
            let row = self.strip.seen_part(number, row);
            let most = greatest(row);
            let mut lanes = [0.0_f32; LANES];
            let (chunks, rest) = row.as_chunks_mut::<LANES>();
            for chunk in chunks {
                for (lane, x) in lanes.iter_mut().zip(chunk) {
                    *x = exp_f32((*x - most) * self.strip.scale);
                    *lane += *x;
                }
            }
            for (lane, x) in lanes.iter_mut().zip(rest) {
                *x = exp_f32((*x - most) * self.strip.scale);
                *lane += *x;
            }
            let share = 1.0 / lanes.iter().sum::<f32>();
            row.iter_mut().for_each(|x| *x *= share);
            statistics.copy_from_slice(&[most, share]);
        }
    }
}

/// Converts scores to the same weights as [`RowSoftmax`], whose statistics are known.
pub(super) struct KnownSoftmax<'a> {
    pub(super) strip: &'a Strip,
    pub(super) weights: &'a mut [f32],
    pub(super) statistics: &'a [f32],
}

impl SimdKernel for KnownSoftmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let rows = self.weights.chunks_mut(self.strip.stride);
        let statistics = self.statistics.chunks_exact(2);
        for (number, (row, statistics)) in rows.zip(statistics).enumerate() {
            let (most, share) = (statistics[0], statistics[1]);
            for x in self.strip.seen_part(number, row) {
                *x = exp_f32((*x - most) * self.strip.scale) * share;
            }
        }
    }
}

/// Converts the gradient of the weights to the gradient of the softmax's input.
pub(super) struct SoftmaxGradient<'a> {
    pub(super) strip: &'a Strip,
    pub(super) weights: &'a [f32],
    pub(super) slopes: &'a mut [f32],
}

impl SimdKernel for SoftmaxGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let (stride, scale) = (self.strip.stride, self.strip.scale);
        let rows = self.weights.chunks(stride);
        let rows = rows.zip(self.slopes.chunks_mut(stride));
        for (number, (weights, slopes)) in rows.enumerate() {
            let slopes = self.strip.seen_part(number, slopes);
            let weights = &weights[..slopes.len()];
            let mut lanes = [0.0_f32; LANES];
            let ((of_weights, last_weights), (of_slopes, last_slopes)) =
                (weights.as_chunks::<LANES>(), slopes.as_chunks::<LANES>());
            for (weights, slopes) in of_weights.iter().zip(of_slopes) {
                for (lane, (weight, slope)) in lanes.iter_mut().zip(weights.iter().zip(slopes)) {
                    *lane += weight * slope;
                }
            }
            let last = last_weights.iter().zip(last_slopes);
            for (lane, (weight, slope)) in lanes.iter_mut().zip(last) {
                *lane += weight * slope;
            }
            let mean = lanes.iter().sum::<f32>();
            for (weight, slope) in weights.iter().zip(slopes) {
                *slope = weight * (*slope - mean) * scale;
            }
        }
    }
}
