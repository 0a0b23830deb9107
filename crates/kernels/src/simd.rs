//! Instruction sets: detection, vectors of each set, and the compilation of kernels for all of them.
#![expect(
    unsafe_code,
    reason = "vector instructions and the functions compiled for them"
)]

mod f16_sums;
mod pairs;
mod products;
mod tiles;

use std::cell::Cell;

pub use products::Products;
#[cfg(test)]
pub(crate) use products::emulated;
pub(crate) use products::{PanelForm, arrange_columns, arrange_rows, dispatch_products};
pub(crate) use tiles::{
    DEPTH as TILE_DEPTH, PAIRS as TILE_PAIRS, PARTS as TILE_PARTS, WIDTH as TILE_WIDTH,
    write_lines, write_rows,
};

/// An instruction set for which kernels are compiled. Results may differ in the last bits between levels, never within
/// a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// The baseline of the architecture.
    Portable,
    /// 256 bits and fused multiply-add.
    Avx2,
    /// 512 bits.
    Avx512,
}

impl Level {
    /// Returns the best level of this processor. Cost: a load, since the standard library caches the result.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma");
            let avx512 = has!("avx512f") && has!("avx512vl");
            if avx2 && avx512 && has!("avx512bw") && has!("avx512dq") {
                return Self::Avx512;
            }
            if avx2 {
                return Self::Avx2;
            }
        }
        Self::Portable
    }

    /// Returns the levels that this processor supports, the lowest first.
    pub fn supported() -> impl Iterator<Item = Self> {
        let best = Self::detect();
        let all = [Self::Portable, Self::Avx2, Self::Avx512];
        all.into_iter().filter(move |level| *level <= best)
    }

    /// Returns the level of the kernels that this thread calls: the best one of this processor, except within
    /// [`with_level`].
    #[must_use]
    pub fn current() -> Self {
        Self::detect().min(LIMIT.get())
    }

    /// Returns the name in a plan's identity.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

thread_local! {
    /// The greatest level of the kernels that this thread calls.
    static LIMIT: Cell<Level> = const { Cell::new(Level::Avx512) };
}

/// Runs code whose kernels, on this thread, are those of a level, or of the best lower level that this processor supports.
/// For tests: a run uses the best level, which its identity names.
pub fn with_level<R>(level: Level, work: impl FnOnce() -> R) -> R {
    /// Restores the previous limit, also after a panic.
    struct Restored(Level);
    impl Drop for Restored {
        fn drop(&mut self) {
            LIMIT.set(self.0);
        }
    }
    let _restored = Restored(LIMIT.replace(level));
    work()
}

/// A vector of f32, and the shape of the register tile that fits its registers.
///
/// Methods are `inline(always)`, so that they are compiled for the instruction set of the calling function.
pub(crate) trait SimdVector: Copy {
    /// The number of elements.
    const LANES: usize;
    /// The number of rows of a register tile of [`SimdVector::COLUMNS`] vectors.
    const ROWS: usize;
    /// The number of vectors per row of a register tile.
    const COLUMNS: usize;
    /// The form of packed panels.
    const FORM: PanelForm = PanelForm::Values;

    fn splat(value: f32) -> Self;
    /// # Safety
    /// `from` is readable for [`SimdVector::LANES`] elements.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// `to` is writable for [`SimdVector::LANES`] elements.
    unsafe fn store(self, to: *mut f32);
    /// Returns `self * factor + sum`, rounded once if the level supports it.
    fn multiply_add(self, factor: Self, sum: Self) -> Self;
    /// Adds element by element.
    fn add(self, other: Self) -> Self;
    /// Multiplies a panel of rows by one of C vectors of columns, both in a separate form, and writes
    /// [`SimdVector::ROWS`] rows of sums, `stride` apart.
    ///
    /// # Safety
    /// The panels are arranged in [`SimdVector::FORM`] for an inner length of `depth`, and `to` is readable and writable for all
    /// rows.
    #[inline(always)]
    unsafe fn multiply_panels<const C: usize>(
        _a: *const f32,
        _b: *const f32,
        _depth: usize,
        _to: *mut f32,
        _stride: usize,
    ) {
        unreachable!("panels of values and pairs are multiplied by `multiply_add`");
    }
    /// Prefetches the cache line at an address, which affects only the time.
    #[inline(always)]
    fn fetch(_at: *const f32) {}
    /// Adds the squares of eight values to eight sums, each product and sum rounded.
    #[inline(always)]
    fn add_squares(values: &[f32; 8], sums: &mut [f64; 8]) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += f64::from(*value) * f64::from(*value);
        }
    }
    /// Transposes a block of 8 rows of 8 elements, `stride` apart, into rows `to_stride` apart.
    ///
    /// # Safety
    /// `from` is readable and `to` writable for all rows.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        for row in 0..8 {
            for column in 0..8 {
                // SAFETY: guaranteed by the caller.
                unsafe { *to.add(column * to_stride + row) = *from.add(row * stride + column) };
            }
        }
    }
}

