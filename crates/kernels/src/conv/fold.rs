//! [`Fold`]: tiles of window gradients are added to the places of the input that they come from.

use std::ops::Range;

use super::Convolution;
use super::image::Group;
use crate::gemm::Sink;
use crate::simd::Vector;

/// Columns of the widest panel of any level.
const PANEL_MAX: usize = 48;

/// The gradient of the input, which rows (taps) and columns (outputs) of a product are added to.
pub(super) struct Fold<'a> {
    out: &'a mut [f32],
    shape: Convolution,
    width: usize,
    rows: Range<usize>,
    first_image: usize,
}

impl<'a> Fold<'a> {
    pub(super) fn new(
        out: &'a mut [f32],
        shape: &Convolution,
        group: &Group,
        output: [usize; 2],
    ) -> Self {
        Self {
            out,
            shape: *shape,
            width: output[1],
            rows: group.rows.clone(),
            first_image: group.images.start,
        }
    }
}

impl Sink for Fold<'_> {
    #[inline(always)]
    fn store<V: Vector>(
        &mut self,
        rows: Range<usize>,
        columns: Range<usize>,
        tile: &[f32],
        width: usize,
        _first: bool,
    ) {
        let Convolution {
            channels,
            size: [height, across],
            kernel,
            stride,
            padding,
            ..
        } = self.shape;
        let places = self.rows.len() * self.width;
        // Where each column's window begins: image, row, column; the border counted.
        let mut starts = [(0, 0, 0); PANEL_MAX];
        for (start, column) in starts.iter_mut().zip(columns.clone()) {
            let (image, place) = (self.first_image + column / places, column % places);
            let row = self.rows.start + place / self.width;
            *start = (image, row * stride[0], place % self.width * stride[1]);
        }
        for (tap, tile) in rows.zip(tile.chunks_exact(width)) {
            let (channel, place) = (tap / (kernel[0] * kernel[1]), tap % (kernel[0] * kernel[1]));
            let (down, right) = (place / kernel[1], place % kernel[1]);
            for (&(image, row, column), value) in starts[..columns.len()].iter().zip(tile) {
                let (row, column) = (
                    (row + down).wrapping_sub(padding[0]),
                    (column + right).wrapping_sub(padding[1]),
                );
                if row < height && column < across {
                    self.out[((image * channels + channel) * height + row) * across + column] +=
                        value;
                }
            }
        }
    }
}
