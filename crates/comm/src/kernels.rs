//! Reduction kernels: plain loops over two runs of elements, compiled for several instruction sets.
//!
//! Every instruction set gives the same bits: no fused operations, every result is rounded once, and NaNs
//! are canonical, so that not even their payload depends on the machine.

mod elements;
mod extremes;
mod halves;
mod instructions;
#[cfg(test)]
mod tests;

use half::{bf16, f16};
use ronde_core::{Buffer, CollectiveError, DType, ReduceOp};

use crate::program::{check_memory, invalid};
use elements::{
    AndOp, DivideLoop, ElementLoop, ElementPairLoop, MaxOp, MinOp, OrOp, ProductOp, SumOp, XorOp,
};
use extremes::{ExtremeLoop, HalfFormat};
use halves::HalfLoop;
use instructions::{InstructionSet, run};

/// Size up to which selecting the best instructions takes longer than they save, in bytes.
const FEW_BYTES: usize = 64;

/// Computes `into = into op other` for two buffers of this process, as a collective does for two operands.
///
/// A mean is only summed; the division follows once, after all operands. Cost: one pass at the speed of
/// memory.
///
/// # Errors
/// [`CollectiveError::Invalid`] for buffers of different lengths or types, in device memory or not
/// aligned, and for operators that the type does not support.
pub fn reduce_local(
    op: ReduceOp,
    into: &mut Buffer,
    other: &Buffer,
) -> Result<(), CollectiveError> {
    const NAME: &str = "reduce_local";
    let dtype = into.dtype();
    if dtype != other.dtype() || into.len() != other.len() {
        return Err(invalid(NAME, format!("{into:?} and {other:?}")));
    }
    check_memory(NAME, into)?;
    check_memory(NAME, other)?;
    if let Some(problem) = op.refusal(dtype) {
        return Err(invalid(NAME, problem));
    }
    reduce(dtype, op, into.bytes_mut(), other.bytes(), true);
    Ok(())
}

/// Computes `into = into op other`, or `other op into` when `into_is_left` is false; a mean is summed here
/// and divided by [`divide`] at the end.
///
/// Both are whole elements of `dtype`, aligned, of one length. Integers wrap; f16 and bf16 are
/// computed in f32 and rounded once; the minimum or maximum of any value and NaN is NaN, and of equal
/// values the left one.
pub(crate) fn reduce(
    dtype: DType,
    op: ReduceOp,
    into: &mut [u8],
    other: &[u8],
    into_is_left: bool,
) {
    let by = if into.len() <= FEW_BYTES {
        InstructionSet::Plain
    } else {
        InstructionSet::best()
    };
    reduce_by(by, dtype, op, into, other, into_is_left);
}

fn reduce_by(
    by: InstructionSet,
    dtype: DType,
    op: ReduceOp,
    into: &mut [u8],
    other: &[u8],
    into_is_left: bool,
) {
    match dtype {
        DType::F64 => floats::<f64>(by, op, into, other, into_is_left),
        DType::F32 => floats::<f32>(by, op, into, other, into_is_left),
        DType::F16 => halves(by, op, into, other, into_is_left),
        DType::Bf16 => pairs(by, op, into, other, into_is_left),
        DType::I64 => integers::<i64>(by, op, into, other),
        DType::I32 => integers::<i32>(by, op, into, other),
        DType::U32 => integers::<u32>(by, op, into, other),
        DType::U8 => integers::<u8>(by, op, into, other),
    }
}

/// Divides every element by `count`, which turns a sum into a mean. Integers are not changed.
pub(crate) fn divide(dtype: DType, values: &mut [u8], count: usize) {
    let by = InstructionSet::best();
    match dtype {
        DType::F64 => run(by, DivideLoop::<f64>::new(values, count as f64)),
        DType::F32 => run(by, DivideLoop::<f32>::new(values, count as f32)),
        DType::F16 => run(by, DivideLoop::<f16>::new(values, count as f32)),
        DType::Bf16 => run(by, DivideLoop::<bf16>::new(values, count as f32)),
        DType::I64 | DType::I32 | DType::U32 | DType::U8 => {}
    }
}

