//! Attention of several heads over rows of tokens, forward and backward.
//!
//! Queries, keys and values are `[batch, tokens, heads * width]`. The weights of all heads are kept for
//! backward: `[batch, heads, queries, keys]`.

use crate::exponential::exp_f32;
use crate::gemm::{Matrix, multiply};
use crate::simd::{Kernel, Vector, dispatch};

/// The lengths of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// Sequences.
    pub batch: usize,
    /// Tokens that ask.
    pub queries: usize,
    /// Tokens that are looked at.
    pub keys: usize,
    /// Heads.
    pub heads: usize,
    /// Elements of one head.
    pub width: usize,
    /// Whether a token sees only itself and those before it.
    pub causal: bool,
}

impl Attention {
    /// Elements of the queries or the output, of the keys or the values, and of the weights.
    #[must_use]
    pub fn elements(&self) -> [usize; 3] {
        let row = self.heads * self.width;
        [
            self.batch * self.queries * row,
            self.batch * self.keys * row,
            self.batch * self.heads * self.queries * self.keys,
        ]
    }

    fn check(&self, q: &[f32], k: &[f32], v: &[f32], y: &[f32], weights: &[f32]) {
        let [asking, looked_at, all] = self.elements();
        assert_eq!(
            [q.len(), k.len(), v.len(), y.len(), weights.len()],
            [asking, looked_at, looked_at, asking, all],
            "lengths of {self:?}"
        );
    }

    /// One head's rows in a buffer of so many tokens a sequence.
    fn head<'a>(&self, data: &'a [f32], tokens: usize, place: [usize; 2]) -> Matrix<'a> {
        let row = self.heads * self.width;
        let [sequence, head] = place;
        let start = sequence * tokens * row + head * self.width;
        Matrix::strided(&data[start.min(data.len())..], tokens, self.width, row)
    }

    /// Writes one head's rows back.
    fn give(&self, head: &[f32], data: &mut [f32], tokens: usize, place: [usize; 2]) {
        let row = self.heads * self.width;
        let [sequence, number] = place;
        for (token, from) in head.chunks_exact(self.width).enumerate() {
            let at = (sequence * tokens + token) * row + number * self.width;
            data[at..at + self.width].copy_from_slice(from);
        }
    }

    fn places(self) -> impl Iterator<Item = [usize; 2]> {
        (0..self.batch).flat_map(move |sequence| (0..self.heads).map(move |head| [sequence, head]))
    }

    /// `softmax(q k' / sqrt(width)) v` for each head: writes the output and the weights.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn forward(&self, q: &[f32], k: &[f32], v: &[f32], y: &mut [f32], weights: &mut [f32]) {
        self.check(q, k, v, y, weights);
        let scale = 1.0 / (self.width as f32).sqrt();
        let mut head = vec![0.0; self.queries * self.width];
        let each = (self.queries * self.keys).max(1);
        for (place, weights) in self.places().zip(weights.chunks_exact_mut(each)) {
            let key = self.head(k, self.keys, place);
            multiply(
                self.head(q, self.queries, place),
                key.transposed(),
                weights,
                false,
            );
            dispatch(Softmax {
                weights,
                keys: self.keys,
                causal: self.causal,
                scale,
            });
            let seen = Matrix::new(weights, self.queries, self.keys);
            multiply(seen, self.head(v, self.keys, place), &mut head, false);
            self.give(&head, y, self.queries, place);
        }
    }

    /// Gradients of queries, keys and values from that of the output.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn backward(
        &self,
        [q, k, v]: [&[f32]; 3],
        weights: &[f32],
        dy: &[f32],
        [dq, dk, dv]: [&mut [f32]; 3],
    ) {
        self.check(q, k, v, dy, weights);
        self.check(dq, dk, dv, dy, weights);
        let scale = 1.0 / (self.width as f32).sqrt();
        let mut asking = vec![0.0; self.queries * self.width];
        let mut looked_at = vec![0.0; self.keys * self.width];
        let each = self.queries * self.keys;
        let mut slopes = vec![0.0; each];
        for (place, weights) in self.places().zip(weights.chunks_exact(each.max(1))) {
            let (query, key) = (
                self.head(q, self.queries, place),
                self.head(k, self.keys, place),
            );
            let given = self.head(dy, self.queries, place);
            let seen = Matrix::new(weights, self.queries, self.keys);
            multiply(seen.transposed(), given, &mut looked_at, false);
            self.give(&looked_at, dv, self.keys, place);
            let value = self.head(v, self.keys, place);
            multiply(given, value.transposed(), &mut slopes, false);
            dispatch(Slopes {
                weights,
                slopes: &mut slopes,
                keys: self.keys,
                scale,
            });
            let slopes = Matrix::new(&slopes, self.queries, self.keys);
            multiply(slopes, key, &mut asking, false);
            self.give(&asking, dq, self.queries, place);
            multiply(slopes.transposed(), query, &mut looked_at, false);
            self.give(&looked_at, dk, self.keys, place);
        }
    }
}

