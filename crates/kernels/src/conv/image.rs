//! Groups of outputs that are computed together, and the part of the input that they depend on.

use std::ops::Range;

use super::Convolution;
use crate::moves::copy;
use crate::scratch::ScratchBuffer;
use crate::simd::SimdVector;

/// The number of outputs of a group, limited by the packed columns of the matrix product.
pub(super) const COLUMNS_MAX: usize = 1056;

/// Several whole images, or rows of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OutputGroup {
    pub(super) images: Range<usize>,
    /// The rows of the output.
    pub(super) rows: Range<usize>,
}

impl OutputGroup {
    /// Returns the positions of the output within one channel.
    pub(super) fn columns(&self, output: [usize; 2]) -> usize {
        self.images.len() * self.rows.len() * output[1]
    }
}

/// Returns the number of whole images of a group, at least 1.
pub(super) fn images_of_group(output: [usize; 2]) -> usize {
    (COLUMNS_MAX / (output[0] * output[1]).max(1)).max(1)
}

/// Divides the outputs of all samples into groups.
pub(super) fn groups(samples: usize, output: [usize; 2]) -> Vec<OutputGroup> {
    let places = output[0] * output[1];
    if places == 0 {
        return Vec::new();
    }
    if places <= COLUMNS_MAX {
        let images = images_of_group(output);
        let whole = |start: usize| OutputGroup {
            images: start..(start + images).min(samples),
            rows: 0..output[0],
        };
        return (0..samples).step_by(images).map(whole).collect();
    }
    let rows = (COLUMNS_MAX / output[1]).max(1);
    let of_image = |image: usize| {
        (0..output[0]).step_by(rows).map(move |start| OutputGroup {
            images: image..image + 1,
            rows: start..(start + rows).min(output[0]),
        })
    };
    (0..samples).flat_map(of_image).collect()
}

/// The input of a group, including its border.
pub(super) struct GroupImage<'a> {
    pub(super) data: &'a [f32],
    pub(super) image_stride: usize,
    pub(super) channel_stride: usize,
    pub(super) row_stride: usize,
}

impl<'a> GroupImage<'a> {
    /// Uses the input in place, for a convolution without a border.
    pub(super) fn in_place(shape: &Convolution, x: &'a [f32], group: &OutputGroup) -> Self {
        let [height, width] = shape.size;
        let image_stride = shape.channels * height * width;
        let start = group.images.start * image_stride + group.rows.start * shape.stride[0] * width;
        Self {
            data: &x[start..group.images.end * image_stride],
            image_stride,
            channel_stride: height * width,
            row_stride: width,
        }
    }

    /// Returns the input of a group: in place, or copied with a border of zeros.
    #[inline(always)]
    pub(super) fn of<V: SimdVector>(
        shape: &Convolution,
        x: &'a [f32],
        group: &OutputGroup,
        bordered: &'a mut ScratchBuffer,
    ) -> Self {
        if shape.padding == [0, 0] {
            return Self::in_place(shape, x, group);
        }
        let ([height, width], [above, before]) = (shape.size, shape.padding);
        let row_stride = width + 2 * before;
        let rows = (group.rows.len() - 1) * shape.stride[0] + shape.kernel[0];
        let channel_stride = rows * row_stride;
        let image_stride = shape.channels * channel_stride;
        let data = bordered.take(group.images.len() * image_stride);
        // The row of the input that is the first row of the copy, including the border.
        let first = group.rows.start * shape.stride[0];
        let planes = group.images.len() * shape.channels;
        let inputs =
            x[group.images.start * shape.channels * height * width..].chunks_exact(height * width);
        for (to, from) in data
            .chunks_exact_mut(channel_stride)
            .take(planes)
            .zip(inputs)
        {
            for (row, to) in to.chunks_exact_mut(row_stride).enumerate() {
                match (first + row).checked_sub(above).filter(|&row| row < height) {
                    None => to.fill(0.0),
                    Some(row) => {
                        to[..before].fill(0.0);
                        let from = &from[row * width..][..width];
                        copy::<V>(from, &mut to[before..before + width]);
                        to[before + width..].fill(0.0);
                    }
                }
            }
        }
        Self {
            data,
            image_stride,
            channel_stride,
            row_stride,
        }
    }
}
