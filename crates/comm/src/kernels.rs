//! Reduction kernels: plain loops over two runs of elements, which the compiler vectorises.

use bytemuck::Pod;
use half::{bf16, f16};
use ronde_core::{DType, ReduceOp};

/// `into = into op other`, or `other op into` when `into_is_left` is false.
///
/// Both are whole elements of `dtype`, aligned, of one length. Integers wrap; f16 and bf16 are
/// computed in f32 and rounded once; the smallest and largest of anything and NaN is NaN.
pub(crate) fn reduce(
    dtype: DType,
    op: ReduceOp,
    into: &mut [u8],
    other: &[u8],
    into_is_left: bool,
) {
    match dtype {
        DType::F64 => floats::<f64>(op, into, other, into_is_left),
        DType::F32 => floats::<f32>(op, into, other, into_is_left),
        DType::F16 => floats::<f16>(op, into, other, into_is_left),
        DType::Bf16 => floats::<bf16>(op, into, other, into_is_left),
        DType::I64 => integers::<i64>(op, into, other),
        DType::I32 => integers::<i32>(op, into, other),
        DType::U32 => integers::<u32>(op, into, other),
        DType::U8 => integers::<u8>(op, into, other),
    }
}

trait Float: Pod {
    type Wide: Copy
        + PartialOrd
        + std::ops::Add<Output = Self::Wide>
        + std::ops::Mul<Output = Self::Wide>;
    fn wide(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
}

macro_rules! float {
    ($($float:ty, $wide:ty, $to:expr, $from:expr;)*) => { $(
        impl Float for $float {
            type Wide = $wide;
            #[inline(always)]
            fn wide(self) -> $wide { $to(self) }
            #[inline(always)]
            fn narrow(wide: $wide) -> Self { $from(wide) }
        }
    )* };
}
float! {
    f64, f64, std::convert::identity, std::convert::identity;
    f32, f32, std::convert::identity, std::convert::identity;
    f16, f32, f16::to_f32, f16::from_f32;
    bf16, f32, bf16::to_f32, bf16::from_f32;
}

/// The one that `before` prefers, the left one of equals; NaN when either is.
#[inline(always)]
#[expect(clippy::eq_op, reason = "only a NaN differs from itself")]
fn pick<W: Copy + PartialOrd>(left: W, right: W, before: impl Fn(&W, &W) -> bool) -> W {
    if left != left {
        left
    } else if right != right || before(&right, &left) {
        right
    } else {
        left
    }
}

fn floats<T: Float>(op: ReduceOp, into: &mut [u8], other: &[u8], into_is_left: bool) {
    let (into, other) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(other));
    // Sums and products of two numbers do not depend on their order.
    match op {
        ReduceOp::Sum => each::<T>(into, other, |a, b| T::narrow(a.wide() + b.wide())),
        ReduceOp::Product => each::<T>(into, other, |a, b| T::narrow(a.wide() * b.wide())),
        ReduceOp::Min if into_is_left => each::<T>(into, other, min),
        ReduceOp::Min => each::<T>(into, other, |a, b| min(b, a)),
        ReduceOp::Max if into_is_left => each::<T>(into, other, max),
        ReduceOp::Max => each::<T>(into, other, |a, b| max(b, a)),
    }
}

#[inline(always)]
fn min<T: Float>(left: T, right: T) -> T {
    T::narrow(pick(left.wide(), right.wide(), |a, b| a < b))
}

#[inline(always)]
fn max<T: Float>(left: T, right: T) -> T {
    T::narrow(pick(left.wide(), right.wide(), |a, b| a > b))
}

trait Integer: Pod + Ord {
    fn sum(self, other: Self) -> Self;
    fn product(self, other: Self) -> Self;
}

macro_rules! integer {
    ($($integer:ty),*) => { $(
        impl Integer for $integer {
            #[inline(always)]
            fn sum(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn product(self, other: Self) -> Self { self.wrapping_mul(other) }
        }
    )* };
}
integer!(i64, i32, u32, u8);

fn integers<T: Integer>(op: ReduceOp, into: &mut [u8], other: &[u8]) {
    let (into, other) = (bytemuck::cast_slice_mut(into), bytemuck::cast_slice(other));
    match op {
        ReduceOp::Sum => each::<T>(into, other, T::sum),
        ReduceOp::Product => each::<T>(into, other, T::product),
        ReduceOp::Min => each::<T>(into, other, Ord::min),
        ReduceOp::Max => each::<T>(into, other, Ord::max),
    }
}

#[inline(always)]
fn each<T: Copy>(into: &mut [T], other: &[T], f: impl Fn(T, T) -> T) {
    for (into, &other) in into.iter_mut().zip(other) {
        *into = f(*into, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two<T: Pod>(dtype: DType, op: ReduceOp, left: T, right: T) -> [T; 2] {
        let mut one = [left];
        reduce(
            dtype,
            op,
            bytemuck::cast_slice_mut(&mut one),
            bytemuck::bytes_of(&right),
            true,
        );
        let mut other = [right];
        reduce(
            dtype,
            op,
            bytemuck::cast_slice_mut(&mut other),
            bytemuck::bytes_of(&left),
            false,
        );
        [one[0], other[0]]
    }

    #[test]
    fn nan_wins_and_order_is_kept() {
        for op in [
            ReduceOp::Min,
            ReduceOp::Max,
            ReduceOp::Sum,
            ReduceOp::Product,
        ] {
            for (left, right) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
                assert!(two(DType::F32, op, left, right).iter().all(|x| x.is_nan()));
                let (l, r) = (bf16::from_f32(left), bf16::from_f32(right));
                assert!(two(DType::Bf16, op, l, r).iter().all(|x| x.is_nan()));
            }
        }
        for result in two(DType::F32, ReduceOp::Min, 0.0_f32, -0.0) {
            assert!(result.is_sign_positive(), "the left one of equals");
        }
        assert_eq!(two(DType::F64, ReduceOp::Max, 2.0_f64, 3.0), [3.0; 2]);
    }

    #[test]
    fn integers_wrap_and_halves_round_to_even() {
        assert_eq!(two(DType::U8, ReduceOp::Sum, 250_u8, 10), [4; 2]);
        assert_eq!(two(DType::I32, ReduceOp::Product, i32::MAX, 2), [-2; 2]);
        assert_eq!(two(DType::I64, ReduceOp::Min, -5_i64, 3), [-5; 2]);
        assert_eq!(two(DType::U32, ReduceOp::Max, 7_u32, 9), [9; 2]);
        let (big, tie) = (bf16::from_f32(256.0), bf16::from_f32(1.0));
        assert_eq!(two(DType::Bf16, ReduceOp::Sum, big, tie), [big; 2]);
        let (big, tie) = (f16::from_f32(2048.0), f16::from_f32(1.0));
        assert_eq!(two(DType::F16, ReduceOp::Sum, big, tie), [big; 2]);
    }
}
