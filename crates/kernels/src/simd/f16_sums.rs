//! Products of f16 with AVX512-FP16: vectors of 32 sums in f16, each of at most 16 products, which are then added in f32.
//!
//! A vector of f16 has twice as many elements as one of f32, so the products take half of the time; the sums in f32 take another
//! fifth. A sum in f16 has 11 significant bits, and is infinite from 65,520 on.
//!
//! They are used only if `train.products` requests it.

#![cfg(any(test, target_arch = "x86_64"))]

#[cfg(test)]
use super::SimdVector;

/// The number of products that are added in f16.
const TOGETHER: usize = 16;
/// The number of columns of a vector.
const LANES: usize = 32;
/// The number of rows of a panel.
const ROWS: usize = 8;
/// The number of vectors of a panel of columns.
const COLUMNS: usize = 3;

#[cfg(target_arch = "x86_64")]
pub(super) use x86::F16Sums;

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "vector instructions in the innermost loops")]
mod x86 {
    use std::arch::x86_64::{
        __m256d, __m256h, __m512, __m512d, __m512h, _mm512_add_ps, _mm512_castpd512_pd256,
        _mm512_cvtxph_ps, _mm512_extractf64x4_pd, _mm512_fmadd_ph, _mm512_loadu_ps,
        _mm512_setzero_ph, _mm512_storeu_ps,
    };

    use super::{COLUMNS, LANES, ROWS, TOGETHER};
    use crate::simd::{PanelForm, SimdVector};

    /// Two vectors of f32, whose products are those of one vector of f16.
    #[derive(Clone, Copy)]
    pub(in crate::simd) struct F16Sums([__m512; 2]);

    impl SimdVector for F16Sums {
        const LANES: usize = LANES;
        const ROWS: usize = ROWS;
        const COLUMNS: usize = COLUMNS;
        const FORM: PanelForm = PanelForm::F16;

        #[inline(always)]
        fn splat(value: f32) -> Self {
            Self([__m512::splat(value); 2])
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: guaranteed by the caller.
            Self(unsafe { [__m512::load(from), __m512::load(from.add(LANES / 2))] })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                self.0[0].store(to);
                self.0[1].store(to.add(LANES / 2));
            }
        }

        #[inline(always)]
        fn multiply_add(self, factor: Self, sum: Self) -> Self {
            let part = |i: usize| self.0[i].multiply_add(factor.0[i], sum.0[i]);
            Self([part(0), part(1)])
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self([self.0[0].add(other.0[0]), self.0[1].add(other.0[1])])
        }

        #[inline(always)]
        fn fetch(at: *const f32) {
            __m512::fetch(at);
            __m512::fetch(at.wrapping_add(LANES / 2));
        }

