//! The division of images into tiles, and the transform of tiles.
#![expect(unsafe_code, reason = "vector loads and stores in inner loops")]

use std::ops::Range;

use super::panels::PanelLayout;
use super::points::store_points;
use super::sizes::{SIDE, TILE, TILES_PER_BLOCK};
use super::transform::{LineTransform, along_both_axes};
use crate::gemm::chunks;
use crate::moves::transpose_into;
use crate::scratch::ScratchBuffer;
use crate::simd::SimdVector;

/// The tiles of an output. A strip is a row of tiles of one image; strips are numbered through all images.
#[derive(Debug, Clone, Copy)]
pub(super) struct TileGrid {
    /// The number of strips of an image.
    pub(super) rows: usize,
    /// The number of tiles of a strip.
    pub(super) columns: usize,
}

impl TileGrid {
    pub(super) fn of([height, width]: [usize; 2]) -> Self {
        Self {
            rows: height.div_ceil(TILE),
            columns: width.div_ceil(TILE),
        }
    }

    /// Divides the strips of all samples into groups of about `tiles` tiles.
    #[inline(always)]
    pub(super) fn groups(self, samples: usize, tiles: usize) -> impl Iterator<Item = Range<usize>> {
        chunks(0..samples * self.rows, (tiles / self.columns).max(1))
    }

    /// Divides strips into blocks, whose tiles are multiplied together.
    #[inline(always)]
    pub(super) fn blocks(self, strips: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        chunks(strips, (TILES_PER_BLOCK / self.columns).max(1))
    }

    /// Returns the largest number of tiles of a block.
    pub(super) fn block_tiles(self) -> usize {
        (TILES_PER_BLOCK / self.columns).max(1) * self.columns
    }
}

/// Images `[samples, channels, height, width]`, from which square tiles are read.
#[derive(Clone, Copy)]
pub(super) struct TiledImages<'a> {
    pub(super) data: &'a [f32],
    pub(super) channels: usize,
    pub(super) size: [usize; 2],
    /// The number of zeros before the first tile along both axes.
    pub(super) padding: [usize; 2],
}

impl TiledImages<'_> {
    /// Transforms the tiles of some strips, of side `N`, and writes them as `[point][tile, channel]` from `first` on.
    #[inline(always)]
    pub(super) fn transform<V: SimdVector, L: LineTransform<N, SIDE>, const N: usize>(
        &self,
        grid: TileGrid,
        strips: Range<usize>,
        first: usize,
        (to, layout): (&mut [f32], PanelLayout),
        memory: &mut ScratchBuffer,
    ) {
        let mut tile = first;
        let mut strip = strips.start;
        while strip < strips.end {
            // The strips of one image.
            let (image, row) = (strip / grid.rows, strip % grid.rows);
            let rows = row..(row + strips.end - strip).min(grid.rows);
            strip += rows.len();
            let band = self.band::<V, N>(image, &rows, memory);
            for row in rows {
                for column in 0..grid.columns {
                    let offsets = band.offsets::<N>(self, row, column);
                    self.transform_tile::<V, L, N>(band.pixels, &offsets, tile, to, layout);
                    tile += 1;
                }
            }
        }
    }

    /// Copies the rows that some strips of an image need as `[position][channel]`, after zeros for one position.
    #[inline(always)]
    fn band<'a, V: SimdVector, const N: usize>(
        &self,
        image: usize,
        strips: &Range<usize>,
        memory: &'a mut ScratchBuffer,
    ) -> Band<'a> {
        let ([height, width], channels) = (self.size, self.channels);
        let top = (TILE * strips.start).saturating_sub(self.padding[0]);
        let bottom = (TILE * (strips.end - 1) + N).saturating_sub(self.padding[0]);
        let positions = bottom.min(height).saturating_sub(top) * width;
        let pixels = memory.take(channels * (1 + positions));
        let (zeros, rows) = pixels.split_at_mut(channels);
        zeros.fill(0.0);
        if positions > 0 {
            let from = &self.data[image * channels * height * width + top * width..];
            transpose_into::<V>(from, height * width, channels, positions, channels, rows);
        }
        Band { pixels, top }
    }

    #[inline(always)]
    fn transform_tile<V: SimdVector, L: LineTransform<N, SIDE>, const N: usize>(
        &self,
        pixels: &[f32],
        offsets: &[[usize; N]; N],
        tile: usize,
        to: &mut [f32],
        layout: PanelLayout,
    ) {
        let (channels, stride) = (self.channels, layout.point_stride());
        let furthest = offsets.as_flattened().iter().max().copied().unwrap_or(0);
        assert!(
            furthest + channels <= pixels.len()
                && channels.is_multiple_of(V::LANES)
                && layout.width.is_multiple_of(V::LANES)
                && channels == layout.columns
                && tile < layout.depth
                && to.len() >= layout.all_points(),
            "positions of a tile"
        );
        for channel in (0..channels).step_by(V::LANES) {
            let mut values = [[V::splat(0.0); N]; N];
            for (values, offsets) in values.iter_mut().zip(offsets) {
                for (value, offset) in values.iter_mut().zip(offsets) {
                    // SAFETY: every position has all channels, as asserted.
                    *value = unsafe { V::load(pixels.as_ptr().add(offset + channel)) };
                }
            }
            let found = along_both_axes::<V, L, N, SIDE>(&values);
            let at = layout.position(tile, channel);
            store_points::<V>(&found, &mut to[at..], stride);
        }
    }
}

/// Some rows of an image.
struct Band<'a> {
    pixels: &'a [f32],
    /// The first row.
    top: usize,
}

impl Band<'_> {
    /// Returns where the positions of a tile are; those outside the image are the zeros at the start.
    #[inline(always)]
    fn offsets<const N: usize>(
        &self,
        images: &TiledImages<'_>,
        row: usize,
        column: usize,
    ) -> [[usize; N]; N] {
        let ([height, width], [above, before]) = (images.size, images.padding);
        let mut offsets = [[0; N]; N];
        for (i, offsets) in offsets.iter_mut().enumerate() {
            let y = (TILE * row + i).wrapping_sub(above);
            for (j, offset) in offsets.iter_mut().enumerate() {
                let x = (TILE * column + j).wrapping_sub(before);
                if y < height && x < width {
                    *offset = images.channels * (1 + (y - self.top) * width + x);
                }
            }
        }
        offsets
    }
}
