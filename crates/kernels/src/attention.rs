//! Attention of several heads over rows of tokens, forward and backward.
//!
//! Queries are `[batch, tokens, heads * width]`; keys and values are adjacent: `[batch, tokens, 2 * heads *
//! width]`, a token's keys first. The weights of all heads are stored for the backward pass:
//! `[batch, heads, queries, keys]`.

use crate::exponential::exp_f32;
use crate::gemm::{Matrix, Triangle, multiply_to};
use crate::simd::{SimdKernel, SimdVector, dispatch};

/// The lengths of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attention {
    /// The number of sequences.
    pub batch: usize,
    /// The number of query tokens.
    pub queries: usize,
    /// The number of key tokens.
    pub keys: usize,
    /// The number of heads.
    pub heads: usize,
    /// The number of elements of a head.
    pub width: usize,
    /// Whether a token attends only to itself and earlier tokens.
    pub causal: bool,
}

impl Attention {
    /// Returns the numbers of elements of the queries or the output, of keys and values together, and of the weights.
    #[must_use]
    pub fn elements(&self) -> [usize; 3] {
        let row = self.row();
        [
            self.batch * self.queries * row,
            self.batch * self.keys * 2 * row,
            self.batch * self.heads * self.queries * self.keys,
        ]
    }

    fn row(&self) -> usize {
        self.heads * self.width
    }

    fn check(&self, q: &[f32], kv: &[f32], y: &[f32], weights: &[f32], lengths: &[usize]) {
        let [asking, looked_at, all] = self.elements();
        assert_eq!(
            [q.len(), kv.len(), y.len(), weights.len()],
            [asking, looked_at, asking, all],
            "lengths of {self:?}"
        );
        assert!(
            lengths.is_empty() || lengths.len() == self.batch,
            "{} lengths of sequences of {self:?}",
            lengths.len()
        );
    }

    /// Returns the number of key tokens of a sequence.
    fn seen(&self, lengths: &[usize], [sequence, _]: [usize; 2]) -> usize {
        let length = lengths.get(sequence).copied();
        length.map_or(self.keys, |length| length.clamp(1, self.keys.max(1)))
    }

    /// Returns the start of a head of a sequence in queries or output, and in keys and values.
    fn starts(&self, [sequence, head]: [usize; 2]) -> [usize; 2] {
        let (row, within) = (self.row(), head * self.width);
        [
            sequence * self.queries * row + within,
            sequence * self.keys * 2 * row + within,
        ]
    }