/// Four lanes that any compiler vectorises.
#[derive(Clone, Copy)]
pub(crate) struct Portable([f32; 4]);

impl SimdVector for Portable {
    const LANES: usize = 4;
    const ROWS: usize = 4;
    const COLUMNS: usize = 2;

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: guaranteed by the caller; an array of f32 may be read unaligned.
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn multiply_add(self, factor: Self, sum: Self) -> Self {
        let mut out = sum.0;
        for (lane, out) in out.iter_mut().enumerate() {
            *out = fused(self.0[lane], factor.0[lane], *out);
        }
        Self(out)
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }
}

/// Multiplies and adds, fused only if the architecture always supports it; otherwise it would be a slow call of the C
/// library.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_arch = "aarch64") {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, __m512, _MM_HINT_T0, _mm_loadu_ps, _mm_prefetch, _mm256_add_pd, _mm256_add_ps,
        _mm256_castps128_ps256, _mm256_cvtps_pd, _mm256_fmadd_ps, _mm256_insertf128_ps,
        _mm256_loadu_pd, _mm256_loadu_ps, _mm256_mul_pd, _mm256_set1_ps, _mm256_shuffle_ps,
        _mm256_storeu_pd, _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps, _mm512_add_pd,
        _mm512_add_ps, _mm512_cvtps_pd, _mm512_fmadd_ps, _mm512_loadu_pd, _mm512_loadu_ps,
        _mm512_mul_pd, _mm512_set1_ps, _mm512_storeu_pd, _mm512_storeu_ps,
    };

    use super::SimdVector;

    macro_rules! vector {
        ($type:ty, $lanes:literal, $rows:literal x $columns:literal, $splat:ident, $load:ident, $store:ident, $fma:ident, $add:ident, $squares:ident) => {
            impl SimdVector for $type {
                const LANES: usize = $lanes;
                const ROWS: usize = $rows;
                const COLUMNS: usize = $columns;

                #[inline(always)]
                fn splat(value: f32) -> Self {
                    // SAFETY: only kernels compiled for this level, which was detected, use it.
                    unsafe { $splat(value) }
                }

                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: guaranteed by the caller; the level was detected.
                    unsafe { $load(from) }
                }

                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: guaranteed by the caller; the level was detected.
                    unsafe { $store(to, self) }
                }

                #[inline(always)]
                fn multiply_add(self, factor: Self, sum: Self) -> Self {
                    // SAFETY: the level was detected.
                    unsafe { $fma(self, factor, sum) }
                }

                #[inline(always)]
                fn add(self, other: Self) -> Self {
                    // SAFETY: the level was detected.
                    unsafe { $add(self, other) }
                }

                #[inline(always)]
                fn fetch(at: *const f32) {
                    // SAFETY: a hint that cannot fail for any address.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
                }

                #[inline(always)]
                fn add_squares(values: &[f32; 8], sums: &mut [f64; 8]) {
                    // SAFETY: the level was detected.
                    unsafe { $squares(values, sums) }
                }

                #[inline(always)]
                unsafe fn transpose(
                    from: *const f32,
                    stride: usize,
                    to: *mut f32,
                    to_stride: usize,
                ) {
                    // SAFETY: guaranteed by the caller; the level was detected.
                    unsafe { transpose(from, stride, to, to_stride) }
                }
            }
        };
    }

    vector!(
        __m512,
        16,
        8 x 3,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_storeu_ps,
        _mm512_fmadd_ps,
        _mm512_add_ps,
        squares_512
    );
    vector!(
        __m256,
        8,
        6 x 2,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_storeu_ps,
        _mm256_fmadd_ps,
        _mm256_add_ps,
        squares_256
    );

    /// # Safety
    /// The processor has AVX-512.
    #[inline(always)]
    unsafe fn squares_512(values: &[f32; 8], sums: &mut [f64; 8]) {
        // SAFETY: guaranteed by the caller; the arrays have as many elements as are read and written.
        unsafe {
            let wide = _mm512_cvtps_pd(_mm256_loadu_ps(values.as_ptr()));
            let old = _mm512_loadu_pd(sums.as_ptr());
            _mm512_storeu_pd(
                sums.as_mut_ptr(),
                _mm512_add_pd(old, _mm512_mul_pd(wide, wide)),
            );
        }
    }

    /// # Safety
    /// The processor has AVX.
    #[inline(always)]
    unsafe fn squares_256(values: &[f32; 8], sums: &mut [f64; 8]) {
        for half in [0, 4] {
            // SAFETY: guaranteed by the caller; the arrays have as many elements as are read and written.
            unsafe {
                let wide = _mm256_cvtps_pd(_mm_loadu_ps(values.as_ptr().add(half)));
                let to = sums.as_mut_ptr().add(half);
                let sum = _mm256_add_pd(_mm256_loadu_pd(to), _mm256_mul_pd(wide, wide));
                _mm256_storeu_pd(to, sum);
            }
        }
    }

    /// Transposes a block of 8 by 8: halves of rows that are four apart are loaded into one register, then pairs and
    /// quadruples are interleaved.
    ///
    /// # Safety
    /// As [`SimdVector::transpose`]; the processor has AVX.
    #[inline(always)]
    unsafe fn transpose(from: *const f32, stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            for half in 0..2 {
                let load = |row: usize| {
                    let low = _mm_loadu_ps(from.add(row * stride + 4 * half));
                    let high = _mm_loadu_ps(from.add((row + 4) * stride + 4 * half));
                    _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high)
                };
                let (a, b, c, d) = (load(0), load(1), load(2), load(3));
                let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                let columns = [
                    _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                    _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
                    _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
                    _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
                ];
                for (place, column) in columns.into_iter().enumerate() {
                    _mm256_storeu_ps(to.add((4 * half + place) * to_stride), column);
                }
            }
        }
    }
}

