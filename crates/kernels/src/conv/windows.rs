//! [`PackedWindows`]: the windows of an image as the columns of a matrix, packed without materialising the matrix.

use std::ops::Range;

use super::image::{GroupImage, OutputGroup};
use super::{Convolution, row_starts, taps};
use crate::gemm::{Panels, chunks};
use crate::simd::{SimdVector, TILE_DEPTH, TILE_PAIRS, TILE_WIDTH, write_rows};

/// The number of columns of the widest panel of any level or format.
const PANEL_MAX: usize = 96;

/// The matrix `[taps, outputs of the group]`: column `j` is the window of output `j`.
pub(super) struct PackedWindows<'a> {
    image: &'a [f32],
    taps: Vec<usize>,
    row_starts: Vec<usize>,
    width: usize,
    stride: usize,
    /// The number of neighbouring columns that are contiguous in the image too.
    piece: usize,
}

impl<'a> PackedWindows<'a> {
    /// Packs panels of `P` columns.
    pub(super) fn new(
        image: &GroupImage<'a>,
        shape: &Convolution,
        group: &OutputGroup,
        output: [usize; 2],
        panel: usize,
    ) -> Self {
        let width = output[1];
        let sizes = [16, 8, 4, 2].into_iter();
        let fits = |piece: &usize| {
            shape.stride[1] == 1 && width.is_multiple_of(*piece) && panel.is_multiple_of(*piece)
        };
        Self {
            image: image.data,
            taps: taps(shape, image),
            row_starts: row_starts(shape, image, group),
            width,
            stride: shape.stride[1],
            piece: sizes.filter(fits).max().unwrap_or(1),
        }
    }

    #[inline(always)]
    fn start(&self, column: usize) -> usize {
        self.row_starts[column / self.width] + column % self.width * self.stride
    }

    /// Writes the starts of the pieces of some columns. Returns their number.
    #[inline(always)]
    fn starts(&self, columns: &Range<usize>, starts: &mut [usize; PANEL_MAX]) -> usize {
        let count = columns.len() / self.piece;
        for (i, start) in starts[..count].iter_mut().enumerate() {
            *start = self.start(columns.start + i * self.piece);
        }
        count
    }

    /// Writes tiles of contiguous ranges of `P` elements.
    #[inline(always)]
    fn pack_pairs<V: SimdVector, const P: usize>(
        &self,
        depth: Range<usize>,
        starts: &[usize],
        width: usize,
        out: &mut [f32],
    ) {
        let blocks = out.chunks_exact_mut(TILE_PAIRS * width);
        for (taps, to) in self.taps[depth].chunks(TILE_DEPTH).zip(blocks) {
            let row = |index: usize| {
                let image = &self.image[taps[index]..];
                let mut values = [0.0; TILE_WIDTH];
                for (&start, to) in starts.iter().zip(values.as_chunks_mut::<P>().0) {
                    to.copy_from_slice(&image[start..start + P]);
                }
                values
            };
            write_rows::<V, false, 1>(taps.len(), row, to);
        }
    }

    /// Copies contiguous ranges of `P` elements.
    #[inline(always)]
    fn pack_pieces<const P: usize>(
        &self,
        depth: Range<usize>,
        starts: &[usize],
        width: usize,
        out: &mut [f32],
    ) {
        for (&tap, to) in self.taps[depth].iter().zip(out.chunks_exact_mut(width)) {
            let image = &self.image[tap..];
            let (to, rest) = to.split_at_mut(starts.len() * P);
            for (&start, to) in starts.iter().zip(to.chunks_exact_mut(P)) {
                let mut piece = [0.0; P];
                piece.copy_from_slice(&image[start..start + P]);
                to.copy_from_slice(&piece);
            }
            rest.fill(0.0);
        }
    }
}

impl Panels for PackedWindows<'_> {
    #[inline(always)]
    fn pack_tiles<V: SimdVector, const LEFT: bool>(
        &mut self,
        depth: &Range<usize>,
        outer: &Range<usize>,
        out: &mut [f32],
    ) -> bool {
        assert!(!LEFT, "windows are columns");
        let length = V::FORM.length(depth.len());
        let mut starts = [0; PANEL_MAX];
        for (place, outer) in chunks(outer.clone(), TILE_WIDTH).enumerate() {
            let width = outer.len().next_multiple_of(TILE_PAIRS);
            let panel = &mut out[place * TILE_WIDTH * length..];
            let count = self.starts(&outer, &mut starts);
            let (depth, starts) = (depth.clone(), &starts[..count]);
            match self.piece {
                16 => self.pack_pairs::<V, 16>(depth, starts, width, panel),
                8 => self.pack_pairs::<V, 8>(depth, starts, width, panel),
                4 => self.pack_pairs::<V, 4>(depth, starts, width, panel),
                2 => self.pack_pairs::<V, 2>(depth, starts, width, panel),
                _ => self.pack_pairs::<V, 1>(depth, starts, width, panel),
            }
        }
        true
    }

    #[inline(always)]
    fn pack<V: SimdVector>(
        &mut self,
        depth: Range<usize>,
        outer: Range<usize>,
        width: usize,
        out: &mut [f32],
    ) {
        let mut starts = [0; PANEL_MAX];
        let count = self.starts(&outer, &mut starts);
        let starts = &starts[..count];
        match self.piece {
            16 => self.pack_pieces::<16>(depth, starts, width, out),
            8 => self.pack_pieces::<8>(depth, starts, width, out),
            4 => self.pack_pieces::<4>(depth, starts, width, out),
            2 => self.pack_pieces::<2>(depth, starts, width, out),
            _ => self.pack_pieces::<1>(depth, starts, width, out),
        }
    }
}

/// The weights `[outputs, channels, taps]` as the left side of the input's gradient: rows are channels, and the
/// inner index iterates over outputs and over taps from the last to the first.
pub(super) struct FlippedWeights<'a> {
    weights: &'a [f32],
    channels: usize,
    /// The channel of the first row.
    first: usize,
    taps: usize,
}

impl<'a> FlippedWeights<'a> {
    pub(super) fn new(weights: &'a [f32], channels: usize, first: usize, taps: usize) -> Self {
        Self {
            weights,
            channels,
            first,
            taps,
        }
    }
}

impl Panels for FlippedWeights<'_> {
    #[inline(always)]
    fn pack<V: SimdVector>(
        &mut self,
        depth: Range<usize>,
        outer: Range<usize>,
        width: usize,
        out: &mut [f32],
    ) {
        for (index, to) in depth.zip(out.chunks_exact_mut(width)) {
            let (output, tap) = (index / self.taps, self.taps - 1 - index % self.taps);
            let channel = self.first + outer.start;
            let from = (output * self.channels + channel) * self.taps + tap;
            let (to, rest) = to.split_at_mut(outer.len());
            let from = self.weights[from..].iter().step_by(self.taps);
            for (to, from) in to.iter_mut().zip(from) {
                *to = *from;
            }
            rest.fill(0.0);
        }
    }
}
