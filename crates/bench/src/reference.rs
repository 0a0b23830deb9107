//! Reference results of operations, computed from all ranks' inputs, and the comparison with them.

use std::ops::Range;

use ronde_core::exact::{ExactSum, additions};
use ronde_core::{Buffer, DType, GroupRank, ReduceOp};

use crate::error::BenchError;
use crate::operation::{OperationKind, OperationShape};
use crate::values::{ElementSource, ReferenceElement, with_type};

/// The number of elements computed at a time, such that those of all ranks fit into a cache.
const BLOCK: usize = 4096;

/// The input of one rank for an operation, and its expected result.
pub(crate) struct ReferenceResult {
    shape: OperationShape,
    rank: usize,
    /// The input of the rank.
    pub(crate) input: Buffer,
    result: Buffer,
    tolerance: Tolerance,
}

/// The allowed deviation from the reference: `absolute + relative * |reference|`.
///
/// Inputs are at most 1 in size. A sum of `n` of them has `n - 1` roundings in any order, each with
/// an error of at most half an epsilon of a value up to `n`; with the rounding of the reference
/// that is less than `n^2` epsilons. The error of a mean is an n-th of it. The error of a product
/// of `n` is less than `n` epsilons of itself, and in f16, which has few small numbers, `n` of the
/// smallest. All other results, including integers and the exact sum, are unique.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tolerance {
    absolute: f64,
    relative: f64,
}

impl Tolerance {
    fn of(shape: &OperationShape) -> Self {
        let exact = Self {
            absolute: 0.0,
            relative: 0.0,
        };
        if !shape.kind.reduces() || !shape.dtype.is_float() {
            return exact;
        }
        let (n, eps) = (shape.ranks as f64, epsilon(shape.dtype));
        match shape.op {
            ReduceOp::Sum => Self {
                absolute: n * n * eps,
                relative: 0.0,
            },
            ReduceOp::Mean => Self {
                absolute: n * eps,
                relative: 0.0,
            },
            ReduceOp::Product => Self {
                absolute: if shape.dtype == DType::F16 {
                    n * 6e-8
                } else {
                    0.0
                },
                relative: n * eps,
            },
            _ => exact,
        }
    }
}

/// Returns the distance from 1 to the next number.
fn epsilon(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => f64::EPSILON,
        DType::F32 => f64::from(f32::EPSILON),
        DType::F16 => half::f16::EPSILON.to_f64(),
        DType::Bf16 => half::bf16::EPSILON.to_f64(),
        _ => 0.0,
    }
}

/// The source of a range of elements of a result.
enum ResultOrigin {
    /// These elements of all ranks, reduced.
    Reduced(Range<usize>),
    /// These elements of one rank.
    Copied(usize, Range<usize>),
    /// These elements of all ranks, added in the order of the exact sum's tree.
    Tree(Range<usize>),
}

impl ReferenceResult {
    /// Cost: one random number per element and rank whose elements take part.
    pub(crate) fn new(shape: OperationShape, rank: usize, source: ElementSource) -> Self {
        let (input, result) = with_type!(shape.dtype, both(&shape, rank, source));
        Self {
            shape,
            rank,
            input,
            result,
            tolerance: Tolerance::of(&shape),
        }
    }

    /// Compares a whole result with the reference.
    ///
    /// # Errors
    /// [`BenchError::WrongResult`] with the first wrong element, [`BenchError::WrongLength`].
    pub(crate) fn check(&self, got: &Buffer, case: &str) -> Result<(), BenchError> {
        if got.len() != self.result.len() {
            return Err(BenchError::WrongLength {
                case: case.to_owned(),
                rank: self.rank as u32,
                got: got.len(),
                expected: self.result.len(),
            });
        }
        with_type!(self.shape.dtype, compare(self, got, case))
    }
}

fn compare<T: ReferenceElement>(
    all: &ReferenceResult,
    got: &Buffer,
    case: &str,
) -> Result<(), BenchError> {
    let (got, expected) = (got.as_slice::<T>(), all.result.as_slice::<T>());
    let Tolerance { absolute, relative } = all.tolerance;
    let is_exact = absolute == 0.0 && relative == 0.0;
    let is_right = |got: T, expected: T| {
        let expected_f64 = expected.to_f64();
        got == expected
            || !is_exact
                && (got.to_f64() - expected_f64).abs() <= absolute + relative * expected_f64.abs()
    };
    let wrong = got
        .iter()
        .zip(expected)
        .position(|(&g, &e)| !is_right(g, e));
    let Some(element) = wrong else {
        return Ok(());
    };
    Err(BenchError::WrongResult {
        case: case.to_owned(),
        rank: all.rank as u32,
        element,
        len: got.len(),
        got: got[element].to_string(),
        expected: expected[element].to_string(),
        tolerance: if is_exact {
            "none".to_owned()
        } else {
            format!(
                "{:.3e}",
                absolute + relative * expected[element].to_f64().abs()
            )
        },
    })
}

