//! Products of bf16: vectors whose packed operands are pairs of values, whose products one instruction adds.
//!
//! The instruction (`vdpbf16ps`) is two fused multiply-adds in f32, of the second value of a pair and then of the first,
//! so it makes the multiplications of f32 at up to twice the rate. It treats values below 1e-38 as zero.
//!
//! On Intel Xeon the instruction starts a quarter as often as f32 products, so both loops are timed once per process.

/// Returns whether the processor has the instruction.
pub(super) fn has_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Returns whether the processor has the instruction and it multiplies faster than f32 does. It starts as often as a
/// multiply-add of f32 on AMD EPYC, which is twice the rate, and a quarter as often on Intel Xeon, half the rate (with one unit
/// for multiplications instead of two, half as often). A loop of each that fits the registers is timed in turns, and the
/// shortest times are compared with a border between these cases.
pub(super) fn pairs_are_faster() -> bool {
    #[cfg(target_arch = "x86_64")]
    if has_pairs() {
        static FASTER: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        return *FASTER.get_or_init(|| {
            let mut shortest = [u64::MAX; 2];
            for _ in 0..20 {
                // SAFETY: the processor has AVX-512, which includes the instruction.
                let times = unsafe { [x86::time_of_values(), x86::time_of_pairs()] };
                shortest = [0, 1].map(|i| shortest[i].min(times[i]));
            }
            // The same number of instructions with twice the products: the times are equal, or differ by 2 or 4.
            shortest[1] * 10 < shortest[0] * 14
        });
    }
    false
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
pub(crate) fn joined(first: f32, second: f32) -> f32 {
    f32::from_bits(first.to_bits() >> 16 | second.to_bits() & 0xffff_0000)
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::Bf16Pairs;

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector instructions")]
mod x86 {
    use std::arch::x86_64::{__m512, __m512bh, _mm512_dpbf16_ps, _rdtsc};

    use crate::simd::{PanelForm, SimdVector};

    /// Returns the ticks of a loop of multiply-adds of f32.
    ///
    /// # Safety
    /// The processor has AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn time_of_values() -> u64 {
        time_of::<__m512>()
    }

    /// Returns the ticks of the same loop of products of pairs.
    ///
    /// # Safety
    /// The processor has AVX512-BF16.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub(super) unsafe fn time_of_pairs() -> u64 {
        time_of::<Bf16Pairs>()
    }

    /// Returns the processor's time stamp.
    fn ticks() -> u64 {
        // SAFETY: all processors of this architecture have the counter.
        unsafe { _rdtsc() }
    }

    #[inline(always)]
    fn time_of<V: SimdVector>() -> u64 {
        let started = ticks();
        let factor = V::splat(std::hint::black_box(0.0));
        let mut sums = [V::splat(0.0); 16];
        for _ in 0..500 {
            for sum in &mut sums {
                *sum = factor.multiply_add(factor, *sum);
            }
        }
        std::hint::black_box(sums);
        ticks().wrapping_sub(started)
    }

    /// The vector of AVX-512; factors are pairs of bf16, and sums are f32.
    #[derive(Clone, Copy)]
    pub(in crate::simd) struct Bf16Pairs(__m512);

    impl SimdVector for Bf16Pairs {
        const LANES: usize = 16;
        const ROWS: usize = 8;
        const COLUMNS: usize = 3;
        const FORM: PanelForm = PanelForm::Bf16Pairs;

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
