//! The gradient of a convolution's weights as a product of bf16 in tiles, whose inner index is the position of the output.

use std::ops::Range;

use super::super::image::{GroupImage, OutputGroup, groups};
use super::super::{Convolution, row_starts, taps};
use super::WeightGradient;
use crate::gemm::{Panels, ProductSize, chunks, drive, rows_of};
use crate::scratch::lend;
use crate::simd::{SimdVector, TILE_DEPTH, TILE_PAIRS, TILE_WIDTH, write_lines};

/// The longest range of neighbours that is copied at once: blocks of the inner index begin at its multiples.
const PIECE_MAX: usize = 8;

/// Adds the products of all groups of outputs, in order.
#[inline(always)]
pub(super) fn run<V: SimdVector>(gradient: WeightGradient<'_>) {
    let WeightGradient {
        shape,
        samples,
        x,
        dy,
        outputs,
        dw,
    } = gradient;
    let (output, window) = (shape.output_size(), shape.window());
    let buffers = &mut *lend();
    dw.fill(0.0);
    for group in groups(samples, output) {
        let image = GroupImage::of::<V>(&shape, x, &group, &mut buffers.image);
        let mut left = GradientRows::new(&shape, dy, &group, outputs.start);
        let mut right = WindowColumns::new(&shape, &image, &group);
        let size = ProductSize {
            rows: outputs.len(),
            depth: group.columns(output),
            columns: window,
        };
        let memory = (&mut buffers.left, &mut buffers.right);
        drive::<V>(
            size,
            &mut left,
            &mut right,
            &mut rows_of(dw, window),
            memory,
        );
    }
}

/// The gradients of some channels of a group of outputs, whose positions are neighbours within an image.
struct GradientRows<'a> {
    dy: &'a [f32],
    /// The number of positions of an image that are part of the group.
    places: usize,
    /// The distances of images and channels.
    strides: [usize; 2],
}

impl<'a> GradientRows<'a> {
    fn new(shape: &Convolution, dy: &'a [f32], group: &OutputGroup, first: usize) -> Self {
        let output = shape.output_size();
        let plane = output[0] * output[1];
        // All channels of the output, or the shape's part of them.
        let channels = shape.outputs;
        let start = (group.images.start * channels + first) * plane + group.rows.start * output[1];
        Self {
            dy: &dy[start..],
            places: group.rows.len() * output[1],
            strides: [channels * plane, plane],
        }
    }
}

impl Panels for GradientRows<'_> {
    #[inline(always)]
    fn pack<V: SimdVector>(&mut self, _: Range<usize>, _: Range<usize>, _: usize, _: &mut [f32]) {
        unreachable!("only tiles are packed");
    }

    #[inline(always)]
    fn pack_tiles<V: SimdVector, const LEFT: bool>(
        &mut self,
        depth: &Range<usize>,
        outer: &Range<usize>,
        out: &mut [f32],
    ) -> bool {
        assert!(LEFT, "outputs are rows");
        let length = V::FORM.length(depth.len());
        for (place, outer) in chunks(outer.clone(), TILE_WIDTH).enumerate() {
            let blocks =
                out[place * TILE_WIDTH * length..].chunks_exact_mut(TILE_PAIRS * TILE_WIDTH);
            for (depth, to) in chunks(depth.clone(), TILE_DEPTH).zip(blocks) {
                let (image, position) = (depth.start / self.places, depth.start % self.places);
                let start = image * self.strides[0] + position;
                let is_one_range = position + depth.len() <= self.places;
                let mut offsets = [0; TILE_DEPTH];
                for (offset, place) in offsets.iter_mut().zip(depth.clone()) {
                    let (image, position) = (place / self.places, place % self.places);
                    *offset = image * self.strides[0] + position;
                }
                let line = |row: usize| {
                    let line = (outer.start + row) * self.strides[1];
                    let mut values = [0.0; TILE_DEPTH];
                    if is_one_range {
                        let from = &self.dy[line + start..][..depth.len()];
                        if let Some(from) = from.first_chunk() {
                            return *from;
                        }
                        values[..from.len()].copy_from_slice(from);
                    } else {
                        for (value, offset) in values.iter_mut().zip(&offsets[..depth.len()]) {
                            *value = self.dy[line + offset];
                        }
                    }
                    values
                };
                write_lines::<V, true, 1>(outer.len(), line, to);
            }
        }
        true
    }
}

/// The windows of an image as the rows of a matrix: column `j` has the inputs of tap `j` for all positions of the group.
struct WindowColumns<'a> {
    image: &'a [f32],
    taps: Vec<usize>,
    row_starts: Vec<usize>,
    width: usize,
    stride: usize,
    /// The number of neighbouring positions that are contiguous in the image too.
    piece: usize,
}

impl<'a> WindowColumns<'a> {
    fn new(shape: &Convolution, image: &GroupImage<'a>, group: &OutputGroup) -> Self {
        let width = shape.output_size()[1];
        let sizes = [PIECE_MAX, 4, 2].into_iter();
        let fits = |piece: &usize| shape.stride[1] == 1 && width.is_multiple_of(*piece);
        Self {
            image: image.data,
            taps: taps(shape, image),
            row_starts: row_starts(shape, image, group),
            width,
            stride: shape.stride[1],
            piece: sizes.filter(fits).max().unwrap_or(1),
        }
    }

    /// Packs two tiles, of ranges of `P` positions each.
    #[inline(always)]
    fn pack_pieces<V: SimdVector, const P: usize>(
        &self,
        depth: Range<usize>,
        taps: &[usize],
        to: &mut [f32],
    ) {
        let mut starts = [0; TILE_DEPTH];
        let count = depth.len() / P;
        for (i, start) in starts[..count].iter_mut().enumerate() {
            let place = depth.start + i * P;
            *start = self.row_starts[place / self.width] + place % self.width * self.stride;
        }
        let line = |index: usize| {
            let image = &self.image[taps[index]..];
            let mut values = [0.0; TILE_DEPTH];
            for (&start, to) in starts[..count].iter().zip(values.as_chunks_mut::<P>().0) {
                to.copy_from_slice(&image[start..start + P]);
            }
            values
        };
        write_lines::<V, false, 1>(taps.len(), line, to);
    }
}

impl Panels for WindowColumns<'_> {
    #[inline(always)]
    fn pack<V: SimdVector>(&mut self, _: Range<usize>, _: Range<usize>, _: usize, _: &mut [f32]) {
        unreachable!("only tiles are packed");
    }

    #[inline(always)]
    fn pack_tiles<V: SimdVector, const LEFT: bool>(
        &mut self,
        depth: &Range<usize>,
        outer: &Range<usize>,
        out: &mut [f32],
    ) -> bool {
        assert!(!LEFT, "windows are columns");
        let length = V::FORM.length(depth.len());
        for (place, outer) in chunks(outer.clone(), TILE_WIDTH).enumerate() {
            let width = outer.len().next_multiple_of(TILE_PAIRS);
            let size = TILE_PAIRS * width;
            let blocks = out[place * TILE_WIDTH * length..].chunks_exact_mut(size);
            for (depth, to) in chunks(depth.clone(), TILE_DEPTH).zip(blocks) {
                let taps = &self.taps[outer.clone()];
                match self.piece {
                    8 => self.pack_pieces::<V, 8>(depth, taps, to),
                    4 => self.pack_pieces::<V, 4>(depth, taps, to),
                    2 => self.pack_pieces::<V, 2>(depth, taps, to),
                    _ => self.pack_pieces::<V, 1>(depth, taps, to),
                }
            }
        }
        true
    }
}