fn both<T: ReferenceElement>(
    shape: &OperationShape,
    rank: usize,
    source: ElementSource,
) -> (Buffer, Buffer) {
    let mut input = Buffer::host(shape.dtype, shape.input_len(rank));
    source.fill::<T>(rank, 0, input.as_mut_slice());
    let origins = origins(shape, rank);
    let len = origins.iter().map(|origin| match origin {
        ResultOrigin::Reduced(range)
        | ResultOrigin::Tree(range)
        | ResultOrigin::Copied(_, range) => range.len(),
    });
    let mut result = Buffer::host(shape.dtype, len.sum());
    let mut rest = result.as_mut_slice::<T>();
    for origin in origins {
        match origin {
            ResultOrigin::Copied(rank, range) => {
                let (out, after) = rest.split_at_mut(range.len());
                source.fill(rank, range.start, out);
                rest = after;
            }
            ResultOrigin::Reduced(range) => {
                let (out, after) = rest.split_at_mut(range.len());
                reduce(shape, source, range.start, out);
                rest = after;
            }
            ResultOrigin::Tree(range) => {
                let (out, after) = rest.split_at_mut(range.len());
                add_in_tree_order(shape, source, range.start, out);
                rest = after;
            }
        }
    }
    (input, result)
}

fn origins(shape: &OperationShape, rank: usize) -> Vec<ResultOrigin> {
    let (len, part, n, root) = (shape.len(), shape.part(), shape.ranks, shape.root());
    let mine = rank * part..(rank + 1) * part;
    match shape.kind {
        OperationKind::AllReduce => vec![ResultOrigin::Reduced(0..len)],
        OperationKind::Reduce if rank == root => vec![ResultOrigin::Reduced(0..len)],
        OperationKind::Reduce | OperationKind::Barrier => Vec::new(),
        OperationKind::ReduceScatter => vec![ResultOrigin::Reduced(mine)],
        OperationKind::AllGather => (0..n).map(|p| ResultOrigin::Copied(p, 0..part)).collect(),
        OperationKind::Gather if rank == root => {
            (0..n).map(|p| ResultOrigin::Copied(p, 0..part)).collect()
        }
        OperationKind::Gather => vec![ResultOrigin::Copied(rank, 0..part)],
        OperationKind::Scatter => vec![ResultOrigin::Copied(root, mine)],
        OperationKind::Broadcast => vec![ResultOrigin::Copied(root, 0..len)],
        OperationKind::AllToAll => (0..n)
            .map(|p| ResultOrigin::Copied(p, mine.clone()))
            .collect(),
        OperationKind::AllToAllUnequal => {
            let from = |p: usize| {
                let start: usize = (0..rank).map(|before| shape.unequal_len(p, before)).sum();
                ResultOrigin::Copied(p, start..start + shape.unequal_len(p, rank))
            };
            (0..n).map(from).collect()
        }
        OperationKind::SendReceive => vec![ResultOrigin::Copied(0, 0..len)],
        OperationKind::ExactSum => vec![ResultOrigin::Tree(0..len)],
    }
}

fn reduce<T: ReferenceElement>(
    shape: &OperationShape,
    source: ElementSource,
    start: usize,
    out: &mut [T],
) {
    let mut drawn = [T::draw(0, shape.op); BLOCK];
    let mut wide: Vec<T::Wide> = Vec::with_capacity(BLOCK);
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        let drawn = &mut drawn[..out.len()];
        wide.clear();
        for rank in 0..shape.ranks {
            source.fill(rank, start + block * BLOCK, drawn);
            if rank == 0 {
                wide.extend(drawn.iter().map(|value| value.widen()));
            } else {
                for (wide, value) in wide.iter_mut().zip(&*drawn) {
                    *wide = T::combine(shape.op, *wide, value.widen());
                }
            }
        }
        for (out, wide) in out.iter_mut().zip(&wide) {
            *out = T::narrow(T::finish(shape.op, *wide, shape.ranks));
        }
    }
}

/// The exact sum: rounded to the type after every addition.
fn add_in_tree_order<T: ReferenceElement>(
    shape: &OperationShape,
    source: ElementSource,
    start: usize,
    out: &mut [T],
) {
    let Some(sum) = ExactSum::new((0..=shape.ranks as u32).collect()) else {
        return;
    };
    let ranks = 0..shape.ranks as u32;
    let nodes: Vec<_> = ranks.flat_map(|rank| sum.nodes(GroupRank(rank))).collect();
    let additions = additions(&nodes, sum.shards());
    let mut drawn = vec![vec![T::draw(0, ReduceOp::Sum); BLOCK]; shape.ranks];
    for (block, out) in out.chunks_mut(BLOCK).enumerate() {
        for (rank, drawn) in drawn.iter_mut().enumerate() {
            source.fill(rank, start + block * BLOCK, &mut drawn[..out.len()]);
        }
        for &(into, from) in &additions {
            if let Ok([into, from]) = drawn.get_disjoint_mut([into, from]) {
                for (into, from) in into.iter_mut().zip(&*from) {
                    let added = T::combine(ReduceOp::Sum, into.widen(), from.widen());
                    *into = T::narrow(added);
                }
            }
        }
        out.copy_from_slice(&drawn[0][..out.len()]);
    }
}

#[cfg(test)]
mod tests;