/// Expands to `$run!(operator)` for the operator of a float.
macro_rules! by_operator {
    ($op:expr, $into_is_left:expr, $run:ident) => {
        match ($op, $into_is_left) {
            (ReduceOp::Product, _) => $run!(ProductOp),
            (ReduceOp::Min, true) => $run!(MinOp<true>),
            (ReduceOp::Min, false) => $run!(MinOp<false>),
            (ReduceOp::Max, true) => $run!(MaxOp<true>),
            (ReduceOp::Max, false) => $run!(MaxOp<false>),
            // Bitwise operators of floats are refused earlier.
            _ => $run!(SumOp),
        }
    };
}

fn floats<T: elements::FloatElement>(
    by: InstructionSet,
    op: ReduceOp,
    into: &mut [u8],
    other: &[u8],
    into_is_left: bool,
) {
    macro_rules! each {
        ($o:ty) => {
            run(by, ElementLoop::<T, $o>::new(into, other))
        };
    }
    by_operator!(op, into_is_left, each);
}

/// Computes the minimum or maximum of 16-bit floats; returns false for other operators.
fn extremes<F: HalfFormat>(
    by: InstructionSet,
    op: ReduceOp,
    into: &mut [u8],
    other: &[u8],
    into_is_left: bool,
) -> bool {
    match (op, into_is_left) {
        (ReduceOp::Min, true) => run(by, ExtremeLoop::<F, false, true>::new(into, other)),
        (ReduceOp::Min, false) => run(by, ExtremeLoop::<F, false, false>::new(into, other)),
        (ReduceOp::Max, true) => run(by, ExtremeLoop::<F, true, true>::new(into, other)),
        (ReduceOp::Max, false) => run(by, ExtremeLoop::<F, true, false>::new(into, other)),
        _ => return false,
    }
    true
}

fn pairs(by: InstructionSet, op: ReduceOp, into: &mut [u8], other: &[u8], into_is_left: bool) {
    if extremes::<bf16>(by, op, into, other, into_is_left) {
        return;
    }
    macro_rules! each {
        ($o:ty) => {
            run(by, ElementPairLoop::<bf16, $o>::new(into, other))
        };
    }
    match op {
        ReduceOp::Product => each!(ProductOp),
        _ => each!(SumOp),
    }
}

fn halves(by: InstructionSet, op: ReduceOp, into: &mut [u8], other: &[u8], into_is_left: bool) {
    if extremes::<f16>(by, op, into, other, into_is_left) {
        return;
    }
    match op {
        ReduceOp::Product => HalfLoop::<ProductOp>::new(into, other).run_by(by),
        _ => HalfLoop::<SumOp>::new(into, other).run_by(by),
    }
}

fn integers<T: elements::IntegerElement>(
    by: InstructionSet,
    op: ReduceOp,
    into: &mut [u8],
    other: &[u8],
) {
    match op {
        ReduceOp::And => run(by, ElementLoop::<T, AndOp>::new(into, other)),
        ReduceOp::Or => run(by, ElementLoop::<T, OrOp>::new(into, other)),
        ReduceOp::Xor => run(by, ElementLoop::<T, XorOp>::new(into, other)),
        ReduceOp::Product => run(by, ElementLoop::<T, ProductOp>::new(into, other)),
        ReduceOp::Min => run(by, ElementLoop::<T, MinOp<true>>::new(into, other)),
        ReduceOp::Max => run(by, ElementLoop::<T, MaxOp<true>>::new(into, other)),
        // A mean of integers is refused earlier.
        ReduceOp::Sum | ReduceOp::Mean => run(by, ElementLoop::<T, SumOp>::new(into, other)),
    }
}
