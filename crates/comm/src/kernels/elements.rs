//! Elements, operators on two of them, and the loops over runs of them.

use std::marker::PhantomData;

use bytemuck::Pod;
use half::{bf16, f16};

use super::instructions::VectorLoop;

/// A floating-point element and the type that it is computed in.
pub(super) trait FloatElement:
    Pod
    + ElementOperator<SumOp>
    + ElementOperator<ProductOp>
    + ElementOperator<MinOp<true>>
    + ElementOperator<MinOp<false>>
    + ElementOperator<MaxOp<true>>
    + ElementOperator<MaxOp<false>>
{
    /// Returns `self / divisor`, rounded once.
    fn divided(self, divisor: Self::Wide) -> Self;
    /// Type of the divisor.
    type Wide: Copy;
}

/// An integer element.
pub(super) trait IntegerElement:
    Pod
    + ElementOperator<SumOp>
    + ElementOperator<ProductOp>
    + ElementOperator<MinOp<true>>
    + ElementOperator<MaxOp<true>>
    + ElementOperator<AndOp>
    + ElementOperator<OrOp>
    + ElementOperator<XorOp>
{
}

/// An element to which operator `O` applies; the result replaces the first operand.
pub(super) trait ElementOperator<O>: Pod {
    /// Returns the result. Must be `#[inline(always)]`.
    fn apply(into: Self, other: Self) -> Self;
}

/// Sum; integers wrap.
pub(super) struct SumOp;
/// Product; integers wrap.
pub(super) struct ProductOp;
/// The smaller one; of equal ones the first operand when `KEEP`.
pub(super) struct MinOp<const KEEP: bool>;
/// The larger one; of equal ones the first operand when `KEEP`.
pub(super) struct MaxOp<const KEEP: bool>;
/// Bitwise and.
pub(super) struct AndOp;
/// Bitwise or.
pub(super) struct OrOp;
/// Bitwise exclusive or.
pub(super) struct XorOp;

macro_rules! canonical {
    ($t:ty, $value:expr) => {{
        let value: $t = $value;
        if value.is_nan() { <$t>::NAN } else { value }
    }};
}

macro_rules! wide_float {
    ($($t:ty),*) => { $(
        impl ElementOperator<SumOp> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t { canonical!($t, into + other) }
        }
        impl ElementOperator<ProductOp> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t { canonical!($t, into * other) }
        }
        impl<const KEEP: bool> ElementOperator<MinOp<KEEP>> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t {
                let (left, right) = if KEEP { (into, other) } else { (other, into) };
                let smaller = if right < left { right } else { left };
                if left.is_nan() | right.is_nan() { <$t>::NAN } else { smaller }
            }
        }
        impl<const KEEP: bool> ElementOperator<MaxOp<KEEP>> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t {
                let (left, right) = if KEEP { (into, other) } else { (other, into) };
                let larger = if right > left { right } else { left };
                if left.is_nan() | right.is_nan() { <$t>::NAN } else { larger }
            }
        }
        impl FloatElement for $t {
            type Wide = $t;
            #[inline(always)]
            fn divided(self, divisor: $t) -> $t {
                canonical!($t, self / divisor)
            }
        }
    )* };
}

wide_float!(f32, f64);

impl<O> ElementOperator<O> for bf16
where
    f32: ElementOperator<O>,
{
    #[inline(always)]
    fn apply(into: Self, other: Self) -> Self {
        narrow(f32::apply(widen(into), widen(other)))
    }
}

impl FloatElement for bf16 {
    type Wide = f32;
    #[inline(always)]
    fn divided(self, divisor: f32) -> Self {
        narrow(widen(self) / divisor)
    }
}

impl<O> ElementOperator<O> for f16
where
    f32: ElementOperator<O>,
{
    #[inline(always)]
    fn apply(into: Self, other: Self) -> Self {
        Self::from_f32(f32::apply(into.to_f32(), other.to_f32()))
    }
}

impl FloatElement for f16 {
    type Wide = f32;
    #[inline(always)]
    fn divided(self, divisor: f32) -> Self {
        Self::from_f32(f32::divided(self.to_f32(), divisor))
    }
}

