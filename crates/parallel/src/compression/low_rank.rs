//! [`LowRankSum`]: the sum of contributions that are sent as two factors of each matrix.
//!
//! With the matrices M of the senders and the factor Q of the last step, the ranks add M Q over senders, make its columns
//! orthonormal (P), and add M' P over senders: the new Q, and P Q' is the sum. Both sums are exact ones with senders instead
//! of shards, so their bits do not depend on the ranks. A sender keeps M - P P' M.

use std::ops::Range;

use ronde_core::exact::{ExactSum, TreeSum};
use ronde_core::layout::Role;
use ronde_core::seed::{Purpose, SeedTree};
use ronde_core::{Buffer, CollectiveError, DType, Group, Operation, Work};
use ronde_engine::{add_column_products, times_columns, transposed_times_columns};

use super::orthonormal::{normalise_column, orthonormalise};
use crate::bucket::joined;
use crate::state::{ModelState, TensorRange};

/// A tensor that is sent as two factors: its first dimension by all others.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FactoredMatrix {
    /// The index of the tensor in the flat state.
    tensor: usize,
    elements: Range<usize>,
    rows: usize,
    width: usize,
    /// Its columns among the factors of all matrices.
    factor: Range<usize>,
}

/// Returns rows and width of a tensor, if its factors are shorter than it.
fn shape_of(tensor: &TensorRange, rank: usize) -> Option<(usize, usize)> {
    let rows = *tensor.entry.shape.first()?;
    let width = tensor.range.len().checked_div(rows)?;
    let is_shorter = rank * (rows + width) < tensor.range.len();
    (tensor.entry.role == Role::Parameter && is_shorter).then_some((rows, width))
}

/// The factors from which a step begins, of all matrices of a model. Equal on all ranks.
#[derive(Debug, Clone)]
pub(crate) struct LowRankFactors {
    rank: usize,
    matrices: Vec<FactoredMatrix>,
    pub(crate) values: Vec<f32>,
}

impl LowRankFactors {
    /// Draws the factors of the first step.
    pub(crate) fn new(state: &ModelState, rank: u32, seeds: &SeedTree) -> Self {
        let rank = rank as usize;
        let (mut matrices, mut len) = (Vec::new(), 0);
        for (index, tensor) in state.tensors().iter().enumerate() {
            if let Some((rows, width)) = shape_of(tensor, rank) {
                let factor = len..len + rank * width;
                len = factor.end;
                matrices.push(FactoredMatrix {
                    tensor: index,
                    elements: tensor.range.clone(),
                    rows,
                    width,
                    factor,
                });
            }
        }
        let mut this = Self {
            rank,
            matrices,
            values: vec![0.0; len],
        };
        this.draw(seeds);
        this
    }

    fn draw(&mut self, seeds: &SeedTree) {
        for matrix in &self.matrices {
            let columns = self.values[matrix.factor.clone()].chunks_exact_mut(matrix.width.max(1));
            for (column, values) in columns.enumerate() {
                draw(values, (seeds, 0), (matrix.tensor, column));
            }
        }
    }

    /// Begins the next step, of number `begun`, with the right factors of this one. Their columns get the length 1, and those without a
    /// length are drawn.
    pub(crate) fn replace(&mut self, right: Vec<f32>, seeds: &SeedTree, begun: u64) {
        self.values = right;
        for matrix in &self.matrices {
            let columns = self.values[matrix.factor.clone()].chunks_exact_mut(matrix.width.max(1));
            for (column, values) in columns.enumerate() {
                if !normalise_column(values) {
                    draw(values, (seeds, begun), (matrix.tensor, column));
                }
            }
        }
    }
}

/// Draws a column of length 1. `begun` is the number of steps before which it is used for the first time.
fn draw(values: &mut [f32], (seeds, begun): (&SeedTree, u64), (tensor, column): (usize, usize)) {
    let coordinates = [begun, tensor as u64, column as u64];
    let stream = seeds.stream(Purpose::Compression, &coordinates);
    stream.fill_uniform(values);
    values.iter_mut().for_each(|value| *value -= 0.5);
    normalise_column(values);
}

/// The sum of one rank over a range of the flat state.
pub(crate) struct LowRankSum {
    rank: usize,
    elements: Range<usize>,
    matrices: Vec<FactoredMatrix>,
    /// The tensors that are sent as they are.
    whole: Vec<Range<usize>>,
    sum: TreeSum,
    /// The left factors, then the whole tensors, after their sum.
    left: Vec<f32>,
    in_flight: Option<Box<dyn Work>>,
}

impl LowRankSum {
    /// Creates the sum over a range that consists of whole tensors.
    pub(crate) fn new(
        state: &ModelState,
        elements: Range<usize>,
        factors: &LowRankFactors,
        senders: u32,
    ) -> Self {
        let inside = |range: &Range<usize>| elements.contains(&range.start);
        let matrices = factors.matrices.iter().filter(|m| inside(&m.elements));
        let matrices: Vec<FactoredMatrix> = matrices.cloned().collect();
        let is_whole = |range: &Range<usize>| matrices.iter().all(|m| m.elements != *range);
        let tensors = state.tensors().iter().map(|tensor| tensor.range.clone());
        let whole = tensors.filter(|range| inside(range) && is_whole(range));
        Self {
            rank: factors.rank,
            whole: whole.collect(),
            matrices,
            elements,
            sum: TreeSum::new(senders),
            left: Vec::new(),
            in_flight: None,
        }
    }