    /// Returns one head's rows of queries or outputs.
    fn asking<'a>(&self, data: &'a [f32], place: [usize; 2]) -> Matrix<'a> {
        let [start, _] = self.starts(place);
        Matrix::strided(&data[start..], self.queries, self.width, self.row())
    }

    /// Returns one head's keys and values.
    fn looked_at<'a>(&self, kv: &'a [f32], seen: usize, place: [usize; 2]) -> [Matrix<'a>; 2] {
        let ([_, start], row) = (self.starts(place), self.row());
        [start, start + row].map(|at| Matrix::strided(&kv[at..], seen, self.width, 2 * row))
    }

    fn places(self) -> impl Iterator<Item = [usize; 2]> {
        (0..self.batch).flat_map(move |sequence| (0..self.heads).map(move |head| [sequence, head]))
    }

    /// Returns the triangle of zeros of causal attention.
    fn if_causal(&self, triangle: Triangle) -> Triangle {
        if self.causal {
            triangle
        } else {
            Triangle::Nowhere
        }
    }

    /// Computes `softmax(q k' / sqrt(width)) v` for each head: writes the output and the weights. Queries attend only to
    /// the first `lengths[i]` tokens (at least one) of sequence `i`, or to all tokens if there are no lengths. Without keys the
    /// output is zero.
    ///
    /// Keys and values beyond the length are not read. Those after the query's token in causal attention have a weight of zero,
    /// by which NaN and infinite values may be multiplied.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward(
        &self,
        q: &[f32],
        kv: &[f32],
        lengths: &[usize],
        y: &mut [f32],
        weights: &mut [f32],
    ) {
        self.check(q, kv, y, weights, lengths);
        let each = self.queries * self.keys;
        if each == 0 {
            return y.fill(0.0);
        }
        for (place, weights) in self.places().zip(weights.chunks_exact_mut(each)) {
            let seen = self.seen(lengths, place);
            let [keys, values] = self.looked_at(kv, seen, place);
            multiply_to(
                self.asking(q, place),
                keys.transposed(),
                (weights, self.keys),
                self.if_causal(Triangle::AboveInOutput),
            );
            dispatch(RowSoftmax {
                rows: self.rows(seen),
                weights,
            });
            let weights = Matrix::strided(weights, self.queries, seen, self.keys);
            let [start, _] = self.starts(place);
            multiply_to(
                weights,
                values,
                (&mut y[start..], self.row()),
                self.if_causal(Triangle::AboveInLeft),
            );
        }
    }

    /// Computes the gradients of queries, and of keys and values, from the output's gradient. `lengths` as in the
    /// forward pass.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn backward(
        &self,
        [q, kv]: [&[f32]; 2],
        lengths: &[usize],
        weights: &[f32],
        dy: &[f32],
        [dq, dkv]: [&mut [f32]; 2],
    ) {
        self.check(q, kv, dy, weights, lengths);
        self.check(dq, dkv, dy, weights, lengths);
        let (each, row) = (self.queries * self.keys, self.row());
        if each == 0 {
            dq.fill(0.0);
            return dkv.fill(0.0);
        }
        let mut slopes = vec![0.0; each];
        let below = self.if_causal(Triangle::BelowInLeft);
        for (place, weights) in self.places().zip(weights.chunks_exact(each)) {
            let seen = self.seen(lengths, place);
            let [keys, values] = self.looked_at(kv, seen, place);
            let (given, [start, memory]) = (self.asking(dy, place), self.starts(place));
            let by_query = Matrix::strided(weights, self.queries, seen, self.keys);
            let to = (&mut dkv[memory + row..], 2 * row);
            multiply_to(by_query.transposed(), given, to, below);
            multiply_to(
                given,
                values.transposed(),
                (&mut slopes, self.keys),
                self.if_causal(Triangle::AboveInOutput),
            );
            dispatch(SoftmaxGradient {
                rows: self.rows(seen),
                weights,
                slopes: &mut slopes,
            });
            let slopes = Matrix::strided(&slopes, self.queries, seen, self.keys);
            multiply_to(
                slopes,
                keys,
                (&mut dq[start..], row),
                self.if_causal(Triangle::AboveInLeft),
            );
            let to = (&mut dkv[memory..], 2 * row);
            multiply_to(slopes.transposed(), self.asking(q, place), to, below);
            for token in seen..self.keys {
                for at in [memory, memory + row] {
                    dkv[at + token * 2 * row..][..self.width].fill(0.0);
                }
            }
        }
    }

    fn rows(&self, seen: usize) -> AttentionRows {
        AttentionRows {
            length: self.keys,
            seen,
            causal: self.causal,
            scale: 1.0 / (self.width as f32).sqrt(),
        }
    }
}

/// The rows of a head's weights.
#[derive(Clone, Copy)]
struct AttentionRows {
    length: usize,
    /// The number of key tokens.
    seen: usize,
    causal: bool,
    scale: f32,
}

impl AttentionRows {
    /// Returns the number of tokens that a query attends to.
    #[inline(always)]
    fn seen_by(self, query: usize) -> usize {
        if self.causal {
            (query + 1).min(self.seen)
        } else {
            self.seen
        }
    }
}

/// The number of lanes of the sum of a row.
const LANES: usize = 16;

struct RowSoftmax<'a> {
    rows: AttentionRows,
    weights: &'a mut [f32],
}

impl SimdKernel for RowSoftmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let rows = self.weights.chunks_exact_mut(self.rows.length.max(1));
        for (query, row) in rows.enumerate() {
            let (row, unseen) = row.split_at_mut(self.rows.seen_by(query));
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
                    *x = exp_f32((*x - most) * self.rows.scale);
                    *lane += *x;
                }
            }
            let share = 1.0 / lanes.iter().sum::<f32>();
            row.iter_mut().for_each(|x| *x *= share);
        }
    }
}

/// Converts the gradient of the weights to the gradient of the softmax's input.
struct SoftmaxGradient<'a> {
    rows: AttentionRows,
    weights: &'a [f32],
    slopes: &'a mut [f32],
}

