//! The gradient of a convolution's weights; windows are read from the image in place.
#![expect(unsafe_code, reason = "vector loads and stores in the innermost loops")]

mod tiled;
mod tree;

use std::ops::Range;

use super::image::{GroupImage, OutputGroup, groups};
use super::{Convolution, row_starts, taps};
use crate::gemm::chunks;
use crate::moves::transpose_into;
use crate::scratch::lend;
use crate::simd::{PanelForm, SimdKernel, SimdVector};

pub(super) use tree::{WeightGradientTree, bytes_of_shard};

/// The number of taps of a register tile: with four vectors of outputs, 24 sums.
const TAPS: usize = 6;
/// The largest number of vectors of outputs in a register tile.
const VECTORS: usize = 4;

pub(super) struct WeightGradient<'a> {
    pub(super) shape: Convolution,
    pub(super) samples: usize,
    pub(super) x: &'a [f32],
    pub(super) dy: &'a [f32],
    /// The channels of the output whose weights are requested.
    pub(super) outputs: Range<usize>,
    pub(super) dw: &'a mut [f32],
}

impl SimdKernel for WeightGradient<'_> {
    type Output = ();

    /// Sums `[taps, outputs]` group by group, in order, and transposes the sum at the end.
    #[inline(always)]
    fn run<V: SimdVector>(self) {
        if V::FORM == PanelForm::Bf16Tiles {
            return tiled::run::<V>(self);
        }
        let shape = self.shape;
        let (output, window) = (shape.output_size(), shape.window());
        let vectors = if V::LANES == 16 { VECTORS } else { V::COLUMNS };
        let buffers = &mut *lend();
        let sums = window * self.outputs.len().next_multiple_of(V::LANES);
        let sums = buffers.left.take(sums);
        sums.fill(0.0);
        for group in groups(self.samples, output) {
            let image = GroupImage::of::<V>(&shape, self.x, &group, &mut buffers.image);
            let pass = WeightGradientPass::of(&shape, &image, &group);
            for outputs in chunks(self.outputs.clone(), vectors * V::LANES) {
                let count = outputs.len().div_ceil(V::LANES);
                let panel = group.columns(output) * count * V::LANES;
                let panel = buffers.right.take(panel);
                turn::<V>(&shape, self.dy, &group, outputs.clone(), panel);
                pass.add::<V>(
                    panel,
                    count,
                    &mut sums[(outputs.start - self.outputs.start) * window..],
                );
            }
        }
        give::<V>(sums, self.dw, window, vectors * V::LANES);
    }
}

/// Packs the gradients of some outputs as `panel[position][outputs]`.
#[inline(always)]
fn turn<V: SimdVector>(
    shape: &Convolution,
    dy: &[f32],
    group: &OutputGroup,
    outputs: Range<usize>,
    panel: &mut [f32],
) {
    let output = shape.output_size();
    let plane = output[0] * output[1];
    let places = group.rows.len() * output[1];
    let width = outputs.len().next_multiple_of(V::LANES);
    for (image, to) in group
        .images
        .clone()
        .zip(panel.chunks_exact_mut(places * width))
    {
        let at = (image * shape.outputs + outputs.start) * plane + group.rows.start * output[1];
        transpose_into::<V>(&dy[at..], plane, outputs.len(), places, width, to);
    }
}

/// Writes the sums, stored in panels `[taps][outputs of the panel]`, as `[outputs, taps]`.
#[inline(always)]
fn give<V: SimdVector>(sums: &[f32], dw: &mut [f32], window: usize, panel: usize) {
    for outputs in chunks(0..dw.len() / window.max(1), panel) {
        let width = outputs.len().next_multiple_of(V::LANES);
        let from = &sums[outputs.start * window..];
        let to = &mut dw[outputs.start * window..outputs.end * window];
        transpose_into::<V>(from, width, window, outputs.len(), window, to);
    }
}

/// One group of one convolution.
struct WeightGradientPass<'a> {
    image: &'a [f32],
    taps: Vec<usize>,
    row_starts: Vec<usize>,
    width: usize,
    stride: usize,
}

