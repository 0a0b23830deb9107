//! Products of bf16 with AMX: eight registers hold tiles of 16 rows of 64 bytes, and one instruction multiplies two tiles.
//!
//! The instruction (`tdpbf16ps`) sums the first values of the pairs of a row, and the second ones, in f32 with fused
//! multiply-adds in order, adds both sums, and adds the result to the output. It treats values below 1e-38 as zero. Source:
//! Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
//!
//! Values of f32 are split into three values of bf16, of 8 bits each. Of the nine products of the parts of two factors, the
//! six that are above 2^-25 of the whole are summed. Source: Henry, Tang and Heinecke, "Leveraging the bfloat16
//! Artificial Intelligence Datatype For Higher-Precision Computations", ARITH 2019.
//!
//! Tiles also compute 3 x 3 convolutions, faster than Winograd's form, and from 128 channels of the output on the gradients of
//! their weights. The standard library has no stable functions for AMX, so its instructions are written in assembly.
//!
//! The unit multiplies sixteen times as fast as the f32 unit, so six products take less time than one in f32. Sums of a tile start
//! at zero, so the error is smaller than for f32 products in order. This is not the default: a run would have other bits on
//! processors without AMX, and virtual machines were seen to run AMX at a fifth of its rate for seconds. Convolutions do not use
//! it, because images are packed for few rows of weights.

use super::SimdVector;
use super::pairs::joined;

/// The number of pairs of a row of a tile.
pub(crate) const PAIRS: usize = 16;
/// The number of inner indices of a tile.
pub(crate) const DEPTH: usize = 2 * PAIRS;
/// The number of rows, or columns, of a panel: two tiles.
pub(crate) const WIDTH: usize = 32;
/// The number of elements of a tile.
const TILE: usize = 16 * 16;
/// The number of parts of a split value.
pub(crate) const PARTS: usize = 3;

/// Converts packed panels of up to 32 rows (`LEFT`) or columns to pairs of each of N parts, in place. Each block of 32 inner
/// indices becomes two tiles for each part: of rows, `[tile][row][pair]`; of columns, `[pair][column]`. Missing inner indices
/// are zeros.
#[inline(always)]
pub(super) fn arrange<V: SimdVector, const LEFT: bool, const N: usize>(
    panels: &mut [f32],
    outer: usize,
    depth: usize,
) {
    let length = V::FORM.length(depth);
    // What grows is converted from the end.
    let ordered = |count: usize| {
        (0..count).map(move |place| {
            if length > depth {
                count - 1 - place
            } else {
                place
            }
        })
    };
    for place in ordered(outer.div_ceil(WIDTH)) {
        let width = (outer - place * WIDTH)
            .min(WIDTH)
            .next_multiple_of(V::LANES);
        let (from, to) = (place * WIDTH * depth, place * WIDTH * length);
        for block in ordered(depth.div_ceil(DEPTH)) {
            let first = block * DEPTH;
            let rows = from + first * width..from + (first + DEPTH).min(depth) * width;
            let mut values = [[0.0; WIDTH]; DEPTH];
            for (row, values) in panels[rows].chunks_exact(width).zip(&mut values) {
                values[..width].copy_from_slice(row);
            }
            let size = N * PAIRS * width;
            let to = &mut panels[to + block * size..][..size];
            write_rows::<V, LEFT, N>(DEPTH, |index| values[index], to);
        }
    }
}

/// Splits a value into N parts, whose upper halves are exact in bf16. Three parts have the sum of the value, if it is above 1e-33
/// and below 3.39e38; one part is the value.
#[inline(always)]
fn parts<const N: usize>(value: f32) -> [f32; N] {
    let mut rest = value;
    std::array::from_fn(|part| {
        if part + 1 == N {
            return rest;
        }
        // The nearest value of bf16. The last part of NaN is NaN.
        let found = f32::from_bits(rest.to_bits().wrapping_add(0x8000) & 0xffff_0000);
        rest -= found;
        found
    })
}

/// Writes a block of up to 32 inner indices as tiles of rows (`LEFT`) or columns; `row` returns the values of an inner index.
#[inline(always)]
pub(crate) fn write_rows<V: SimdVector, const LEFT: bool, const N: usize>(
    depth: usize,
    row: impl Fn(usize) -> [f32; WIDTH],
    to: &mut [f32],
) {
    let width = to.len() / (N * PAIRS);
    let mut pairs = [[[0.0; WIDTH]; PAIRS]; N];
    let at = |index: usize| {
        if index < depth {
            row(index)
        } else {
            [0.0; WIDTH]
        }
    };
    let mut write = |pair: usize, part: usize, values: &[f32; WIDTH]| {
        if LEFT {
            pairs[part][pair] = *values;
            return;
        }
        let to = &mut to[(part * PAIRS + pair) * width..][..width];
        // A copy of known length needs no call.
        match to.first_chunk_mut() {
            Some(to) => *to = *values,
            None => to.copy_from_slice(&values[..width]),
        }
    };
    for pair in 0..PAIRS {
        let (first, second) = (at(2 * pair), at(2 * pair + 1));
        let mut joined_parts = [[0.0; WIDTH]; N];
        for place in 0..WIDTH {
            let (first, second) = (parts::<N>(first[place]), parts::<N>(second[place]));
            for part in 0..N {
                joined_parts[part][place] = joined(first[part], second[part]);
            }
        }
        for (part, values) in joined_parts.iter().enumerate() {
            write(pair, part, values);
        }
    }
    if LEFT {
        for (pairs, to) in pairs.iter().zip(to.chunks_exact_mut(2 * TILE)) {
            transpose_tiles::<V>(pairs, to);
        }
    }
}

