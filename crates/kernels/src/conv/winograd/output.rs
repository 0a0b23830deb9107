//! The transform of products to tiles of the output.
#![expect(unsafe_code, reason = "vector loads and stores in inner loops")]

use std::ops::Range;

use super::points::load_points;
use super::sizes::{POINTS, SIDE, TILE};
use super::tiles::TileGrid;
use super::transform::{OutputTile, along_both_axes};
use crate::moves::transpose_to;
use crate::scratch::ScratchBuffer;
use crate::simd::SimdVector;

/// The output `[samples, channels, height, width]`.
pub(super) struct TiledOutput<'a> {
    pub(super) data: &'a mut [f32],
    pub(super) channels: usize,
    pub(super) size: [usize; 2],
}

impl TiledOutput<'_> {
    /// Writes some channels of some strips from products `[point][tile][channel]`.
    #[inline(always)]
    pub(super) fn write<V: SimdVector>(
        &mut self,
        grid: TileGrid,
        strips: Range<usize>,
        channels: Range<usize>,
        (products, point_stride): (&[f32], usize),
        memory: &mut ScratchBuffer,
    ) {
        let ([height, across], width) = (self.size, channels.len());
        let tiles = strips.len() * grid.columns;
        assert!(
            width.is_multiple_of(V::LANES)
                && products.len() >= (POINTS - 1) * point_stride + tiles * width,
            "products of a panel"
        );
        let staged = memory.take(TILE * across * width);
        for (index, strip) in strips.enumerate() {
            let (image, row) = (strip / grid.rows, TILE * (strip % grid.rows));
            let rows = (height - row).min(TILE);
            for column in 0..grid.columns {
                let products = &products[(index * grid.columns + column) * width..];
                let columns = TILE * column..(TILE * (column + 1)).min(across);
                stage_tile::<V>(
                    products,
                    point_stride,
                    width,
                    staged,
                    (rows, columns, across),
                );
            }
            let plane = height * across;
            let at = (image * self.channels + channels.start) * plane + row * across;
            let to = &mut self.data[at..];
            transpose_to::<V>(staged, width, [rows * across, width], to, plane);
        }
    }
}

/// Transforms one tile and writes its rows and columns within the image as `staged[position][channel]`.
#[inline(always)]
fn stage_tile<V: SimdVector>(
    products: &[f32],
    point_stride: usize,
    width: usize,
    staged: &mut [f32],
    (rows, columns, across): (usize, Range<usize>, usize),
) {
    assert!(
        width.is_multiple_of(V::LANES)
            && products.len() >= (POINTS - 1) * point_stride + width
            && rows <= TILE
            && columns.len() <= TILE
            && columns.end <= across
            && staged.len() >= rows * across * width,
        "positions of a tile"
    );
    for lane in (0..width).step_by(V::LANES) {
        let values = load_points::<V>(&products[lane..], point_stride);
        let found = along_both_axes::<V, OutputTile, SIDE, TILE>(&values);
        for (i, found) in found.iter().enumerate().take(rows) {
            for (j, found) in found.iter().enumerate().take(columns.len()) {
                // SAFETY: the position is within `staged`, as asserted.
                unsafe {
                    let position = i * across + columns.start + j;
                    found.store(staged.as_mut_ptr().add(position * width + lane));
                }
            }
        }
    }
}
