//! Products of bf16: vectors whose packed operands are pairs of values, of which one instruction adds both products.
//!
//! The instruction (`vdpbf16ps`) is two fused multiply-adds in f32, of the second value of a pair and then of the first,
//! so it makes the multiplications of f32 at up to twice the rate. It treats values below 1e-38 as zero.

use super::SimdKernel;
use crate::ShortFormat;

/// Returns whether products of values that are rounded to a format are computed in this format, and not in f32: of bf16
/// with AVX512-BF16. The answer is a condition of equal bits.
#[must_use]
pub fn has_products_of(format: ShortFormat) -> bool {
    #[cfg(target_arch = "x86_64")]
    if format == ShortFormat::Bf16 && super::Level::current() == super::Level::Avx512 {
        return std::arch::is_x86_feature_detected!("avx512bf16");
    }
    let _ = format;
    false
}

/// Runs a kernel whose operands are all rounded to a format, with products of the format if the processor has them.
#[inline]
pub(crate) fn dispatch_products<K: SimdKernel>(
    format: Option<ShortFormat>,
    kernel: K,
) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
        fn bf16<K: SimdKernel>(kernel: K) -> K::Output {
            kernel.run::<x86::Bf16Pairs>()
        }
        if format.is_some_and(has_products_of) {
            // SAFETY: the processor has the instructions.
            return unsafe { bf16(kernel) };
        }
    }
    let _ = format;
    super::dispatch(kernel)
}

/// Converts a packed panel of `depth` rows of `width` values of bf16, in place, to pairs of rows: the values of two rows
/// in the bits of one. The last row of an odd number is paired with zeros.
#[inline(always)]
pub(crate) fn pair_rows(panel: &mut [f32], depth: usize, width: usize) {
    let pairs = depth / 2;
    for pair in 0..pairs {
        let (to, from) = panel.split_at_mut(if pair == 0 { width } else { 2 * pair * width });
        if pair == 0 {
            for (first, second) in to.iter_mut().zip(&from[..width]) {
                *first = joined(*first, *second);
            }
            continue;
        }
        let (first, second) = from.split_at(width);
        let to = &mut to[pair * width..][..width];
        for ((to, first), second) in to.iter_mut().zip(first).zip(second) {
            *to = joined(*first, *second);
        }
    }
    if !depth.is_multiple_of(2) {
        for column in 0..width {
            panel[pairs * width + column] = joined(panel[2 * pairs * width + column], 0.0);
        }
    }
}

/// Returns the upper halves of two values, which are exact in bf16, in the bits of one.
#[inline(always)]
fn joined(first: f32, second: f32) -> f32 {
    f32::from_bits(first.to_bits() >> 16 | second.to_bits() & 0xffff_0000)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps};

    use crate::simd::SimdVector;

    /// The vector of AVX-512; factors are pairs of bf16, and sums are f32.
    #[derive(Clone, Copy)]
    pub(super) struct Bf16Pairs(__m512);

    impl SimdVector for Bf16Pairs {
        const LANES: usize = 16;
        const ROWS: usize = 8;
        const COLUMNS: usize = 3;
        const HAS_PAIRS: bool = true;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            Self(__m512::splat(value))
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: guaranteed by the caller.
            Self(unsafe { __m512::load(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: guaranteed by the caller.
            unsafe { self.0.store(to) }
        }

        #[inline(always)]
        fn multiply_add(self, factor: Self, sum: Self) -> Self {
            // SAFETY: vectors of 64 bytes without invalid values; only kernels compiled for the instruction, which was
            // detected, use it.
            unsafe {
                let [first, second] =
                    [self.0, factor.0].map(|pairs| std::mem::transmute::<__m512, __m512bh>(pairs));
                Self(_mm512_dpbf16_ps(sum.0, first, second))
            }
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(self.0.add(other.0))
        }

        #[inline(always)]
        fn fetch(at: *const f32) {
            __m512::fetch(at);
        }

        #[inline(always)]
        unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { __m512::transpose(from, stride, to, to_stride) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_paired_and_an_odd_one_with_zeros() {
        for depth in 0..6 {
            let width = 3;
            let value = |row: usize, column: usize| (8 * row + column) as f32;
            let mut panel: Vec<f32> = (0..depth * width)
                .map(|at| value(at / width, at % width))
                .collect();
            pair_rows(&mut panel, depth, width);
            for pair in 0..depth.div_ceil(2) {
                for column in 0..width {
                    let bits = panel[pair * width + column].to_bits();
                    let second = match 2 * pair + 1 {
                        row if row < depth => value(row, column),
                        _ => 0.0,
                    };
                    assert_eq!(f32::from_bits(bits << 16), value(2 * pair, column));
                    assert_eq!(f32::from_bits(bits & 0xffff_0000), second);
                }
            }
        }
    }
}
