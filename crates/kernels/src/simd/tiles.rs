//! Products of bf16 with AMX: eight registers hold tiles of 16 rows of 64 bytes, and one instruction multiplies two tiles.
//!
//! The instruction (`tdpbf16ps`) sums the first values of the pairs of a row, and the second ones, in f32 with fused
//! multiply-adds in order, adds both sums, and adds the result to the output. It treats values below 1e-38 as zero. Source:
//! Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.

use super::SimdVector;
use super::pairs::joined;

/// The number of pairs of a row of a tile.
pub(crate) const PAIRS: usize = 16;
/// The number of rows, or columns, of a panel: two tiles.
pub(crate) const WIDTH: usize = 32;
/// The number of elements of a tile.
const TILE: usize = 16 * 16;

/// Converts packed panels of up to 32 rows (`LEFT`) or columns to pairs, in place. Each block of 32 inner indices becomes two
/// tiles: of rows, `[tile][row][pair]`; of columns, `[pair][column]`. Missing inner indices are zeros.
#[inline(always)]
pub(super) fn arrange<V: SimdVector, const LEFT: bool>(
    panels: &mut [f32],
    outer: usize,
    depth: usize,
) {
    let length = V::FORM.length(depth);
    let count = outer.div_ceil(WIDTH);
    for place in 0..count {
        // Panels that grow are converted from the last to the first.
        let place = if length > depth {
            count - 1 - place
        } else {
            place
        };
        let width = (outer - place * WIDTH)
            .min(WIDTH)
            .next_multiple_of(V::LANES);
        let (from, to) = (place * WIDTH * depth, place * WIDTH * length);
        for block in 0..depth.div_ceil(2 * PAIRS) {
            let first = block * 2 * PAIRS;
            let rows = from + first * width..from + (first + 2 * PAIRS).min(depth) * width;
            let mut pairs = [0.0; PAIRS * WIDTH];
            for (two, to) in panels[rows]
                .chunks(2 * width)
                .zip(pairs.chunks_exact_mut(width))
            {
                let (first, second) = two.split_at(width);
                if second.is_empty() {
                    for (to, first) in to.iter_mut().zip(first) {
                        *to = joined(*first, 0.0);
                    }
                } else {
                    for ((to, first), second) in to.iter_mut().zip(first).zip(second) {
                        *to = joined(*first, *second);
                    }
                }
            }
            let at = to + block * PAIRS * width;
            let to = &mut panels[at..at + PAIRS * width];
            if LEFT {
                transpose_tiles::<V>(&pairs, to);
            } else {
                to.copy_from_slice(&pairs[..PAIRS * width]);
            }
        }
    }
}

/// Transposes pairs of 32 rows to two tiles.
#[expect(unsafe_code, reason = "blocks of 8 by 8 are moved as vectors")]
#[inline(always)]
pub(crate) fn transpose_tiles<V: SimdVector>(pairs: &[f32; PAIRS * WIDTH], to: &mut [f32]) {
    assert_eq!(to.len(), 2 * TILE, "two tiles");
    for row in (0..WIDTH).step_by(8) {
        for pair in (0..PAIRS).step_by(8) {
            // SAFETY: blocks of 8 by 8 within 16 rows of 32, and within two tiles of 16 rows of 16.
            unsafe {
                let from = pairs.as_ptr().add(pair * WIDTH + row);
                V::transpose(from, WIDTH, to.as_mut_ptr().add(row * PAIRS + pair), PAIRS);
            }
        }
    }
}

/// Joins neighbours of up to 32 values to pairs; missing values are zeros.
#[inline(always)]
pub(crate) fn pair_values(values: &[f32], pairs: &mut [f32; PAIRS]) {
    match values.first_chunk::<{ 2 * PAIRS }>() {
        Some(values) => {
            for (pair, two) in pairs.iter_mut().zip(values.as_chunks::<2>().0) {
                *pair = joined(two[0], two[1]);
            }
        }
        None => {
            pairs.fill(0.0);
            for (pair, two) in pairs.iter_mut().zip(values.chunks(2)) {
                *pair = joined(two[0], two.get(1).copied().unwrap_or(0.0));
            }
        }
    }
}

