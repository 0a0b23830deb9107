//! Products with the instructions that the processor has for values of a format.
//!
//! The instructions are part of the plan's identity. Each is a `SimdVector` with a form of packed panels (`PanelForm`), so products
//! and convolutions have one driver for all. Tests run the drivers with emulations by the definition of the instructions, and
//! compare the processor's bits with them where it has the instructions.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions compiled for these instructions")
)]

use super::SimdKernel;
use super::pairs::{has_pairs, pairs_are_faster};
use super::tiles::{DEPTH, PAIRS, PARTS, WIDTH, arrange, has_tiles};
use super::{Level, SimdVector};
use crate::short::ShortFormat;
use crate::short::{double_f16, shorten_f16};

/// The instructions that multiply values. The bits of each of them differ from the others'.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Products {
    /// Products and sums of f32, of the instructions of the [`Level`].
    F32,
    /// AMX: f32 values are split into three values of bf16, whose products are summed in f32 in tiles of 16 by 16. As exact as
    /// f32 for values from 1e-33 to 3.39e38; infinite and greater values result in NaN.
    SplitTiles,
    /// AVX512-BF16: products of bf16 in pairs, and sums in f32.
    Bf16Pairs,
    /// AMX: products of bf16 in tiles of 16 by 16, and sums in f32.
    Bf16Tiles,
    /// AVX512-FP16: sums of at most 16 products in f16, which are added in f32.
    F16Sums,
}

impl Products {
    /// Returns the fastest instructions of this processor for values of a format (`None`: f32), at the level of this thread.
    /// [`Products::F32`] if the processor has no others, or they are slower there. The first call for bf16 measures
    /// both for less than a millisecond, because AVX512-BF16 is faster than f32 on some processors and slower on others.
    #[must_use]
    pub fn of(format: Option<ShortFormat>) -> Self {
        if Level::current() != Level::Avx512 {
            return Self::F32;
        }
        match format {
            None if has_tiles() => Self::SplitTiles,
            Some(ShortFormat::Bf16) if has_tiles() => Self::Bf16Tiles,
            Some(ShortFormat::Bf16) if pairs_are_faster() => Self::Bf16Pairs,
            Some(ShortFormat::F16) if has_f16_sums() => Self::F16Sums,
            _ => Self::F32,
        }
    }

    /// Returns the name in a plan's identity, which does not name f32.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::F32 => None,
            Self::SplitTiles => Some("split f32 in amx-bf16"),
            Self::Bf16Pairs => Some("avx512-bf16"),
            Self::Bf16Tiles => Some("amx-bf16"),
            Self::F16Sums => Some("avx512-fp16"),
        }
    }

    /// Returns whether this processor has the instructions.
    fn are_here(self) -> bool {
        match self {
            Self::F32 => true,
            Self::SplitTiles | Self::Bf16Tiles => has_tiles(),
            Self::Bf16Pairs => has_pairs(),
            Self::F16Sums => has_f16_sums(),
        }
    }
}

fn has_f16_sums() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512fp16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Runs a kernel with the given products, which in a short format need operands that are rounded to it.
///
/// # Panics
/// If this processor does not have the instructions. (In tests, some are emulated.)
#[inline]
pub(crate) fn dispatch_products<K: SimdKernel>(products: Products, kernel: K) -> K::Output {
    #[cfg(test)]
    if emulated::is_on() {
        return match products {
            Products::SplitTiles => kernel.run::<super::tiles::EmulatedTiles<PARTS>>(),
            Products::Bf16Tiles => kernel.run::<super::tiles::EmulatedTiles<1>>(),
            Products::F16Sums => kernel.run::<super::f16_sums::EmulatedF16Sums>(),
            Products::Bf16Pairs | Products::F32 => super::dispatch(kernel),
        };
    }
    assert!(products.are_here(), "{products:?} on this processor");
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
        fn pairs<K: SimdKernel>(kernel: K) -> K::Output {
            kernel.run::<super::pairs::Bf16Pairs>()
        }
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
        fn tiles<K: SimdKernel, const N: usize>(kernel: K) -> K::Output {
            // SAFETY: the processor has tiles, and the process may use them, as was detected.
            let _configured = unsafe { super::tiles::Configured::new() };
            kernel.run::<super::tiles::Tiles<N>>()
        }
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512fp16,avx2,fma")]
        fn f16_sums<K: SimdKernel>(kernel: K) -> K::Output {
            kernel.run::<super::f16_sums::F16Sums>()
        }
        match products {
            Products::F32 => super::dispatch(kernel),
            // SAFETY: the processor has the instructions of the products, as asserted.
            Products::SplitTiles => unsafe { tiles::<K, PARTS>(kernel) },
            // SAFETY: as above.
            Products::Bf16Pairs => unsafe { pairs(kernel) },
            // SAFETY: as above.
            Products::Bf16Tiles => unsafe { tiles::<K, 1>(kernel) },
            // SAFETY: as above.
            Products::F16Sums => unsafe { f16_sums(kernel) },
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    super::dispatch(kernel)
}

/// How the panels of packed operands are stored, instead of the f32 values that were packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PanelForm {
    /// As packed.
    Values,
    /// See [`super::pairs::pair_rows`].
    Bf16Pairs,
    /// See [`super::tiles::arrange`]: one part.
    Bf16Tiles,
    /// The same with three parts of each value.
    SplitTiles,
    /// Rows by [`double_f16`], columns by [`shorten_f16`].
    F16,
}

