//! Attention of several heads over rows of tokens, forward and backward.
//!
//! Queries are `[batch, tokens, heads * width]`; keys and values are adjacent: `[batch, tokens, 2 * heads *
//! width]`, a token's keys first.
//!
//! No matrix of all pairs of tokens is in memory. The weights are computed in strips of some queries and all keys, and
//! computed again in the backward pass from the greatest score and the sum of each row, which is all that is kept. A strip
//! of the backward pass is a block of the inner index of the products that sum over queries, so the bits are those of the
//! whole matrices.

mod rows;

use std::ops::Range;

use self::rows::{KnownSoftmax, RowSoftmax, SoftmaxGradient};
use crate::gemm::{BlockedLength, Matrix, PartialProduct, Triangle, chunks, multiply_part};
use crate::scratch::{StripBuffers, lend_strips};
use crate::short::{ShortFormat, round_short};
use crate::simd::dispatch;

/// The most elements of a strip of the forward pass, if it has more than the least rows: it stays in the second-level cache.
const STRIP_ELEMENTS: usize = 320 * 1024;
/// The least and the greatest number of rows of a strip of the forward pass.
const STRIP_ROWS: [usize; 2] = [48, 240];

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
    /// Returns the numbers of elements of the queries or the output, of keys and values together, and of the statistics.
    #[must_use]
    pub fn elements(&self) -> [usize; 3] {
        let row = self.row();
        [
            self.batch * self.queries * row,
            self.batch * self.keys * 2 * row,
            self.batch * self.heads * self.queries * 2,
        ]
    }

    /// Returns the number of pairs of a query and a key, of all heads and sequences.
    #[must_use]
    pub fn pairs(&self) -> usize {
        self.batch * self.heads * self.queries * self.keys
    }

    fn row(&self) -> usize {
        self.heads * self.width
    }

    fn check(&self, q: &[f32], kv: &[f32], y: &[f32], statistics: &[f32], lengths: &[usize]) {
        let [asking, looked_at, rows] = self.elements();
        assert_eq!(
            [q.len(), kv.len(), y.len(), statistics.len()],
            [asking, looked_at, asking, rows],
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

    /// Returns one head's rows of queries or outputs in a strip.
    fn asking<'a>(&self, data: &'a [f32], place: [usize; 2], strip: &Strip) -> Matrix<'a> {
        let ([start, _], row) = (self.starts(place), self.row());
        let from = &data[start + strip.queries.start * row..];
        Matrix::strided(from, strip.queries.len(), self.width, row)
    }

    /// Returns one head's keys and values of a strip.
    fn looked_at<'a>(&self, kv: &'a [f32], place: [usize; 2], strip: &Strip) -> [Matrix<'a>; 2] {
        let ([_, start], row) = (self.starts(place), self.row());
        [start, start + row].map(|at| Matrix::strided(&kv[at..], strip.keys, self.width, 2 * row))
    }

    fn places(self) -> impl Iterator<Item = [usize; 2]> {
        (0..self.batch).flat_map(move |sequence| (0..self.heads).map(move |head| [sequence, head]))
    }

    /// Returns the strip of some queries of a sequence with `seen` key tokens.
    fn strip(&self, queries: Range<usize>, seen: usize) -> Strip {
        let keys = if self.causal {
            seen.min(queries.end)
        } else {
            seen
        };
        Strip {
            queries,
            keys,
            seen,
            stride: Strip::stride_of(keys),
            causal: self.causal,
            scale: 1.0 / (self.width as f32).sqrt(),
        }
    }

    /// Computes `softmax(q k' / sqrt(width)) v` for each head: writes the output, and the greatest score and the inverse sum of
    /// each row, which the backward pass needs. Queries attend only to
    /// the first `lengths[i]` tokens (at least one) of sequence `i`, or to all tokens without lengths. Without keys the
    /// output is zero.
    ///
    /// Keys and values beyond the length are not read. Those after the query's token in causal attention have a weight of zero,
    /// which may multiply NaN and infinite values.
    ///
    /// Cost: two products of all pairs, half of them in causal attention; memory of the thread for a strip of at most 240 rows.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward(
        &self,
        q: &[f32],
        kv: &[f32],
        lengths: &[usize],
        y: &mut [f32],
        statistics: &mut [f32],
    ) {
        self.check(q, kv, y, statistics, lengths);
        if self.queries * self.keys == 0 {
            statistics.fill(0.0);
            return y.fill(0.0);
        }
        let buffers = &mut *lend_strips();
        let each = statistics.chunks_exact_mut(2 * self.queries);
        for (place, statistics) in self.places().zip(each) {
            let seen = self.seen(lengths, place);
            let rows = (STRIP_ELEMENTS / seen).clamp(STRIP_ROWS[0], STRIP_ROWS[1]);
            for queries in chunks(0..self.queries, rows) {
                let of_rows = 2 * queries.start..2 * queries.end;
                let strip = self.strip(queries, seen);
                let weights = buffers.weights.take(strip.elements());
                self.write_scores([q, kv], place, &strip, weights);
                dispatch(RowSoftmax {
                    strip: &strip,
                    weights,
                    statistics: &mut statistics[of_rows],
                });
                let [_, values] = self.looked_at(kv, place, &strip);
                let [start, _] = self.starts(place);
                let to = &mut y[start + strip.queries.start * self.row()..];
                let part = PartialProduct::new(seen, strip.triangle(Triangle::AboveInLeft));
                multiply_part(strip.matrix(weights), values, (to, self.row()), part);
            }
        }
    }

    /// Writes the products of the queries of a strip by the keys.
    fn write_scores(&self, [q, kv]: [&[f32]; 2], place: [usize; 2], strip: &Strip, to: &mut [f32]) {
        let [keys, _] = self.looked_at(kv, place, strip);
        let asking = self.asking(q, place, strip);
        strip.multiply_by_rows(asking, keys, to);
    }

    /// Computes the gradients of queries, and of keys and values, from the output's gradient. `lengths` as in the
    /// forward pass, whose statistics are given. With a format, the weights are rounded to it, as if they had been kept in it.
    ///
    /// Cost: five products of all pairs, half of them in causal attention; memory of the thread for two strips of at most 256
    /// rows.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn backward(
        &self,
        inputs: [&[f32]; 2],
        lengths: &[usize],
        (statistics, format): (&[f32], Option<ShortFormat>),
        dy: &[f32],
        [dq, dkv]: [&mut [f32]; 2],
    ) {
        let [q, kv] = inputs;
        self.check(q, kv, dy, statistics, lengths);
        self.check(dq, dkv, dy, statistics, lengths);
        if self.queries * self.keys == 0 {
            dq.fill(0.0);
            return dkv.fill(0.0);
        }
        let buffers = &mut *lend_strips();
        let each = statistics.chunks_exact(2 * self.queries);
        for (place, statistics) in self.places().zip(each) {
            let seen = self.seen(lengths, place);
            for queries in BlockedLength::of_depth(self.queries).ranges() {
                let of_rows = 2 * queries.start..2 * queries.end;
                let strip = self.strip(queries, seen);
                let weights = buffers.weights.take(strip.elements());
                self.write_scores(inputs, place, &strip, weights);
                dispatch(KnownSoftmax {
                    strip: &strip,
                    weights,
                    statistics: &statistics[of_rows],
                });
                if let Some(format) = format {
                    let rows = weights.chunks_mut(strip.stride);
                    rows.for_each(|row| round_short(format, &mut row[..strip.keys]));
                }
                self.strip_gradients(inputs, place, &strip, buffers, dy, [&mut *dq, &mut *dkv]);
            }
        }
    }

    /// Writes the gradients of the queries of a strip, and adds those of keys and values; the first strip of a head writes
    /// them. The strip's weights are known.
    fn strip_gradients(
        &self,
        [q, kv]: [&[f32]; 2],
        place: [usize; 2],
        strip: &Strip,
        buffers: &mut StripBuffers,
        dy: &[f32],
        [dq, dkv]: [&mut [f32]; 2],
    ) {
        let ([start, memory], row) = (self.starts(place), self.row());
        if strip.queries.start == 0 {
            for token in strip.keys..self.keys {
                for at in [memory, memory + row] {
                    dkv[at + token * 2 * row..][..self.width].fill(0.0);
                }
            }
        }
        let over_queries = PartialProduct {
            adds: strip.queries.start > 0,
            ..PartialProduct::new(strip.queries.len(), strip.triangle(Triangle::BelowInLeft))
        };
        let [keys, values] = self.looked_at(kv, place, strip);
        let given = self.asking(dy, place, strip);
        let weights = &*buffers.weights.take(strip.elements());
        let slopes = buffers.slopes.take(strip.elements());
        let by_key = strip.matrix(weights).transposed();
        let to = (&mut dkv[memory + row..], 2 * row);
        multiply_part(by_key, given, to, over_queries);
        strip.multiply_by_rows(given, values, slopes);
        dispatch(SoftmaxGradient {
            strip,
            weights,
            slopes,
        });
        let slopes = strip.matrix(slopes);
        let to = (&mut dq[start + strip.queries.start * row..], row);
        let part = PartialProduct::new(strip.seen, strip.triangle(Triangle::AboveInLeft));
        multiply_part(slopes, keys, to, part);
        let to = (&mut dkv[memory..], 2 * row);
        multiply_part(
            slopes.transposed(),
            self.asking(q, place, strip),
            to,
            over_queries,
        );
    }
}

