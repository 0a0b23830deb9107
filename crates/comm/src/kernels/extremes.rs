//! Minimum and maximum of 16-bit floats, compared as integers without conversion.

use super::instructions::VectorLoop;

/// The constants of a 16-bit float format.
pub(super) trait HalfFormat {
    /// Bits of positive infinity: a value with a larger magnitude is NaN.
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

/// Returns an integer that increases with the float; both zeros are 0.
#[inline(always)]
fn rank(bits: u16) -> i16 {
    let sign = bits.cast_signed() >> 15;
    let magnitude = (bits & MAGNITUDE).cast_signed();
    (magnitude ^ sign) - sign
}

/// Computes `into = max(into, other)`, or the minimum when not `MAX`; of equal values the first operand
/// when `KEEP`, and NaN if one is NaN.
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
