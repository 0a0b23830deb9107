//! [`OperationKind`]: the operations that can be measured, and [`OperationShape`]: an operation
//! with ranks, type and length.

use std::fmt;
use std::str::FromStr;

use ronde_core::exact::ExactSum;
use ronde_core::{DType, GroupRank, Operation, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// An operation that can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationKind {
    /// Every rank gets the reduction of all buffers.
    AllReduce,
    /// Rank 0 gets the reduction of all buffers.
    Reduce,
    /// Each rank gets its part of the reduction.
    ReduceScatter,
    /// Every rank gets all parts.
    AllGather,
    /// Rank 0 gets all parts.
    Gather,
    /// The last rank's parts go to all ranks.
    Scatter,
    /// The last rank's buffer goes to all ranks.
    Broadcast,
    /// Each rank sends a part of equal length to each rank.
    AllToAll,
    /// Each rank sends a part to each rank, with lengths that differ by up to a factor of `n`.
    AllToAllUnequal,
    /// All ranks arrive before any rank continues.
    Barrier,
    /// A message from rank 0 to rank 1 and back; the time is half of that.
    SendReceive,
    /// The sum in tree order, with one shard per rank.
    ExactSum,
}

impl OperationKind {
    /// All operations.
    pub const ALL: [Self; 12] = [
        Self::AllReduce,
        Self::Reduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Gather,
        Self::Scatter,
        Self::Broadcast,
        Self::AllToAll,
        Self::AllToAllUnequal,
        Self::Barrier,
        Self::SendReceive,
        Self::ExactSum,
    ];

    /// Returns the name used in arguments, tables and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::Broadcast => "broadcast",
            Self::AllToAll => "all_to_all",
            Self::AllToAllUnequal => "all_to_all_unequal",
            Self::Barrier => "barrier",
            Self::SendReceive => "send_receive",
            Self::ExactSum => "exact_sum",
        }
    }

    /// Returns the operations in a list of names; `all` means every one, an empty list for
    /// `all_reduce`.
    ///
    /// # Errors
    /// [`BenchError::Setting`] for an unknown name.
    pub fn parse_list(names: &[String]) -> Result<Vec<Self>, BenchError> {
        if names.is_empty() {
            return Ok(vec![Self::AllReduce]);
        }
        let mut kinds = Vec::new();
        for name in names {
            let more = if name == "all" {
                Self::ALL.to_vec()
            } else {
                vec![name.parse()?]
            };
            for kind in more {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
        }
        Ok(kinds)
    }

    /// Returns whether elements are reduced, so that the operator matters.
    #[must_use]
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter)
    }

    /// Returns whether calls may follow each other without a barrier: no rank can be ahead of
    /// another one by more than one call, and buffers keep their lengths.
    #[must_use]
    pub fn is_back_to_back(self) -> bool {
        matches!(self, Self::AllReduce | Self::ExactSum | Self::Barrier)
    }

    /// Returns the name of the implementation without a choice of algorithms.
    #[must_use]
    pub fn one_way(self) -> &'static str {
        match self {
            Self::Barrier => "dissemination",
            Self::SendReceive => "message",
            _ => "direct",
        }
    }

    /// Returns the factor from algorithm bandwidth to bus bandwidth for `n` ranks, as defined by
    /// nccl-tests (`doc/PERFORMANCE.md` there): the rate at which the busiest link would have to
    /// run, comparable between numbers of ranks.
    #[must_use]
    pub fn bus_factor(self, n: usize) -> f64 {
        let n = n as f64;
        match self {
            Self::AllReduce | Self::ExactSum => 2.0 * (n - 1.0) / n,
            Self::ReduceScatter
            | Self::AllGather
            | Self::Gather
            | Self::Scatter
            | Self::AllToAll
            | Self::AllToAllUnequal => (n - 1.0) / n,
            Self::Reduce | Self::Broadcast | Self::SendReceive => 1.0,
            Self::Barrier => 0.0,
        }
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for OperationKind {
    type Err = BenchError;

    fn from_str(name: &str) -> Result<Self, BenchError> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
            BenchError::Setting {
                what: "OPERATION",
                problem: format!(
                    "unknown operation `{name}`: expected all, {}",
                    known.join(", ")
                ),
            }
        })
    }
}