/// Transposes `[column][pair]` to rows of as many columns as there is room for.
#[expect(unsafe_code, reason = "blocks of 8 by 8 are moved as vectors")]
#[inline(always)]
pub(crate) fn transpose_tile_columns<V: SimdVector>(pairs: &[[f32; PAIRS]; WIDTH], to: &mut [f32]) {
    let width = to.len() / PAIRS;
    assert!(
        width <= WIDTH && width.is_multiple_of(8) && to.len() == PAIRS * width,
        "one or two tiles"
    );
    for column in (0..width).step_by(8) {
        for pair in (0..PAIRS).step_by(8) {
            // SAFETY: blocks of 8 by 8 within 32 rows of 16, and within 16 rows of `width`, as asserted.
            unsafe {
                let from = pairs.as_ptr().cast::<f32>().add(column * PAIRS + pair);
                let to = to.as_mut_ptr().add(pair * width + column);
                V::transpose(from, PAIRS, to, width);
            }
        }
    }
}

/// Returns whether the processor has AMX for bf16 and the system lets this process use it.
pub(super) fn has_tiles() -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    {
        static FOUND: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *FOUND.get_or_init(x86::detect)
    }
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
    false
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Bf16Tiles, Configured};

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions of tiles and a system call")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::__m512;

    use crate::simd::{PanelForm, SimdVector};

    /// Whether CPUID names tiles and their products of bf16, and Linux grants the permission, which all threads of the process
    /// then have. The kernel refuses it where a thread's stack for signals is too small for the registers.
    #[cfg(target_os = "linux")]
    pub(super) fn detect() -> bool {
        const ARCH_PRCTL: i64 = 158;
        const REQUEST_PERMISSION: u64 = 0x1023;
        const TILE_DATA: u64 = 18;
        let highest = std::arch::x86_64::__cpuid(0).eax;
        if highest < 7 {
            return false;
        }
        let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
        let (bf16, tiles) = (1 << 22, 1 << 24);
        if features & bf16 == 0 || features & tiles == 0 {
            return false;
        }
        let mut result = ARCH_PRCTL;
        // SAFETY: the call only asks for a permission, and changes no memory of the process.
        unsafe {
            asm!(
                "syscall",
                inout("rax") result,
                in("rdi") REQUEST_PERMISSION,
                in("rsi") TILE_DATA,
                out("rcx") _,
                out("r11") _,
                options(nostack),
            );
        }
        result == 0
    }

    /// The registers of the thread, configured as eight tiles of 16 rows of 64 bytes; dropping this frees them.
    pub(in crate::simd) struct Configured(());

    #[repr(C, align(64))]
    struct Configuration {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }

    impl Configured {
        /// # Safety
        /// The processor has tiles and the process may use them.
        pub(in crate::simd) unsafe fn new() -> Self {
            static EIGHT: Configuration = Configuration {
                palette: 1,
                start_row: 0,
                reserved: [0; 14],
                row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
                rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
            };
            // SAFETY: guaranteed by the caller; the configuration has 64 bytes.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const EIGHT, options(nostack, readonly)) };
            Self(())
        }
    }

    impl Drop for Configured {
        fn drop(&mut self) {
            // SAFETY: the instruction exists, since the registers were configured.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }

    /// The vector of AVX-512, whose products are those of tiles.
    #[derive(Clone, Copy)]
    pub(in crate::simd) struct Bf16Tiles(__m512);

    impl SimdVector for Bf16Tiles {
        const LANES: usize = 16;
        const ROWS: usize = super::WIDTH;
        const COLUMNS: usize = super::WIDTH / 16;
        const FORM: PanelForm = PanelForm::Bf16Tiles;

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
            Self(self.0.multiply_add(factor.0, sum.0))
        }

        #[inline(always)]
        fn add(self, other: Self) -> Self {
            Self(self.0.add(other.0))
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
            let blocks = depth.div_ceil(2 * super::PAIRS);
            // SAFETY: guaranteed by the caller; the registers were configured before the kernel.
            unsafe {
                match C {
                    2 => two_columns(a, b, blocks, to, stride),
                    _ => one_column(a, b, blocks, to, stride),
                }
            }
        }
    }

    /// Multiplies two tiles of rows by two of columns.
    ///
    /// # Safety
    /// As [`SimdVector::multiply_panels`].
    #[inline(always)]
    unsafe fn two_columns(
        a: *const f32,
        b: *const f32,
        blocks: usize,
        to: *mut f32,
        stride: usize,
    ) {
        // SAFETY: the loop reads two tiles of each panel per block, and the end writes four tiles.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {blocks}, {blocks}",
                "jz 3f",
                "2:",
                "tileloadd tmm4, [{a} + {a_row}]",
                "tileloadd tmm6, [{b} + {b_row}]",
                "tileloadd tmm7, [{b} + {b_row} + 64]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{a} + {a_row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 2048",
                "add {b}, 2048",
                "dec {blocks}",
                "jnz 2b",
                "3:",
                "tilestored [{to} + {stride}], tmm0",
                "tilestored [{to} + {stride} + 64], tmm1",
                "tilestored [{below} + {stride}], tmm2",
                "tilestored [{below} + {stride} + 64], tmm3",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                blocks = inout(reg) blocks => _,
                a_row = in(reg) 64_usize,
                b_row = in(reg) 128_usize,
                to = in(reg) to,
                below = in(reg) to.add(16 * stride),
                stride = in(reg) 4 * stride,
                options(nostack),
            );
        }
    }

    /// Multiplies two tiles of rows by one of columns.
    ///
    /// # Safety
    /// As [`SimdVector::multiply_panels`].
    #[inline(always)]
    unsafe fn one_column(a: *const f32, b: *const f32, blocks: usize, to: *mut f32, stride: usize) {
        // SAFETY: the loop reads two tiles of rows and one of columns per block, and the end writes two tiles.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm2",
                "test {blocks}, {blocks}",
                "jz 3f",
                "2:",
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm6, [{b} + {row}]",
                "tileloadd tmm5, [{a} + {row} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "add {a}, 2048",
                "add {b}, 1024",
                "dec {blocks}",
                "jnz 2b",
                "3:",
                "tilestored [{to} + {stride}], tmm0",
                "tilestored [{below} + {stride}], tmm2",
                a = inout(reg) a => _,
                b = inout(reg) b => _,
                blocks = inout(reg) blocks => _,
                row = in(reg) 64_usize,
                to = in(reg) to,
                below = in(reg) to.add(16 * stride),
                stride = in(reg) 4 * stride,
                options(nostack),
            );
        }
    }
}