impl SimdKernel for SoftmaxGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let (length, scale) = (self.rows.length.max(1), self.rows.scale);
        let weights = self.weights.chunks_exact(length);
        let rows = weights.zip(self.slopes.chunks_exact_mut(length));
        for (query, (weights, slopes)) in rows.enumerate() {
            let seen = self.rows.seen_by(query);
            let (slopes, unseen) = slopes.split_at_mut(seen);
            unseen.fill(0.0);
            let weights = &weights[..seen];
            let mut lanes = [0.0_f32; LANES];
            for (weights, slopes) in weights.chunks(LANES).zip(slopes.chunks(LANES)) {
                for (lane, (weight, slope)) in lanes.iter_mut().zip(weights.iter().zip(slopes)) {
                    *lane += weight * slope;
                }
            }
            let mean = lanes.iter().sum::<f32>();
            for (weight, slope) in weights.iter().zip(slopes) {
                *slope = weight * (*slope - mean) * scale;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, close, values};

    /// Returns the sum of the output times `dy` for queries, and for keys and values.
    fn objective(shape: &Attention, lengths: &[usize], [q, kv]: &[Vec<f64>; 2], dy: &[f32]) -> f64 {
        let mut sum = 0.0;
        for place in shape.places() {
            let ([own, memory], row) = (shape.starts(place), shape.row());
            for query in 0..shape.queries {
                let keys = shape.seen(lengths, place);
                let seen = if shape.causal {
                    (query + 1).min(keys)
                } else {
                    keys
                };
                let at = own + query * row;
                let score = |key: usize| {
                    let from = memory + key * 2 * row;
                    let dot: f64 = (0..shape.width).map(|i| q[at + i] * kv[from + i]).sum();
                    (dot / (shape.width as f64).sqrt()).exp()
                };
                let total: f64 = (0..seen).map(score).sum();
                for key in 0..seen {
                    let weight = score(key) / total;
                    let from = memory + key * 2 * row + row;
                    for i in 0..shape.width {
                        sum += weight * kv[from + i] * f64::from(dy[at + i]);
                    }
                }
            }
        }
        sum
    }

    /// Returns the output, and the gradients of queries, and of keys and values.
    fn outcome(shape: &Attention, lengths: &[usize], given: [&[f32]; 3]) -> [Vec<f32>; 3] {
        let [asking, looked_at, all] = shape.elements();
        let [q, kv, dy] = given;
        let (mut y, mut weights) = (vec![f32::NAN; asking], vec![f32::NAN; all]);
        shape.forward(q, kv, lengths, &mut y, &mut weights);
        let mut dq = vec![f32::NAN; asking];
        let mut dkv = vec![f32::NAN; looked_at];
        shape.backward([q, kv], lengths, &weights, dy, [&mut dq, &mut dkv]);
        [y, dq, dkv]
    }

    #[test]
    fn values_and_gradients_fit_the_definition() {
        at_every_level(|| {
            let cases: [(usize, usize, bool, &[usize]); 6] = [
                (5, 5, true, &[]),
                (3, 6, false, &[]),
                (18, 18, true, &[]),
                (70, 70, true, &[]),
                (4, 7, false, &[7, 3]),
                (6, 6, true, &[0, 4]),
            ];
            for (queries, keys, causal, lengths) in cases {
                let shape = Attention {
                    batch: 2,
                    queries,
                    keys,
                    heads: 2,
                    width: 3,
                    causal,
                };
                let [asking, looked_at, _] = shape.elements();
                let (q, kv) = (values(asking, 1), values(looked_at, 2));
                let dy = values(asking, 4);
                let [y, dq, dkv] = outcome(&shape, lengths, [&q, &kv, &dy]);
                let wide =
                    |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
                let inputs = [wide(&q), wide(&kv)];
                let products = y.iter().zip(&dy);
                let total: f64 = products.map(|(y, dy)| f64::from(*y) * f64::from(*dy)).sum();
                assert!((total - objective(&shape, lengths, &inputs, &dy)).abs() < 1e-4);
                for (which, got) in [dq, dkv].iter().enumerate() {
                    assert!(got.iter().all(|value| value.is_finite()));
                    for place in (0..got.len()).step_by(got.len() / 40 + 1) {
                        let moved = |by: f64| {
                            let mut inputs = inputs.clone();
                            inputs[which][place] += by;
                            objective(&shape, lengths, &inputs, &dy)
                        };
                        close(got[place], (moved(1e-5) - moved(-1e-5)) / 2e-5, 1e-5);
                    }
                }
            }
        });
    }

    #[test]
    fn masked_tokens_do_not_change_the_bits() {
        at_every_level(|| {
            let long = Attention {
                batch: 1,
                queries: 9,
                keys: 9,
                heads: 2,
                width: 3,
                causal: false,
            };
            let short = Attention { keys: 5, ..long };
            let [asking, looked_at, _] = long.elements();
            let (q, dy) = (values(asking, 1), values(asking, 4));
            let mut kv = values(looked_at, 2);
            kv[5 * 12..].fill(f32::NAN);
            let [y, dq, dkv] = outcome(&long, &[5], [&q, &kv, &dy]);
            let expected = outcome(&short, &[], [&q, &kv[..5 * 12], &dy]);
            assert_eq!([y, dq, dkv[..5 * 12].to_vec()], expected);
            assert_eq!(dkv[5 * 12..], [0.0; 4 * 12]);
        });
    }
}