    /// Discards a sum.
    pub(crate) fn reset(&mut self) {
        self.sum.take();
        self.in_flight = None;
    }

    fn relative(&self, elements: &Range<usize>) -> Range<usize> {
        elements.start - self.elements.start..elements.end - self.elements.start
    }

    fn left_len(&self) -> usize {
        self.matrices.iter().map(|m| self.rank * m.rows).sum()
    }

    /// Adds the contribution of a sender, which has the elements of the range. Leaves its matrices in it, and zeros elsewhere.
    pub(crate) fn add(&mut self, sender: u32, contribution: &mut [f32], factors: &LowRankFactors) {
        let whole_len: usize = self.whole.iter().map(Range::len).sum();
        let mut buffer = Buffer::host(DType::F32, self.left_len() + whole_len);
        let mut rest = buffer.as_mut_slice::<f32>();
        for matrix in &self.matrices {
            let (left, after) = rest.split_at_mut(self.rank * matrix.rows);
            let values = &contribution[self.relative(&matrix.elements)];
            times_columns(
                values,
                &factors.values[matrix.factor.clone()],
                left,
                self.rank,
            );
            rest = after;
        }
        for whole in &self.whole {
            let (to, after) = rest.split_at_mut(whole.len());
            to.copy_from_slice(&contribution[self.relative(whole)]);
            rest = after;
        }
        let mut end = 0;
        for matrix in &self.matrices {
            let range = self.relative(&matrix.elements);
            contribution[end..range.start].fill(0.0);
            end = range.end;
        }
        contribution[end..].fill(0.0);
        self.sum.add_shard(sender, buffer);
    }

    /// Begins the sum of the left factors.
    pub(crate) fn start(
        &mut self,
        group: &dyn Group,
        senders: &ExactSum,
    ) -> Result<(), CollectiveError> {
        let whole_len: usize = self.whole.iter().map(Range::len).sum();
        let len = self.left_len() + whole_len;
        self.begin(group, senders, len)
    }

    fn begin(
        &mut self,
        group: &dyn Group,
        senders: &ExactSum,
        len: usize,
    ) -> Result<(), CollectiveError> {
        let buffer = joined(group, self.sum.take(), len, &mut Vec::new())?;
        self.in_flight = Some(group.start(Operation::ExactSum(senders.clone()), buffer)?);
        Ok(())
    }

    /// Waits for the left factors, makes their columns orthonormal, and begins the sum of the right factors. `sent` are the matrices of
    /// this rank's senders; leaves their errors in them. `None` if the sum was not started.
    pub(crate) fn gather(
        &mut self,
        group: &dyn Group,
        senders: &ExactSum,
        sent: &mut [(u32, Buffer)],
    ) -> Option<Result<(), CollectiveError>> {
        let received = self.in_flight.take()?.wait();
        Some(received.and_then(|received| {
            self.left = received.as_slice::<f32>().to_vec();
            let mut rest = self.left.as_mut_slice();
            for matrix in &self.matrices {
                let (left, after) = rest.split_at_mut(self.rank * matrix.rows);
                orthonormalise(left, self.rank);
                rest = after;
            }
            let len = self.matrices.iter().map(|m| m.factor.len()).sum();
            for (sender, contribution) in sent {
                let right = self.right_of(contribution.as_mut_slice(), len);
                self.sum.add_shard(*sender, right);
            }
            self.begin(group, senders, len)
        }))
    }

    /// Returns the right factors of a sender, and subtracts their product from its matrices.
    fn right_of(&self, contribution: &mut [f32], len: usize) -> Buffer {
        let mut buffer = Buffer::host(DType::F32, len);
        let (mut rest, mut lefts) = (buffer.as_mut_slice::<f32>(), self.left.as_slice());
        for matrix in &self.matrices {
            let (right, after) = rest.split_at_mut(matrix.factor.len());
            let (left, after_left) = lefts.split_at(self.rank * matrix.rows);
            let values = &mut contribution[self.relative(&matrix.elements)];
            transposed_times_columns(values, left, right, self.rank);
            add_column_products(values, -1.0, (left, right), self.rank);
            (rest, lefts) = (after, after_left);
        }
        buffer
    }

    /// Waits for the right factors. Writes the sum, which has the elements of the range, and the right factors to `factors`, those of
    /// all matrices. `None` if the sum is not under way.
    pub(crate) fn finish(
        &mut self,
        sum: &mut [f32],
        factors: &mut [f32],
    ) -> Option<Result<(), CollectiveError>> {
        let received = match self.in_flight.take()?.wait() {
            Ok(received) => received,
            Err(error) => return Some(Err(error)),
        };
        sum.fill(0.0);
        let (mut rights, mut lefts) = (received.as_slice::<f32>(), self.left.as_slice());
        for matrix in &self.matrices {
            let (right, after) = rights.split_at(matrix.factor.len());
            let (left, after_left) = lefts.split_at(self.rank * matrix.rows);
            let values = &mut sum[self.relative(&matrix.elements)];
            add_column_products(values, 1.0, (left, right), self.rank);
            factors[matrix.factor.clone()].copy_from_slice(right);
            (rights, lefts) = (after, after_left);
        }
        for whole in &self.whole {
            let (values, after) = lefts.split_at(whole.len());
            sum[self.relative(whole)].copy_from_slice(values);
            lefts = after;
        }
        Some(Ok(()))
    }
}
