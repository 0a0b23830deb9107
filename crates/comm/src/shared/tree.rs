//! [`ReductionTree`]: the order in which operands are added, and the reduction of byte ranges along it.

use ronde_core::buffer::ALIGNMENT;
use ronde_core::exact::{self, ExactSum};
use ronde_core::{DType, GroupRank, ReduceOp};

use super::mapping::Span;
use crate::kernels;

/// Total size of the operands that are reduced and passed on before the next ones, in bytes: they
/// stay in the first-level cache.
const NEAR_BYTES: usize = 32 << 10;
/// Minimum and maximum size of one operand's block, in bytes.
const BLOCK_BYTES: std::ops::RangeInclusive<usize> = 2 << 10..=16 << 10;

/// The order of a reduction over all ranks.
#[derive(Debug)]
pub(super) struct ReductionTree {
    /// Rank of each operand, and its index among that rank's operands.
    pub(super) operands: Vec<(usize, usize)>,
    /// `into += from`, indices of operands; the result ends in operand 0.
    pub(super) additions: Vec<(usize, usize)>,
    /// Maximum number of operands of one rank.
    pub(super) operands_max: usize,
}

impl ReductionTree {
    /// Returns the order for one operand per rank, added in the order of ranks.
    pub(super) fn chain(size: usize) -> Self {
        Self {
            operands: (0..size).map(|rank| (rank, 0)).collect(),
            additions: (1..size).map(|rank| (0, rank)).collect(),
            operands_max: 1,
        }
    }

    /// Returns the fixed tree of an exact sum.
    pub(super) fn exact(sum: &ExactSum) -> Self {
        let (mut operands, mut nodes, mut operands_max) = (Vec::new(), Vec::new(), 0);
        for rank in 0..sum.size() {
            let of_rank = sum.nodes(GroupRank(rank as u32));
            operands_max = operands_max.max(of_rank.len());
            operands.extend((0..of_rank.len()).map(|place| (rank, place)));
            nodes.extend(of_rank);
        }
        let additions = exact::additions(&nodes, sum.shards());
        Self {
            operands,
            additions,
            operands_max,
        }
    }
}

impl ReductionTree {
    /// Returns whether each rank has one operand and they are added in the order of ranks.
    pub(super) fn is_chain(&self) -> bool {
        let chain = (1..).map(|rank| (0, rank));
        self.operands_max == 1
            && self
                .additions
                .iter()
                .copied()
                .eq(chain.take(self.additions.len()))
    }

    /// Returns the number of operands of a rank.
    pub(super) fn brought(&self, rank: usize) -> usize {
        self.operands.iter().filter(|(of, _)| *of == rank).count()
    }
}

/// The function that combines two runs of elements.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReduceKernel {
    pub(super) dtype: DType,
    /// `None` for the sum with canonical NaNs.
    pub(super) op: Option<ReduceOp>,
}

impl ReduceKernel {
    pub(super) fn apply(self, into: &mut [u8], from: &[u8]) {
        // The exact sum adds like the plain one; the test of the kernels compares the bits.
        let op = self.op.unwrap_or(ReduceOp::Sum);
        kernels::reduce(self.dtype, op, into, from, true);
    }
}

/// Reduces operands of one length along a tree, in place, and copies the result to `results`.
///
/// With a `seed`, operand 0 is first copied there and the sum is computed there, so that its own
/// memory is only read.
pub(super) fn reduce(
    operands: &[Span<'_>],
    additions: &[(usize, usize)],
    seed: Option<Span<'_>>,
    results: &[Span<'_>],
    kernel: ReduceKernel,
) {
    let bytes = operands[0].len();
    let each = (NEAR_BYTES / operands.len()).next_multiple_of(ALIGNMENT);
    let each = each.clamp(*BLOCK_BYTES.start(), *BLOCK_BYTES.end());
    let mut start = 0;
    while start < bytes {
        let block = start..bytes.min(start + each);
        let root = match seed {
            None => operands[0].part(block.clone()),
            Some(seed) => {
                let seed = seed.part(block.clone());
                seed.copy_from(operands[0].part(block.clone()));
                seed
            }
        };
        for &(into, from) in additions {
            let into = if into == 0 {
                root
            } else {
                operands[into].part(block.clone())
            };
            into.combine(operands[from].part(block.clone()), |into, from| {
                kernel.apply(into, from)
            });
        }
        for result in results {
            let result = result.part(block.clone());
            if !result.same_place(root) {
                result.copy_from(root);
            }
        }
        start = block.end;
    }
}