/// Writes a block of up to 32 inner indices as tiles of rows (`LEFT`) or columns; `line` returns the values of an outer index, of
/// which there are up to 32.
#[inline(always)]
pub(crate) fn write_lines<V: SimdVector, const LEFT: bool, const N: usize>(
    outer: usize,
    line: impl Fn(usize) -> [f32; DEPTH],
    to: &mut [f32],
) {
    let split = |values: &[f32; DEPTH]| {
        let mut pairs = [[0.0; PAIRS]; N];
        for pair in 0..PAIRS {
            let first = parts::<N>(values[2 * pair]);
            let second = parts::<N>(values[2 * pair + 1]);
            for part in 0..N {
                pairs[part][pair] = joined(first[part], second[part]);
            }
        }
        pairs
    };
    if LEFT {
        let (rows, _) = to.as_chunks_mut::<PAIRS>();
        for row in 0..WIDTH {
            let pairs = if row < outer {
                split(&line(row))
            } else {
                [[0.0; PAIRS]; N]
            };
            for (part, pairs) in pairs.iter().enumerate() {
                rows[part * WIDTH + row] = *pairs;
            }
        }
        return;
    }
    let mut columns = [[[0.0; PAIRS]; WIDTH]; N];
    for column in 0..outer.min(WIDTH) {
        let pairs = split(&line(column));
        for (columns, pairs) in columns.iter_mut().zip(pairs) {
            columns[column] = pairs;
        }
    }
    let size = to.len() / N;
    for (columns, to) in columns.iter().zip(to.chunks_exact_mut(size.max(1))) {
        transpose_tile_columns::<V>(columns, to);
    }
}

/// Transposes pairs of 32 rows to two tiles.
#[expect(unsafe_code, reason = "blocks of 8 by 8 are moved as vectors")]
#[inline(always)]
fn transpose_tiles<V: SimdVector>(pairs: &[[f32; WIDTH]; PAIRS], to: &mut [f32]) {
    assert_eq!(to.len(), 2 * TILE, "two tiles");
    for row in (0..WIDTH).step_by(8) {
        for pair in (0..PAIRS).step_by(8) {
            // SAFETY: blocks of 8 by 8 within 16 rows of 32, and within two tiles of 16 rows of 16.
            unsafe {
                let from = pairs.as_ptr().cast::<f32>().add(pair * WIDTH + row);
                V::transpose(from, WIDTH, to.as_mut_ptr().add(row * PAIRS + pair), PAIRS);
            }
        }
    }
}