/// Some queries of a head, and the keys to which they attend, whose weights are in memory.
struct Strip {
    queries: Range<usize>,
    /// The number of keys to which any of the queries attends.
    keys: usize,
    /// The number of key tokens of the sequence.
    seen: usize,
    /// The distance of rows.
    stride: usize,
    causal: bool,
    scale: f32,
}

impl Strip {
    /// Returns a distance of rows that is not a power of two, so that the rows of a tile do not share the sets of a cache.
    fn stride_of(keys: usize) -> usize {
        keys.next_multiple_of(16) + 16
    }

    fn elements(&self) -> usize {
        self.queries.len() * self.stride
    }

    fn matrix<'a>(&self, values: &'a [f32]) -> Matrix<'a> {
        Matrix::strided(values, self.queries.len(), self.keys, self.stride)
    }

    /// Returns the triangle of zeros of causal attention.
    fn triangle(&self, of: fn(usize) -> Triangle) -> Triangle {
        if self.causal {
            of(self.queries.start)
        } else {
            Triangle::Nowhere
        }
    }

    /// Writes the products of rows of the strip's queries by rows of its keys.
    fn multiply_by_rows(&self, left: Matrix<'_>, rows: Matrix<'_>, to: &mut [f32]) {
        let triangle = self.triangle(Triangle::AboveInOutput);
        let part = PartialProduct::new(left.columns(), triangle);
        multiply_part(left, rows.transposed(), (to, self.stride), part);
    }

    /// Returns the part of a row to whose keys its query attends, and fills the rest with zeros.
    #[inline(always)]
    fn seen_part<'a>(&self, number: usize, row: &'a mut [f32]) -> &'a mut [f32] {
        let seen = if self.causal {
            (self.queries.start + number + 1).min(self.seen)
        } else {
            self.seen
        };
        let (row, unseen) = row[..self.keys].split_at_mut(seen);
        unseen.fill(0.0);
        row
    }
}

#[cfg(test)]
mod tests;