/// A kernel that is compiled once for each level: `run` and everything inlined into it use the level's instructions.
pub(crate) trait SimdKernel {
    type Output;
    /// Runs the kernel. Must be `inline(always)`, like all functions that it calls.
    fn run<V: SimdVector>(self) -> Self::Output;
}

/// Safe code, such as a loop over slices, that is compiled for each [`Level`].
pub trait Vectorised {
    /// The result.
    type Output;
    /// Runs the code. Must be `inline(always)`, like all functions that it calls.
    fn run(self) -> Self::Output;
}

/// Runs code compiled for the level of this thread. Multiplications and additions are not fused, so code without
/// sums across elements gives the same bits at every level. Cost: a call.
pub fn vectorised<W: Vectorised>(work: W) -> W::Output {
    struct Any<W>(W);
    impl<W: Vectorised> SimdKernel for Any<W> {
        type Output = W::Output;

        #[inline(always)]
        fn run<V: SimdVector>(self) -> W::Output {
            self.0.run()
        }
    }
    dispatch(Any(work))
}

/// Runs a kernel at the level of this thread.
#[inline]
pub(crate) fn dispatch<K: SimdKernel>(kernel: K) -> K::Output {
    dispatch_at(Level::current(), kernel)
}

/// Runs a kernel at a level, or the best lower level that this processor supports.
pub(crate) fn dispatch_at<K: SimdKernel>(level: Level, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
        fn avx512<K: SimdKernel>(kernel: K) -> K::Output {
            kernel.run::<std::arch::x86_64::__m512>()
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2<K: SimdKernel>(kernel: K) -> K::Output {
            kernel.run::<std::arch::x86_64::__m256>()
        }
        match level.min(Level::detect()) {
            // SAFETY: the level is at most the one detected.
            Level::Avx512 => return unsafe { avx512(kernel) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { avx2(kernel) },
            Level::Portable => {}
        }
    }
    let _ = level;
    kernel.run::<Portable>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_holds_within_a_call_and_ends_with_a_panic() {
        let best = Level::detect();
        assert_eq!(Level::supported().last(), Some(best));
        let inner = || with_level(Level::Avx512, Level::current);
        let outer = with_level(Level::Portable, || (Level::current(), inner()));
        assert_eq!((outer, Level::current()), ((Level::Portable, best), best));
        let ended = std::panic::catch_unwind(|| with_level(Level::Portable, || panic!("an end")));
        assert!(ended.is_err());
        assert_eq!(Level::current(), best);
    }
}