impl PanelForm {
    /// Returns the form of tiles with a number of parts of each value.
    pub(super) const fn of_tiles(parts: usize) -> Self {
        match parts {
            1 => Self::Bf16Tiles,
            _ => Self::SplitTiles,
        }
    }

    /// Returns whether panels are tiles.
    #[inline(always)]
    pub(crate) const fn has_tiles(self) -> bool {
        matches!(self, Self::Bf16Tiles | Self::SplitTiles)
    }

    /// Returns the inner length for which a panel has memory: that of the values while they are packed, and at least that
    /// of its tiles.
    #[inline(always)]
    pub(crate) const fn length(self, depth: usize) -> usize {
        match self {
            Self::Bf16Tiles if depth > 0 && depth < PAIRS => PAIRS,
            Self::SplitTiles => depth.div_ceil(DEPTH) * PARTS * PAIRS,
            _ => depth,
        }
    }

    /// Returns the number of rows of an arranged panel, each of as many f32 as it has outer indices.
    #[inline(always)]
    pub(crate) const fn rows(self, depth: usize) -> usize {
        match self {
            Self::Bf16Pairs => depth.div_ceil(2),
            _ => self.length(depth),
        }
    }
}

/// Converts packed panels of rows, `V::ROWS` each, to the form of the vector, in place. The memory of panel `i` begins at
/// `i * V::ROWS * depth` before and at `i * V::ROWS * V::FORM.length(depth)` afterwards.
#[inline(always)]
pub(crate) fn arrange_rows<V: SimdVector>(panels: &mut [f32], count: usize, depth: usize) {
    match V::FORM {
        PanelForm::Values => {}
        PanelForm::Bf16Pairs => {
            for panel in panels.chunks_mut((V::ROWS * depth).max(1)).take(count) {
                super::pairs::pair_rows(panel, depth, V::ROWS);
            }
        }
        PanelForm::Bf16Tiles => arrange::<V, true, 1>(panels, count * WIDTH, depth),
        PanelForm::SplitTiles => arrange::<V, true, PARTS>(panels, count * WIDTH, depth),
        PanelForm::F16 => {
            double_f16(&mut panels[..count * V::ROWS * depth]);
        }
    }
}

/// Converts packed panels of columns, the last one with as many vectors as it needs, as [`arrange_rows`].
#[inline(always)]
pub(crate) fn arrange_columns<V: SimdVector>(panels: &mut [f32], columns: usize, depth: usize) {
    let panel = V::COLUMNS * V::LANES;
    let widths = (0..columns).step_by(panel).map(|start| {
        let width = (columns - start).min(panel);
        width.next_multiple_of(V::LANES)
    });
    match V::FORM {
        PanelForm::Values => {}
        PanelForm::Bf16Pairs => {
            for (width, panel) in widths.zip(panels.chunks_mut((panel * depth).max(1))) {
                super::pairs::pair_rows(panel, depth, width);
            }
        }
        PanelForm::Bf16Tiles => arrange::<V, false, 1>(panels, columns, depth),
        PanelForm::SplitTiles => arrange::<V, false, PARTS>(panels, columns, depth),
        PanelForm::F16 => {
            for (width, panel) in widths.zip(panels.chunks_mut((panel * depth).max(1))) {
                shorten_f16(&mut panel[..width * depth]);
            }
        }
    }
}

/// Products computed by the definitions of the instructions, so that tests cover their callers on any processor.
#[cfg(test)]
pub(crate) mod emulated {
    use std::cell::Cell;

    thread_local! {
        static IS_ON: Cell<bool> = const { Cell::new(false) };
    }

    /// Returns whether the thread emulates instructions.
    pub(super) fn is_on() -> bool {
        IS_ON.get()
    }

    /// Runs code whose products are emulated.
    pub(crate) fn run<R>(work: impl FnOnce() -> R) -> R {
        IS_ON.set(true);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        IS_ON.set(false);
        ended.unwrap_or_else(|cause| std::panic::resume_unwind(cause))
    }
}