/// Transposes `[column][pair]` to rows of as many columns as there is room for.
#[expect(unsafe_code, reason = "blocks of 8 by 8 are moved as vectors")]
#[inline(always)]
fn transpose_tile_columns<V: SimdVector>(pairs: &[[f32; PAIRS]; WIDTH], to: &mut [f32]) {
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
pub(super) use x86::{Configured, Tiles};

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
        // SAFETY: the call only requests a permission, and changes no memory of the process.
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

    /// The vector of AVX-512, whose products are those of tiles with N parts of each value.
    #[derive(Clone, Copy)]
    pub(in crate::simd) struct Tiles<const N: usize>(__m512);

    impl<const N: usize> SimdVector for Tiles<N> {
        const LANES: usize = 16;
        const ROWS: usize = super::WIDTH;
        const COLUMNS: usize = super::WIDTH / 16;
        const FORM: PanelForm = PanelForm::of_tiles(N);

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
        fn fetch(at: *const f32) {
            // Products of single parts are slower with it.
            if N > 1 {
                __m512::fetch(at);
            }
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
            let blocks = depth.div_ceil(super::DEPTH);
            // SAFETY: guaranteed by the caller; the registers were configured before the kernel.
            unsafe {
                match (N, C) {
                    (1, 2) => two_columns(a, b, blocks, to, stride),
                    (1, _) => one_column(a, b, blocks, to, stride),
                    (_, 2) => two_split_columns(a, b, blocks, to, stride),
                    (_, _) => one_split_column(a, b, blocks, to, stride),
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

    /// Instructions that load two tiles of rows, from two offsets, and multiply them by the columns.
    macro_rules! multiply_rows {
        ($first:literal, $second:literal) => {
            concat!(
                "tileloadd tmm4, [{a} + {a_row} + ",
                $first,
                "]\ntdpbf16ps tmm0, tmm4, tmm6",
                "\ntdpbf16ps tmm1, tmm4, tmm7",
                "\ntileloadd tmm5, [{a} + {a_row} + ",
                $second,
                "]\ntdpbf16ps tmm2, tmm5, tmm6",
                "\ntdpbf16ps tmm3, tmm5, tmm7",
            )
        };
    }

    /// Instructions that load two tiles of columns, from two offsets, and multiply the rows by them.
    macro_rules! multiply_columns {
        ($first:literal, $second:literal) => {
            concat!(
                "tileloadd tmm6, [{b} + {b_row} + ",
                $first,
                "]\ntdpbf16ps tmm0, tmm4, tmm6",
                "\ntileloadd tmm7, [{b} + {b_row} + ",
                $second,
                "]\ntdpbf16ps tmm1, tmm4, tmm7",
                "\ntdpbf16ps tmm2, tmm5, tmm6",
                "\ntdpbf16ps tmm3, tmm5, tmm7",
            )
        };
    }

    /// Multiplies two tiles of rows by two of columns, whose values are split into three parts: the smallest products first.
    ///
    /// # Safety
    /// As [`SimdVector::multiply_panels`].
    #[inline(always)]
    unsafe fn two_split_columns(
        a: *const f32,
        b: *const f32,
        blocks: usize,
        to: *mut f32,
        stride: usize,
    ) {
        // SAFETY: the loop reads six tiles of each panel per block, and the end writes four tiles.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {blocks}, {blocks}",
                "jz 3f",
                "2:",
                "tileloadd tmm6, [{b} + {b_row}]",
                "tileloadd tmm7, [{b} + {b_row} + 64]",
                // The third part of the rows by the first of the columns, the second by the first, and so on.
                multiply_rows!(4096, 5120),
                multiply_rows!(2048, 3072),
                multiply_columns!(2048, 2112),
                multiply_rows!(0, 1024),
                multiply_columns!(4096, 4160),
                multiply_columns!(0, 64),
                "add {a}, 6144",
                "add {b}, 6144",
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

    /// Multiplies two tiles of rows by one of columns, whose values are split into three parts.
    ///
    /// # Safety
    /// As [`SimdVector::multiply_panels`].
    #[inline(always)]
    unsafe fn one_split_column(
        a: *const f32,
        b: *const f32,
        blocks: usize,
        to: *mut f32,
        stride: usize,
    ) {
        // SAFETY: the loop reads six tiles of rows and three of columns per block, and the end writes two tiles.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm2",
                "test {blocks}, {blocks}",
                "jz 3f",
                "2:",
                "tileloadd tmm4, [{a} + {row} + 4096]",
                "tileloadd tmm6, [{b} + {row}]",
                "tileloadd tmm5, [{a} + {row} + 5120]",
                "tileloadd tmm7, [{b} + {row} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm4, [{a} + {row} + 2048]",
                "tileloadd tmm5, [{a} + {row} + 3072]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm7",
                "tileloadd tmm4, [{a} + {row}]",
                "tileloadd tmm5, [{a} + {row} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm7",
                "tileloadd tmm7, [{b} + {row} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm7",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "add {a}, 6144",
                "add {b}, 3072",
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
pub(crate) struct EmulatedTiles<const N: usize>([f32; 16]);

#[cfg(test)]
#[expect(unsafe_code, reason = "the methods of a vector")]
impl<const N: usize> SimdVector for EmulatedTiles<N> {
    const LANES: usize = 16;
    const ROWS: usize = WIDTH;
    const COLUMNS: usize = 2;
    const FORM: super::PanelForm = super::PanelForm::of_tiles(N);

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
        let (blocks, width) = (depth.div_ceil(DEPTH), 16 * C);
        let products: &[[usize; 2]] = match N {
            1 => &[[0, 0]],
            _ => &[[2, 0], [1, 0], [1, 1], [0, 1], [0, 2], [0, 0]],
        };
        for row in 0..WIDTH {
            for column in 0..width {
                let mut sum = 0.0;
                for (block, [of_row, of_column]) in
                    (0..blocks).flat_map(|block| products.iter().map(move |parts| (block, *parts)))
                {
                    let mut both = [0.0_f32; 2];
                    for pair in 0..PAIRS {
                        let (left, right) = (block * N + of_row, block * N + of_column);
                        // SAFETY: guaranteed by the caller.
                        let [left, right] = unsafe {
                            [
                                *a.add(left * 2 * TILE + row * PAIRS + pair),
                                *b.add((right * PAIRS + pair) * width + column),
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