impl<'a> WeightGradientPass<'a> {
    /// Returns the pass over a group of outputs, and the part of the input that they depend on.
    fn of(shape: &Convolution, image: &GroupImage<'a>, group: &OutputGroup) -> Self {
        Self {
            taps: taps(shape, image),
            row_starts: row_starts(shape, image, group),
            image: image.data,
            width: shape.output_size()[1],
            stride: shape.stride[1],
        }
    }
}

impl WeightGradientPass<'_> {
    /// Adds the products of all taps with the outputs of a panel to `sums[tap][outputs]`.
    #[inline(always)]
    fn add<V: SimdVector>(&self, panel: &[f32], vectors: usize, sums: &mut [f32]) {
        match vectors {
            4 => self.add_sized::<V, 4>(panel, sums),
            3 => self.add_sized::<V, 3>(panel, sums),
            2 => self.add_sized::<V, 2>(panel, sums),
            _ => self.add_sized::<V, 1>(panel, sums),
        }
    }

    #[inline(always)]
    fn add_sized<V: SimdVector, const C: usize>(&self, panel: &[f32], sums: &mut [f32]) {
        let width = C * V::LANES;
        for (tile, sums) in self.taps.chunks(TAPS).zip(sums.chunks_mut(TAPS * width)) {
            // Missing taps repeat the last one and are not written.
            let taps = std::array::from_fn(|i| tile[i.min(tile.len() - 1)]);
            let found = self.tile::<V, C>(&taps, 0..self.row_starts.len(), panel);
            let elements = tile.len() * width;
            for (tap, found) in found.iter().enumerate().take(tile.len()) {
                for (c, found) in found.iter().enumerate() {
                    let at = tap * width + c * V::LANES;
                    assert!(at + V::LANES <= elements.min(sums.len()), "sums of a tile");
                    // SAFETY: `sums` has `LANES` elements from `at` on, as asserted.
                    unsafe {
                        let to = sums.as_mut_ptr().add(at);
                        found.multiply_add(V::splat(1.0), V::load(to)).store(to);
                    }
                }
            }
        }
    }

    /// Multiplies some taps with the outputs of a panel and sums over the positions of some rows in order. The panel begins with
    /// these rows.
    #[expect(
        clippy::needless_range_loop,
        reason = "indices of registers; iterators hide from the compiler that they are"
    )]
    #[inline(always)]
    fn tile<V: SimdVector, const C: usize>(
        &self,
        taps: &[usize; TAPS],
        rows: Range<usize>,
        panel: &[f32],
    ) -> [[V; C]; TAPS] {
        let (width, step) = (C * V::LANES, self.stride);
        let row_starts = &self.row_starts[rows];
        let last = row_starts.last().copied().unwrap_or(0) + (self.width - 1) * step;
        let furthest = taps.iter().max().copied().unwrap_or(0);
        assert!(
            last + furthest < self.image.len() && row_starts.is_sorted(),
            "windows end in the image"
        );
        assert!(
            panel.len() >= row_starts.len() * self.width * width,
            "a panel has all positions"
        );
        let mut sums = [[V::splat(0.0); C]; TAPS];
        let mut right = panel.as_ptr();
        for &start in row_starts {
            // SAFETY: all windows end inside the image and the panel has all positions, as asserted.
            unsafe {
                let image = self.image.as_ptr().add(start);
                let rows = taps.map(|tap| image.add(tap));
                for place in 0..self.width {
                    let mut outputs = [V::splat(0.0); C];
                    for c in 0..C {
                        outputs[c] = V::load(right.add(c * V::LANES));
                    }
                    for tap in 0..TAPS {
                        let left = V::splat(*rows[tap].add(place * step));
                        for c in 0..C {
                            sums[tap][c] = left.multiply_add(outputs[c], sums[tap][c]);
                        }
                    }
                    right = right.add(width);
                }
            }
        }
        sums
    }
}