#[inline(always)]
fn widen(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

#[inline(always)]
fn narrow(value: f32) -> bf16 {
    bf16::from_bits((rounded(value) >> 16) as u16)
}

/// Returns the bits of a number whose upper half is that number rounded to bf16: to nearest, ties to even.
/// Any NaN becomes the canonical one.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    const CANONICAL_NAN: u32 = 0x7fc0_0000;
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    if value.is_nan() {
        CANONICAL_NAN
    } else {
        rounded
    }
}

macro_rules! integer {
    ($($t:ty),*) => { $(
        impl ElementOperator<SumOp> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t { into.wrapping_add(other) }
        }
        impl ElementOperator<ProductOp> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t { into.wrapping_mul(other) }
        }
        impl ElementOperator<MinOp<true>> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t { into.min(other) }
        }
        impl ElementOperator<MaxOp<true>> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t { into.max(other) }
        }
        impl ElementOperator<AndOp> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t { into & other }
        }
        impl ElementOperator<OrOp> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t { into | other }
        }
        impl ElementOperator<XorOp> for $t {
            #[inline(always)]
            fn apply(into: $t, other: $t) -> $t { into ^ other }
        }
        impl IntegerElement for $t {}
    )* };
}
integer!(i64, i32, u32, u8);

/// `into = into O other`, element by element.
pub(super) struct ElementLoop<'a, T, O> {
    into: &'a mut [T],
    other: &'a [T],
    operator: PhantomData<O>,
}

impl<'a, T: Pod, O> ElementLoop<'a, T, O> {
    pub(super) fn new(into: &'a mut [u8], other: &'a [u8]) -> Self {
        Self {
            into: bytemuck::cast_slice_mut(into),
            other: bytemuck::cast_slice(other),
            operator: PhantomData,
        }
    }
}

impl<T: ElementOperator<O>, O> VectorLoop for ElementLoop<'_, T, O> {
    #[inline(always)]
    fn run(self) {
        for (into, &other) in self.into.iter_mut().zip(self.other) {
            *into = T::apply(*into, other);
        }
    }
}

/// Like [`ElementLoop`] for bf16, two at once: as 32-bit words they need no packing.
pub(super) struct ElementPairLoop<'a, T, O> {
    into: &'a mut [T],
    other: &'a [T],
    operator: PhantomData<O>,
}

impl<'a, O> ElementPairLoop<'a, bf16, O> {
    pub(super) fn new(into: &'a mut [u8], other: &'a [u8]) -> Self {
        Self {
            into: bytemuck::cast_slice_mut(into),
            other: bytemuck::cast_slice(other),
            operator: PhantomData,
        }
    }
}

impl<O> VectorLoop for ElementPairLoop<'_, bf16, O>
where
    f32: ElementOperator<O>,
{
    #[inline(always)]
    fn run(self) {
        const HIGH: u32 = 0xffff_0000;
        let (into, into_rest) = self.into.as_chunks_mut::<2>();
        let (other, other_rest) = self.other.as_chunks::<2>();
        let into: &mut [[u8; 4]] = bytemuck::cast_slice_mut(into);
        let other: &[[u8; 4]] = bytemuck::cast_slice(other);
        for (into, &other) in into.iter_mut().zip(other) {
            let (left, right) = (u32::from_ne_bytes(*into), u32::from_ne_bytes(other));
            let apply =
                |left, right| rounded(f32::apply(f32::from_bits(left), f32::from_bits(right)));
            let low = apply(left << 16, right << 16);
            let high = apply(left & HIGH, right & HIGH);
            *into = (high & HIGH | low >> 16).to_ne_bytes();
        }
        for (into, &other) in into_rest.iter_mut().zip(other_rest) {
            *into = bf16::apply(*into, other);
        }
    }
}

/// Divides every element by one number.
pub(super) struct DivideLoop<'a, T: FloatElement> {
    values: &'a mut [T],
    divisor: T::Wide,
}

impl<'a, T: FloatElement> DivideLoop<'a, T> {
    pub(super) fn new(values: &'a mut [u8], divisor: T::Wide) -> Self {
        Self {
            values: bytemuck::cast_slice_mut(values),
            divisor,
        }
    }
}

impl<T: FloatElement> VectorLoop for DivideLoop<'_, T> {
    #[inline(always)]
    fn run(self) {
        for value in self.values {
            *value = value.divided(self.divisor);
        }
    }
}
