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

/// Columns of a tile that are neighbours in one row of outputs.
#[derive(Debug, Clone)]
struct Run {
    image: usize,
    /// Where the first one's window begins, the border counted.
    row: usize,
    column: usize,
    /// Of the tile.
    columns: Range<usize>,
}

impl Run {
    const NONE: Self = Self {
        image: 0,
        row: 0,
        column: 0,
        columns: 0..0,
    };
}

impl Fold<'_> {
    /// Cuts columns into runs.
    #[inline(always)]
    fn runs<'a>(&self, columns: Range<usize>, runs: &'a mut [Run; PANEL_MAX]) -> &'a [Run] {
        let (places, stride) = (self.rows.len() * self.width, self.shape.stride);
        let (mut count, mut at) = (0, columns.start);
        while at < columns.end {
            let (image, place) = (at / places, at % places);
            let (row, column) = (place / self.width, place % self.width);
            let length = (self.width - column).min(columns.end - at);
            let from = at - columns.start;
            runs[count] = Run {
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

/// Adds values to elements that are `stride` apart, as far as there are any.
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
        let mut runs = [const { Run::NONE }; PANEL_MAX];
        let runs = self.runs(columns, &mut runs);
        for (tap, tile) in rows.zip(tile.chunks_exact(width)) {
            let (channel, place) = (tap / (kernel[0] * kernel[1]), tap % (kernel[0] * kernel[1]));
            let (down, right) = (place / kernel[1], place % kernel[1]);
            for run in runs {
                let row = (run.row + down).wrapping_sub(padding[0]);
                let at = run.column + right;
                // Windows of the run whose tap is in the border before.
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