/// One operation on a number of ranks with elements of one type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationShape {
    /// The operation.
    pub kind: OperationKind,
    /// The reduction operator, where it matters.
    pub op: ReduceOp,
    /// The type of the elements.
    pub dtype: DType,
    /// The number of ranks.
    pub ranks: usize,
    /// The number of elements of the smallest part; the whole is a multiple of it.
    unit: usize,
}

impl OperationShape {
    /// Returns the largest such operation on at most `bytes` bytes, or the smallest possible one.
    /// Bytes are counted as in nccl-tests: the whole buffer of the operation, that is all parts of
    /// all ranks where there are parts.
    #[must_use]
    pub fn new(
        kind: OperationKind,
        op: ReduceOp,
        dtype: DType,
        ranks: usize,
        bytes: usize,
    ) -> Self {
        let mut shape = Self {
            kind,
            op,
            dtype,
            ranks,
            unit: 1,
        };
        if kind != OperationKind::Barrier {
            shape.unit = (bytes / dtype.size() / shape.units()).max(1);
        }
        shape
    }

    /// Returns the number of units of the whole.
    fn units(&self) -> usize {
        match self.kind {
            OperationKind::ReduceScatter
            | OperationKind::AllGather
            | OperationKind::Gather
            | OperationKind::Scatter
            | OperationKind::AllToAll => self.ranks,
            // Parts of 1 to n units.
            OperationKind::AllToAllUnequal => self.ranks * (self.ranks + 1) / 2,
            _ => 1,
        }
    }

    /// Returns the number of elements of the whole.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.kind {
            OperationKind::Barrier => 0,
            _ => self.unit * self.units(),
        }
    }

    /// Returns whether it is empty, as in a barrier.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the size of the whole in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype.size()
    }

    /// Returns the number of elements of one rank's part where all parts are equal.
    #[must_use]
    pub fn part(&self) -> usize {
        self.unit
    }

    /// Returns the root rank, which sends to or receives from all others. Rank 0 always receives,
    /// because the time is measured there.
    #[must_use]
    pub fn root(&self) -> usize {
        match self.kind {
            OperationKind::Scatter | OperationKind::Broadcast => self.ranks - 1,
            _ => 0,
        }
    }

    /// Returns the number of elements from one rank to another in an unequal all-to-all, equal in
    /// both directions.
    #[must_use]
    pub fn unequal_len(&self, from: usize, to: usize) -> usize {
        self.unit * (1 + (from + to) % self.ranks)
    }

    /// Returns the number of elements that a rank contributes.
    #[must_use]
    pub fn input_len(&self, rank: usize) -> usize {
        match self.kind {
            OperationKind::AllGather | OperationKind::Gather => self.unit,
            OperationKind::Scatter if rank != self.root() => self.unit,
            _ => self.len(),
        }
    }

    /// Returns the call of a rank; `None` for messages, which are not a collective.
    #[must_use]
    pub fn operation(&self, rank: usize) -> Option<Operation> {
        let (op, root) = (self.op, GroupRank(self.root() as u32));
        Some(match self.kind {
            OperationKind::AllReduce => Operation::AllReduce(op),
            OperationKind::Reduce => Operation::Reduce { op, root },
            OperationKind::ReduceScatter => Operation::ReduceScatter(op),
            OperationKind::AllGather => Operation::AllGather,
            OperationKind::Gather => Operation::Gather { root },
            OperationKind::Scatter => Operation::Scatter { root },
            OperationKind::Broadcast => Operation::Broadcast { root },
            OperationKind::AllToAll => Operation::AllToAll,
            OperationKind::AllToAllUnequal => {
                let lens: Vec<usize> = (0..self.ranks)
                    .map(|peer| self.unequal_len(rank, peer))
                    .collect();
                Operation::AllToAllUnequal {
                    send_lens: lens.clone(),
                    receive_lens: lens,
                }
            }
            OperationKind::Barrier => Operation::Barrier,
            OperationKind::SendReceive => return None,
            OperationKind::ExactSum => Operation::ExactSum(one_shard_a_rank(self.ranks)?),
        })
    }

    /// Returns the reason why the operation is not possible; `None` when it is.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        if self.kind.reduces() {
            return self.op.refusal(self.dtype);
        }
        let exact = self.kind == OperationKind::ExactSum;
        (exact && !matches!(self.dtype, DType::F32 | DType::F64))
            .then(|| format!("the exact sum needs f32 or f64, not {}", self.dtype))
    }
}

