//! [`Fold`]: adds tiles of window gradients to the corresponding positions of the input.
//!
//! The terms of an element are added from its last tap to its first, which is the order of the outputs. So the division of
//! outputs and taps into tiles, and the other images of a product, do not change a bit.

use std::ops::Range;

use super::Convolution;
use super::image::OutputGroup;
use crate::gemm::Sink;
use crate::simd::SimdVector;

/// The number of columns of the widest panel of any level or format.
const PANEL_MAX: usize = 96;

/// The gradient of the input, to which rows (taps) and columns (outputs) of a product are added.
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
        group: &OutputGroup,
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

/// A range of columns of a tile that are neighbours in one row of outputs.
#[derive(Debug, Clone)]
struct NeighbourRun {
    image: usize,
    /// The start of the first column's window, including the border.
    row: usize,
    column: usize,
    /// The columns of the tile.
    columns: Range<usize>,
}

impl NeighbourRun {
    const NONE: Self = Self {
        image: 0,
        row: 0,
        column: 0,
        columns: 0..0,
    };
}

impl Fold<'_> {
    /// Divides columns into ranges of neighbours.
    #[inline(always)]
    fn runs<'a>(
        &self,
        columns: Range<usize>,
        runs: &'a mut [NeighbourRun; PANEL_MAX],
    ) -> &'a [NeighbourRun] {
        let (places, stride) = (self.rows.len() * self.width, self.shape.stride);
        let (mut count, mut at) = (0, columns.start);
        while at < columns.end {
            let (image, place) = (at / places, at % places);
            let (row, column) = (place / self.width, place % self.width);
            let length = (self.width - column).min(columns.end - at);
            let from = at - columns.start;
            runs[count] = NeighbourRun {
                image: self.first_image + image,
                row: (self.rows.start + row) * stride[0],
                column: column * stride[1],
                columns: from..from + length,
            };
            count += 1;
            at += length;
        }
        &runs[..count]
    }
}

/// Adds values to elements that are `stride` apart, up to the end of the slice.
#[inline(always)]
fn add_apart(values: &[f32], to: &mut [f32], stride: usize) {
    match stride {
        1 => to
            .iter_mut()
            .zip(values)
            .for_each(|(to, value)| *to += value),
        2 => {
            for (to, value) in to.chunks_mut(2).zip(values) {
                to[0] += value;
            }
        }
        _ => {
            for (to, value) in to.iter_mut().step_by(stride).zip(values) {
                *to += value;
            }
        }
    }
}

impl Sink for Fold<'_> {
    const LAST_ROWS_FIRST: bool = true;

    #[inline(always)]
    fn store<V: SimdVector>(
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
        let mut runs = [const { NeighbourRun::NONE }; PANEL_MAX];
        let runs = self.runs(columns, &mut runs);
        let taps = rows.zip(tile.chunks_exact(width));
        for (tap, tile) in taps.rev() {
            let (channel, place) = (tap / (kernel[0] * kernel[1]), tap % (kernel[0] * kernel[1]));
            let (down, right) = (place / kernel[1], place % kernel[1]);
            for run in runs {
                let row = (run.row + down).wrapping_sub(padding[0]);
                let at = run.column + right;
                // The windows of the range whose tap is in the border before the image.
                let outside = match padding[1].saturating_sub(at) {
                    0 => 0,
                    border => border.div_ceil(stride[1]).min(run.columns.len()),
                };
                let column = (at + outside * stride[1]).wrapping_sub(padding[1]);
                if row < height && column < across {
                    let line = ((run.image * channels + channel) * height + row) * across;
                    let to = &mut self.out[line + column..line + across];
                    add_apart(
                        &tile[run.columns.start + outside..run.columns.end],
                        to,
                        stride[1],
                    );
                }
            }
        }
    }
}
