//! [`PackedWindows`]: the windows of an image as the columns of a matrix, packed without materialising the matrix.

use std::ops::Range;

use super::image::{GroupImage, OutputGroup};
use super::{Convolution, row_starts, taps};
use crate::gemm::{Panels, chunks};
use crate::simd::{PanelForm, SimdVector, TILE_PAIRS, TILE_WIDTH, joined};

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

    /// Writes pairs of bf16 of contiguous ranges of `P` elements, as two tiles.
    #[inline(always)]
    fn pack_pairs<const P: usize>(
        &self,
        depth: Range<usize>,
        starts: &[usize],
        width: usize,
        out: &mut [f32],
    ) {
        let mut rows = out.chunks_exact_mut(width);
        for (taps, to) in self.taps[depth].chunks(2).zip(rows.by_ref()) {
            let first = &self.image[taps[0]..];
            let (to, rest) = to.split_at_mut(starts.len() * P);
            let pieces = starts.iter().zip(to.as_chunks_mut::<P>().0);
            if let Some(second) = taps.get(1) {
                let second = &self.image[*second..];
                for (&start, to) in pieces {
                    let (mut one, mut two) = ([0.0; P], [0.0; P]);
                    one.copy_from_slice(&first[start..start + P]);
                    two.copy_from_slice(&second[start..start + P]);
                    *to = std::array::from_fn(|i| joined(one[i], two[i]));
                }
            } else {
                for (&start, to) in pieces {
                    let mut one = [0.0; P];
                    one.copy_from_slice(&first[start..start + P]);
                    *to = one.map(|value| joined(value, 0.0));
                }
            }
            rest.fill(0.0);
        }
        rows.for_each(|row| row.fill(0.0));
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
        let length = PanelForm::Bf16Tiles.length(depth.len());
        let mut starts = [0; PANEL_MAX];
        for (place, outer) in chunks(outer.clone(), TILE_WIDTH).enumerate() {
            let width = outer.len().next_multiple_of(TILE_PAIRS);
            let panel = &mut out[place * TILE_WIDTH * length..];
            let panel = &mut panel[..depth.len().div_ceil(2 * TILE_PAIRS) * TILE_PAIRS * width];
            let count = self.starts(&outer, &mut starts);
            let (depth, starts) = (depth.clone(), &starts[..count]);
            match self.piece {
                16 => self.pack_pairs::<16>(depth, starts, width, panel),
                8 => self.pack_pairs::<8>(depth, starts, width, panel),
                4 => self.pack_pairs::<4>(depth, starts, width, panel),
                2 => self.pack_pairs::<2>(depth, starts, width, panel),
                _ => self.pack_pairs::<1>(depth, starts, width, panel),
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