/// The instructions by their definition.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) struct EmulatedTiles([f32; 16]);

#[cfg(test)]
#[expect(unsafe_code, reason = "the methods of a vector")]
impl SimdVector for EmulatedTiles {
    const LANES: usize = 16;
    const ROWS: usize = WIDTH;
    const COLUMNS: usize = 2;
    const FORM: super::PanelForm = super::PanelForm::Bf16Tiles;

    fn splat(value: f32) -> Self {
        Self([value; 16])
    }

    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(unsafe { from.cast::<[f32; 16]>().read_unaligned() })
    }

    unsafe fn store(self, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[f32; 16]>().write_unaligned(self.0) }
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
        let halves = |value: f32| {
            [
                f32::from_bits(value.to_bits() << 16),
                f32::from_bits(value.to_bits() & 0xffff_0000),
            ]
        };
        let (blocks, width) = (depth.div_ceil(2 * PAIRS), 16 * C);
        for row in 0..WIDTH {
            for column in 0..width {
                let mut sum = 0.0;
                for block in 0..blocks {
                    let mut both = [0.0_f32; 2];
                    for pair in 0..PAIRS {
                        // SAFETY: guaranteed by the caller.
                        let [left, right] = unsafe {
                            [
                                *a.add(block * 2 * TILE + row * PAIRS + pair),
                                *b.add((block * PAIRS + pair) * width + column),
                            ]
                        };
                        let (left, right) = (halves(left), halves(right));
                        both =
                            std::array::from_fn(|half| left[half].mul_add(right[half], both[half]));
                    }
                    sum += both[0] + both[1];
                }
                // SAFETY: guaranteed by the caller.
                unsafe { *to.add(row * stride + column) = sum };
            }
        }
    }
}