/// Lanes that a row's sum is formed in.
const LANES: usize = 16;

struct Softmax<'a> {
    weights: &'a mut [f32],
    keys: usize,
    causal: bool,
    scale: f32,
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        for (query, row) in self.weights.chunks_exact_mut(self.keys.max(1)).enumerate() {
            let seen = if self.causal {
                (query + 1).min(self.keys)
            } else {
                self.keys
            };
            let (row, unseen) = row.split_at_mut(seen);
            unseen.fill(0.0);
            let mut most = [f32::NEG_INFINITY; LANES];
            for chunk in row.chunks(LANES) {
                for (most, x) in most.iter_mut().zip(chunk) {
                    *most = if *x > *most { *x } else { *most };
                }
            }
            let most = most.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
            let mut lanes = [0.0_f32; LANES];
            for chunk in row.chunks_mut(LANES) {
                for (lane, x) in lanes.iter_mut().zip(chunk) {
                    *x = exp_f32((*x - most) * self.scale);
                    *lane += *x;
                }
            }
            let share = 1.0 / lanes.iter().sum::<f32>();
            row.iter_mut().for_each(|x| *x *= share);
        }
    }
}

/// From the gradient of the weights to that of what the softmax was taken of.
struct Slopes<'a> {
    weights: &'a [f32],
    slopes: &'a mut [f32],
    keys: usize,
    scale: f32,
}

impl Kernel for Slopes<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let keys = self.keys.max(1);
        for (weights, slopes) in self
            .weights
            .chunks_exact(keys)
            .zip(self.slopes.chunks_exact_mut(keys))
        {
            let mut lanes = [0.0_f32; LANES];
            for (weights, slopes) in weights.chunks(LANES).zip(slopes.chunks(LANES)) {
                for (lane, (weight, slope)) in lanes.iter_mut().zip(weights.iter().zip(slopes)) {
                    *lane += weight * slope;
                }
            }
            let mean = lanes.iter().sum::<f32>();
            for (weight, slope) in weights.iter().zip(slopes) {
                *slope = weight * (*slope - mean) * self.scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{close, values};

    fn objective(shape: &Attention, inputs: &[Vec<f64>; 3], dy: &[f32]) -> f64 {
        let row = shape.heads * shape.width;
        let mut sum = 0.0;
        for [sequence, head] in shape.places() {
            let at = |tokens: usize, token: usize, i: usize| {
                (sequence * tokens + token) * row + head * shape.width + i
            };
            for query in 0..shape.queries {
                let seen = if shape.causal {
                    (query + 1).min(shape.keys)
                } else {
                    shape.keys
                };
                let score = |key: usize| {
                    let dot: f64 = (0..shape.width)
                        .map(|i| {
                            inputs[0][at(shape.queries, query, i)]
                                * inputs[1][at(shape.keys, key, i)]
                        })
                        .sum();
                    (dot / (shape.width as f64).sqrt()).exp()
                };
                let total: f64 = (0..seen).map(score).sum();
                for key in 0..seen {
                    let weight = score(key) / total;
                    for i in 0..shape.width {
                        sum += weight
                            * inputs[2][at(shape.keys, key, i)]
                            * f64::from(dy[at(shape.queries, query, i)]);
                    }
                }
            }
        }
        sum
    }

    #[test]
    fn values_and_gradients_fit_the_definition() {
        for (queries, keys, causal) in [(5, 5, true), (3, 6, false), (18, 18, true)] {
            let shape = Attention {
                batch: 2,
                queries,
                keys,
                heads: 2,
                width: 3,
                causal,
            };
            let [asking, looked_at, all] = shape.elements();
            let (q, k, v) = (
                values(asking, 1),
                values(looked_at, 2),
                values(looked_at, 3),
            );
            let dy = values(asking, 4);
            let (mut y, mut weights) = (vec![f32::NAN; asking], vec![f32::NAN; all]);
            shape.forward(&q, &k, &v, &mut y, &mut weights);
            let mut found = [
                vec![f32::NAN; asking],
                vec![f32::NAN; looked_at],
                vec![f32::NAN; looked_at],
            ];
            let [dq, dk, dv] = &mut found;
            shape.backward([&q, &k, &v], &weights, &dy, [dq, dk, dv]);

            let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            let inputs = [wide(&q), wide(&k), wide(&v)];
            let total: f64 = y
                .iter()
                .zip(&dy)
                .map(|(y, dy)| f64::from(*y) * f64::from(*dy))
                .sum();
            assert!((total - objective(&shape, &inputs, &dy)).abs() < 1e-4);
            for (which, got) in found.iter().enumerate() {
                for place in (0..got.len()).step_by(3) {
                    let moved = |by: f64| {
                        let mut inputs = inputs.clone();
                        inputs[which][place] += by;
                        objective(&shape, &inputs, &dy)
                    };
                    close(got[place], (moved(1e-5) - moved(-1e-5)) / 2e-5, 1e-5);
                }
            }
        }
    }
}
