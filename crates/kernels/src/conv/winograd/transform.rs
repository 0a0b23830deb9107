//! The transforms of F(4x4, 3x3): of input tiles, weights and output tiles, and their transposes.
//!
//! The points are 0, ±3/4, ±3/2 and infinity. They halve the rounding error of the usual points 0, ±1, ±2 and
//! infinity; their powers are exact in f32.

use super::sizes::{SIDE, TILE};
use crate::simd::SimdVector;

/// The first pair of points.
const A: f32 = 0.75;
/// The second pair of points.
const B: f32 = 1.5;
const A2: f32 = A * A;
const B2: f32 = B * B;
/// The scales of the weights at each point: reciprocals of the products of its distances from the other points.
const SCALE_0: f32 = 1.0 / (A2 * B2);
const SCALE_A: f32 = 1.0 / (2.0 * A2 * (A2 - B2));
const SCALE_B: f32 = 1.0 / (2.0 * B2 * (B2 - A2));

/// A transform along one axis.
pub(super) trait LineTransform<const FROM: usize, const TO: usize> {
    fn line<V: SimdVector>(x: [V; FROM]) -> [V; TO];
}

/// Applies a transform along both axes of a square.
#[inline(always)]
pub(super) fn along_both_axes<
    V: SimdVector,
    L: LineTransform<FROM, TO>,
    const FROM: usize,
    const TO: usize,
>(
    x: &[[V; FROM]; FROM],
) -> [[V; TO]; TO] {
    let zero = V::splat(0.0);
    let mut half = [[zero; FROM]; TO];
    for column in 0..FROM {
        let mut line = [zero; FROM];
        for row in 0..FROM {
            line[row] = x[row][column];
        }
        let line = L::line(line);
        for row in 0..TO {
            half[row][column] = line[row];
        }
    }
    let mut out = [[zero; TO]; TO];
    for row in 0..TO {
        out[row] = L::line(half[row]);
    }
    out
}

#[inline(always)]
fn scaled<V: SimdVector>(x: V, factor: f32) -> V {
    x.multiply_add(V::splat(factor), V::splat(0.0))
}

/// Returns `x * factor + sum`.
#[inline(always)]
fn plus<V: SimdVector>(sum: V, x: V, factor: f32) -> V {
    x.multiply_add(V::splat(factor), sum)
}

/// Transforms tiles of the input.
pub(super) struct InputTile;

impl LineTransform<SIDE, SIDE> for InputTile {
    #[inline(always)]
    fn line<V: SimdVector>([d0, d1, d2, d3, d4, d5]: [V; SIDE]) -> [V; SIDE] {
        let (even_a, odd_a) = (plus(d4, d2, -B2), plus(d3, d1, -B2));
        let (even_b, odd_b) = (plus(d4, d2, -A2), plus(d3, d1, -A2));
        [
            plus(plus(d4, d2, -(A2 + B2)), d0, A2 * B2),
            plus(even_a, odd_a, A),
            plus(even_a, odd_a, -A),
            plus(even_b, odd_b, B),
            plus(even_b, odd_b, -B),
            plus(plus(d5, d3, -(A2 + B2)), d1, A2 * B2),
        ]
    }
}

/// Transforms weights.
pub(super) struct Weights;

impl LineTransform<3, SIDE> for Weights {
    #[inline(always)]
    fn line<V: SimdVector>([g0, g1, g2]: [V; 3]) -> [V; SIDE] {
        let even_a = plus(scaled(g0, SCALE_A), g2, SCALE_A * A2);
        let even_b = plus(scaled(g0, SCALE_B), g2, SCALE_B * B2);
        [
            scaled(g0, SCALE_0),
            plus(even_a, g1, SCALE_A * A),
            plus(even_a, g1, -SCALE_A * A),
            plus(even_b, g1, SCALE_B * B),
            plus(even_b, g1, -SCALE_B * B),
            g2,
        ]
    }
}

/// Transforms products to tiles of the output.
pub(super) struct OutputTile;

impl LineTransform<SIDE, TILE> for OutputTile {
    #[inline(always)]
    fn line<V: SimdVector>([m0, m1, m2, m3, m4, m5]: [V; SIDE]) -> [V; TILE] {
        let (sum_a, difference_a) = (m1.add(m2), plus(m1, m2, -1.0));
        let (sum_b, difference_b) = (m3.add(m4), plus(m3, m4, -1.0));
        [
            m0.add(sum_a).add(sum_b),
            plus(scaled(difference_a, A), difference_b, B),
            plus(scaled(sum_a, A2), sum_b, B2),
            plus(plus(m5, difference_a, A2 * A), difference_b, B2 * B),
        ]
    }
}

/// Transforms tiles of the output's gradient: the transpose of [`OutputTile`].
pub(super) struct OutputGradientTile;

impl LineTransform<TILE, SIDE> for OutputGradientTile {
    #[inline(always)]
    fn line<V: SimdVector>([y0, y1, y2, y3]: [V; TILE]) -> [V; SIDE] {
        let (even_a, odd_a) = (plus(y0, y2, A2), plus(y1, y3, A2));
        let (even_b, odd_b) = (plus(y0, y2, B2), plus(y1, y3, B2));
        [
            y0,
            plus(even_a, odd_a, A),
            plus(even_a, odd_a, -A),
            plus(even_b, odd_b, B),
            plus(even_b, odd_b, -B),
            y3,
        ]
    }
}

/// Transforms products to gradients of the weights: the transpose of [`Weights`].
pub(super) struct WeightGradients;

impl LineTransform<SIDE, 3> for WeightGradients {
    #[inline(always)]
    fn line<V: SimdVector>([m0, m1, m2, m3, m4, m5]: [V; SIDE]) -> [V; 3] {
        let (sum_a, difference_a) = (m1.add(m2), plus(m1, m2, -1.0));
        let (sum_b, difference_b) = (m3.add(m4), plus(m3, m4, -1.0));
        [
            plus(plus(scaled(m0, SCALE_0), sum_a, SCALE_A), sum_b, SCALE_B),
            plus(scaled(difference_a, SCALE_A * A), difference_b, SCALE_B * B),
            plus(plus(m5, sum_a, SCALE_A * A2), sum_b, SCALE_B * B2),
        ]
    }
}