/// Returns an exact sum with one logical shard per rank.
fn one_shard_a_rank(ranks: usize) -> Option<ExactSum> {
    ExactSum::new((0..=ranks as u32).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        for (kind, two, four) in [
            (OperationKind::AllReduce, 1.0, 1.5),
            (OperationKind::ExactSum, 1.0, 1.5),
            (OperationKind::AllGather, 0.5, 0.75),
            (OperationKind::ReduceScatter, 0.5, 0.75),
            (OperationKind::AllToAll, 0.5, 0.75),
            (OperationKind::Gather, 0.5, 0.75),
            (OperationKind::Broadcast, 1.0, 1.0),
            (OperationKind::Reduce, 1.0, 1.0),
            (OperationKind::SendReceive, 1.0, 1.0),
        ] {
            assert_eq!((kind.bus_factor(2), kind.bus_factor(4)), (two, four));
        }
    }

    #[test]
    fn names_are_read_back_and_lists_have_no_repetition() {
        for kind in OperationKind::ALL {
            assert_eq!(kind.name().parse::<OperationKind>().unwrap(), kind);
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
        }
        let list = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            OperationKind::parse_list(&names)
        };
        assert_eq!(list(&[]).unwrap(), [OperationKind::AllReduce]);
        assert_eq!(list(&["reduce", "all"]).unwrap().len(), 12);
        let error = list(&["allreduce"]).unwrap_err().to_string();
        assert!(error.contains("unknown operation `allreduce`: expected all, all_reduce"));
    }

    #[test]
    fn shapes_are_cut_without_remainder() {
        for kind in OperationKind::ALL {
            for ranks in [2, 3, 5] {
                for bytes in [1, 8, 100, 4096] {
                    let shape = OperationShape::new(kind, ReduceOp::Sum, DType::F32, ranks, bytes);
                    assert_eq!(shape.len() % shape.units(), 0);
                    assert!(shape.bytes() <= bytes.max(4 * shape.units()), "{shape:?}");
                    assert!(shape.input_len(1) <= shape.len());
                    assert_eq!(shape.is_empty(), kind == OperationKind::Barrier);
                    if kind == OperationKind::AllToAllUnequal {
                        let sum: usize = (0..ranks).map(|to| shape.unequal_len(1, to)).sum();
                        assert_eq!(sum, shape.len());
                    }
                }
            }
        }
    }

    #[test]
    fn impossible_types_are_refused() {
        let refusal = |kind, op, dtype| {
            OperationShape::new(kind, op, dtype, 2, 64)
                .refusal()
                .unwrap_or_default()
        };
        use OperationKind::{AllGather, AllReduce, ExactSum};
        assert!(refusal(AllReduce, ReduceOp::Mean, DType::I32).contains("mean"));
        assert!(refusal(ExactSum, ReduceOp::Sum, DType::Bf16).contains("exact sum"));
        assert_eq!(refusal(AllGather, ReduceOp::Xor, DType::F32), "");
    }
}
