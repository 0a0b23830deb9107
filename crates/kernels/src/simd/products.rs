//! Products of values that are rounded to a short format, with the instructions that the processor has for them.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions compiled for these instructions")
)]

use super::SimdKernel;
use super::pairs::pairs_are_faster;
use super::tiles::has_tiles;
use super::{Level, SimdVector};
use crate::ShortFormat;
use crate::short::{double_f16, shorten_f16};

/// The instructions that multiply values of a short format. Their bits differ from those of products in f32, and from
/// each other's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShortProducts {
    /// AVX512-BF16: products of bf16 in pairs, and sums in f32.
    Bf16Pairs,
    /// AMX: products of bf16 in tiles of 16 by 16, and sums in f32.
    Bf16Tiles,
    /// AVX512-FP16: sums of at most 16 products in f16, which are added in f32.
    F16Sums,
}

impl ShortProducts {
    /// Returns the best instructions of this processor for a format, at the level of this thread. `None` if products are
    /// computed in f32: the processor has no others, or they are slower there. The first call measures
    /// both for less than a millisecond, because AVX512-BF16 is faster than f32 on some processors and slower on others.
    #[must_use]
    pub fn of(format: ShortFormat) -> Option<Self> {
        #[cfg(test)]
        if let Some(emulated) = emulated::current() {
            return emulated.format().eq(&format).then_some(emulated);
        }
        if Level::current() != Level::Avx512 {
            return None;
        }
        match format {
            ShortFormat::Bf16 if has_tiles() => Some(Self::Bf16Tiles),
            ShortFormat::Bf16 => pairs_are_faster().then_some(Self::Bf16Pairs),
            ShortFormat::F16 => has_f16_sums().then_some(Self::F16Sums),
        }
    }

    /// Returns the name in a plan's identity.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16Pairs => "avx512-bf16",
            Self::Bf16Tiles => "amx-bf16",
            Self::F16Sums => "avx512-fp16",
        }
    }

    /// Returns the format of the factors.
    #[must_use]
    pub fn format(self) -> ShortFormat {
        match self {
            Self::Bf16Pairs | Self::Bf16Tiles => ShortFormat::Bf16,
            Self::F16Sums => ShortFormat::F16,
        }
    }
}

fn has_f16_sums() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx512fp16");
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Runs a kernel whose operands are all rounded to a format, with the best products of the format.
#[inline]
pub(crate) fn dispatch_products<K: SimdKernel>(
    format: Option<ShortFormat>,
    kernel: K,
) -> K::Output {
    let Some(products) = format.and_then(ShortProducts::of) else {
        return super::dispatch(kernel);
    };
    #[cfg(test)]
    if emulated::current().is_some() {
        return match products {
            ShortProducts::Bf16Tiles => kernel.run::<super::tiles::EmulatedTiles>(),
            ShortProducts::F16Sums => kernel.run::<super::f16_sums::EmulatedF16Sums>(),
            ShortProducts::Bf16Pairs => super::dispatch(kernel),
        };
    }
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512bf16,avx2,fma")]
        fn pairs<K: SimdKernel>(kernel: K) -> K::Output {
            kernel.run::<super::pairs::Bf16Pairs>()
        }
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
        fn tiles<K: SimdKernel>(kernel: K) -> K::Output {
            // SAFETY: the processor has tiles, and the process may use them, as was detected.
            let _configured = unsafe { super::tiles::Configured::new() };
            kernel.run::<super::tiles::Bf16Tiles>()
        }
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx512fp16,avx2,fma")]
        fn f16_sums<K: SimdKernel>(kernel: K) -> K::Output {
            kernel.run::<super::f16_sums::F16Sums>()
        }
        match products {
            // SAFETY: the processor has the instructions of the chosen products.
            ShortProducts::Bf16Pairs => unsafe { pairs(kernel) },
            // SAFETY: as above.
            ShortProducts::Bf16Tiles => unsafe { tiles(kernel) },
            // SAFETY: as above.
            ShortProducts::F16Sums => unsafe { f16_sums(kernel) },
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = products;
        super::dispatch(kernel)
    }
}

/// How the panels of packed operands are stored, in place of the f32 values that were packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PanelForm {
    /// As packed.
    Values,
    /// See [`super::pairs::pair_rows`].
    Bf16Pairs,
    /// See [`super::tiles::arrange`].
    Bf16Tiles,
    /// Rows by [`double_f16`], columns by [`shorten_f16`].
    F16,
}

impl PanelForm {
    /// Returns the inner length for which a panel has memory: that of the values while they are packed, and at least that
    /// of a tile.
    #[inline(always)]
    pub(crate) const fn length(self, depth: usize) -> usize {
        match self {
            Self::Bf16Tiles if depth > 0 && depth < super::tiles::PAIRS => super::tiles::PAIRS,
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
        PanelForm::Bf16Tiles => {
            super::tiles::arrange::<V, true>(panels, count * super::tiles::WIDTH, depth);
        }
        PanelForm::F16 => {
            double_f16(&mut panels[..count * V::ROWS * depth]);
        }
    }
}

/// Converts packed panels of columns, of which the last has as many vectors as it needs, as [`arrange_rows`].
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
        PanelForm::Bf16Tiles => super::tiles::arrange::<V, false>(panels, columns, depth),
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

    use super::ShortProducts;

    thread_local! {
        static CURRENT: Cell<Option<ShortProducts>> = const { Cell::new(None) };
    }

    /// Returns what the thread emulates.
    pub(super) fn current() -> Option<ShortProducts> {
        CURRENT.get()
    }

    /// Runs code whose products of the format are those of the instructions, emulated.
    pub(crate) fn with<R>(products: ShortProducts, work: impl FnOnce() -> R) -> R {
        CURRENT.set(Some(products));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        CURRENT.set(None);
        ended.unwrap_or_else(|cause| std::panic::resume_unwind(cause))
    }
}
