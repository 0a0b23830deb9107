//! The smaller and the larger of floats of 16 bits, compared as whole numbers: nothing is converted.

use super::instructions::VectorLoop;

/// What tells one format of 16 bits from another.
pub(super) trait HalfFormat {
    /// Bits of the positive infinity: whatever has a larger magnitude is no number.
    const INFINITY: u16;
    /// Bits of the canonical NaN.
    const NAN: u16;
}

impl HalfFormat for half::f16 {
    const INFINITY: u16 = 0x7c00;
    const NAN: u16 = 0x7e00;
}

impl HalfFormat for half::bf16 {
    const INFINITY: u16 = 0x7f80;
    const NAN: u16 = 0x7fc0;
}

const MAGNITUDE: u16 = 0x7fff;

/// A whole number that rises with the float; both zeros are 0.
#[inline(always)]
fn rank(bits: u16) -> i16 {
    let sign = bits.cast_signed() >> 15;
    let magnitude = (bits & MAGNITUDE).cast_signed();
    (magnitude ^ sign) - sign
}

/// `into = max(into, other)`, or the smaller one where not `MAX`; of equal ones the replaced one when
/// `KEEP`, and NaN with NaN.
pub(super) struct ExtremeLoop<'a, F, const MAX: bool, const KEEP: bool> {
    into: &'a mut [u16],
    other: &'a [u16],
    format: std::marker::PhantomData<F>,
}

impl<'a, F: HalfFormat, const MAX: bool, const KEEP: bool> ExtremeLoop<'a, F, MAX, KEEP> {
    pub(super) fn new(into: &'a mut [u8], other: &'a [u8]) -> Self {
        Self {
            into: bytemuck::cast_slice_mut(into),
            other: bytemuck::cast_slice(other),
            format: std::marker::PhantomData,
        }
    }
}

impl<F: HalfFormat, const MAX: bool, const KEEP: bool> VectorLoop
    for ExtremeLoop<'_, F, MAX, KEEP>
{
    #[inline(always)]
    fn run(self) {
        for (into, &other) in self.into.iter_mut().zip(self.other) {
            let (left, right) = if KEEP { (*into, other) } else { (other, *into) };
            let is_right = if MAX {
                rank(right) > rank(left)
            } else {
                rank(right) < rank(left)
            };
            let chosen = if is_right { right } else { left };
            let is_nan = (left & MAGNITUDE > F::INFINITY) | (right & MAGNITUDE > F::INFINITY);
            *into = if is_nan { F::NAN } else { chosen };
        }
    }
}