        #[inline(always)]
        unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
            // SAFETY: guaranteed by the caller.
            unsafe { __m512::transpose(from, stride, to, to_stride) }
        }

        #[inline(always)]
        unsafe fn multiply_panels<const C: usize>(
            a: *const f32,
            b: *const f32,
            depth: usize,
            to: *mut f32,
            stride: usize,
        ) {
            let mut at = 0;
            loop {
                let count = (depth - at).min(TOGETHER);
                // SAFETY: guaranteed by the caller; only kernels compiled for AVX512-FP16 use this vector.
                unsafe {
                    let sums = sums::<C>(a.add(at * ROWS), b.add(at * C * LANES / 2), count);
                    for (row, sums) in sums.into_iter().enumerate() {
                        for (column, sums) in sums.into_iter().enumerate() {
                            put(sums, to.add(row * stride + column * LANES), at == 0);
                        }
                    }
                }
                at += count;
                if at == depth {
                    return;
                }
            }
        }
    }

    /// Sums products of `depth` inner indices in f16.
    ///
    /// # Safety
    /// `a` has `depth` rows of `ROWS` doubled values, `b` has `depth` rows of C vectors; the processor has AVX512-FP16.
    #[expect(
        clippy::needless_range_loop,
        reason = "indices of registers; iterators hide from the compiler that they are"
    )]
    #[inline(always)]
    unsafe fn sums<const C: usize>(
        mut a: *const f32,
        mut b: *const f32,
        depth: usize,
    ) -> [[__m512h; C]; ROWS] {
        // SAFETY: guaranteed by the caller; vectors of 64 bytes without invalid values.
        unsafe {
            let halves = |bits: __m512| std::mem::transmute::<__m512, __m512h>(bits);
            let mut sums = [[_mm512_setzero_ph(); C]; ROWS];
            for _ in 0..depth {
                let mut right = [_mm512_setzero_ph(); C];
                for c in 0..C {
                    right[c] = halves(_mm512_loadu_ps(b.add(c * LANES / 2)));
                }
                for r in 0..ROWS {
                    let left = halves(__m512::splat(*a.add(r)));
                    for c in 0..C {
                        sums[r][c] = _mm512_fmadd_ph(left, right[c], sums[r][c]);
                    }
                }
                a = a.add(ROWS);
                b = b.add(C * LANES / 2);
            }
            sums
        }
    }

    /// Writes 32 sums as f32, or adds them unless they are the `first` ones.
    ///
    /// # Safety
    /// `to` is readable and writable for them; the processor has AVX512-FP16.
    #[inline(always)]
    unsafe fn put(sums: __m512h, to: *mut f32, first: bool) {
        // SAFETY: guaranteed by the caller; parts of vectors without invalid values.
        unsafe {
            let sums = std::mem::transmute::<__m512h, __m512d>(sums);
            let parts = [
                _mm512_castpd512_pd256(sums),
                _mm512_extractf64x4_pd::<1>(sums),
            ];
            for (part, sums) in parts.into_iter().enumerate() {
                let to = to.add(part * LANES / 2);
                let sums = _mm512_cvtxph_ps(std::mem::transmute::<__m256d, __m256h>(sums));
                let sums = if first {
                    sums
                } else {
                    _mm512_add_ps(_mm512_loadu_ps(to), sums)
                };
                _mm512_storeu_ps(to, sums);
            }
        }
    }
}

/// The instructions by their definition.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) struct EmulatedF16Sums([f32; LANES]);

#[cfg(test)]
#[expect(unsafe_code, reason = "the methods of a vector")]
impl SimdVector for EmulatedF16Sums {
    const LANES: usize = LANES;
    const ROWS: usize = ROWS;
    const COLUMNS: usize = COLUMNS;
    const FORM: super::PanelForm = super::PanelForm::F16;

    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    unsafe fn store(self, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    fn multiply_add(self, factor: Self, sum: Self) -> Self {
        Self(std::array::from_fn(|i| {
            self.0[i].mul_add(factor.0[i], sum.0[i])
        }))
    }

    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] + other.0[i]))
    }

    unsafe fn multiply_panels<const C: usize>(
        a: *const f32,
        b: *const f32,
        depth: usize,
        to: *mut f32,
        stride: usize,
    ) {
        use half::f16;

        use crate::testing::rounded_to_f16;

        for row in 0..ROWS {
            for column in 0..C * LANES {
                let mut all = 0.0;
                for first in (0..depth).step_by(TOGETHER) {
                    let mut sum = 0.0;
                    for at in first..(first + TOGETHER).min(depth) {
                        // SAFETY: guaranteed by the caller.
                        let [left, right] = unsafe {
                            let two = b.add((at * C * LANES + column) / 2);
                            [(*a.add(at * ROWS + row)).to_bits(), (*two).to_bits()]
                        };
                        let right = right >> (column % 2 * 16);
                        let [left, right] =
                            [left, right].map(|bits| f16::from_bits(bits as u16).to_f64());
                        sum = rounded_to_f16(left.mul_add(right, sum));
                    }
                    all = if first == 0 {
                        sum as f32
                    } else {
                        all + sum as f32
                    };
                }
                // SAFETY: guaranteed by the caller.
                unsafe { *to.add(row * stride + column) = all };
            }
        }
    }
}
