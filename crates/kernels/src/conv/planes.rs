//! [`Planes`]: writes tiles of a product to the channels of several images.

use std::ops::Range;

use super::image::OutputGroup;
use crate::gemm::Sink;
use crate::moves::{put, put_tile};
use crate::simd::SimdVector;

/// The output `[images, rows of the product, positions]`; the positions of a group are written.
pub(super) struct Planes<'a> {
    out: &'a mut [f32],
    channels: usize,
    /// The number of positions of a whole channel.
    plane: usize,
    /// The number of the group's positions in each image.
    places: usize,
    first: usize,
}

impl<'a> Planes<'a> {
    pub(super) fn new(
        out: &'a mut [f32],
        channels: usize,
        group: &OutputGroup,
        output: [usize; 2],
    ) -> Self {
        let plane = output[0] * output[1];
        Self {
            out,
            channels,
            plane,
            places: group.rows.len() * output[1],
            first: group.images.start * channels * plane + group.rows.start * output[1],
        }
    }
}

impl Sink for Planes<'_> {
    #[inline(always)]
    fn place(
        &mut self,
        rows: &Range<usize>,
        columns: &Range<usize>,
    ) -> Option<(&mut [f32], usize, bool)> {
        let (image, place) = (columns.start / self.places, columns.start % self.places);
        if place + columns.len() > self.places {
            return None;
        }
        let start = self.first + (image * self.channels + rows.start) * self.plane + place;
        Some((&mut self.out[start..], self.plane, false))
    }

    #[inline(always)]
    fn store<V: SimdVector>(
        &mut self,
        rows: Range<usize>,
        columns: Range<usize>,
        tile: &[f32],
        width: usize,
        first: bool,
    ) {
        let mut column = columns.start;
        while column < columns.end {
            let (image, place) = (column / self.places, column % self.places);
            let count = (self.places - place).min(columns.end - column);
            let from = column - columns.start;
            if count == width {
                let start = self.first + (image * self.channels + rows.start) * self.plane + place;
                let tall = [rows.len(), width];
                return put_tile::<V>(self.out, [start, self.plane], tile, tall, first);
            }
            for (i, row) in rows.clone().enumerate() {
                let at = self.first + (image * self.channels + row) * self.plane + place;
                let tile = &tile[i * width + from..(i + 1) * width];
                put::<V>(&mut self.out[at..at + count], tile, first);
            }
            column += count;
        }
    }
}
