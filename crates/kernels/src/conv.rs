//! Two-dimensional convolution, forward and backward, as matrix products that see the image in place.
//!
//! Images are `[samples, channels, height, width]`, weights `[outputs, channels, kernel height, kernel
//! width]`. Forward multiplies weights by windows of the image, which are packed straight from a copy
//! with a border; the gradient of the weights reads each window where it lies. Work goes in groups of
//! images, or rows of one image, that fit the second-level cache.

mod fold;
mod image;
mod planes;
mod weights;
mod windows;

use crate::gemm::{Matrix, Panels, Size, drive, drive_packed, pack_left};
use crate::scratch::lend;
use crate::simd::{Kernel, Vector, dispatch};

use fold::Fold;
use image::{Group, Image, groups};
use planes::Planes;
use windows::{Flipped, Windows};

/// The lengths of a convolution without dilation and groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// Channels of the input.
    pub channels: usize,
    /// Height and width of the input.
    pub size: [usize; 2],
    /// Channels of the output.
    pub outputs: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Distance of windows along height and width, at least 1.
    pub stride: [usize; 2],
    /// Zeros around the input along height and width.
    pub padding: [usize; 2],
}

impl Convolution {
    /// Height and width of the output.
    ///
    /// # Panics
    /// When the kernel is larger than the input with its border, or a stride is 0.
    #[must_use]
    pub fn output_size(&self) -> [usize; 2] {
        [0, 1].map(|axis| {
            let length = self.size[axis] + 2 * self.padding[axis];
            assert!(
                length >= self.kernel[axis] && self.stride[axis] > 0,
                "a kernel of {:?} on {:?}",
                self.kernel,
                self.size
            );
            (length - self.kernel[axis]) / self.stride[axis] + 1
        })
    }

    /// Elements of an input sample, an output sample and the weights.
    ///
    /// # Panics
    /// As [`Convolution::output_size`].
    #[must_use]
    pub fn elements(&self) -> [usize; 3] {
        let output: usize = self.output_size().iter().product();
        let input: usize = self.size.iter().product();
        [
            self.channels * input,
            self.outputs * output,
            self.outputs * self.window(),
        ]
    }

    /// Elements that one output is made of.
    fn window(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// A kernel of one element without stride or border sees an image as one row.
    fn flattened(self) -> Self {
        if self.kernel == [1, 1] && self.stride == [1, 1] && self.padding == [0, 0] {
            let size = [1, self.size[0] * self.size[1]];
            return Self { size, ..self };
        }
        self
    }

    fn check(&self, samples: usize, x: usize, w: usize, y: usize) {
        let [input, output, weights] = self.elements();
        let expected = (samples * input, weights, samples * output);
        assert_eq!((x, w, y), expected, "input, weights, output of {self:?}");
    }

    /// `y`, the output for `x`. Cost: outputs x window multiply-adds for each place of the output.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn forward(&self, samples: usize, x: &[f32], w: &[f32], y: &mut [f32]) {
        self.check(samples, x.len(), w.len(), y.len());
        let left = Matrix::new(w, self.outputs, self.window()).transposed();
        dispatch(Forward {
            shape: self.flattened(),
            samples,
            x,
            left,
            y,
        });
    }

    /// `dx`, the gradient of the input where `dy` is that of the output. Cost: as forward.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn input_gradient(&self, samples: usize, w: &[f32], dy: &[f32], dx: &mut [f32]) {
        self.check(samples, dx.len(), w.len(), dy.len());
        let is_dense = self.stride == [1, 1];
        if is_dense && (0..2).all(|axis| self.padding[axis] < self.kernel[axis]) {
            // The convolution of the output's gradient with the weights turned round.
            let turned = Self {
                channels: self.outputs,
                size: self.output_size(),
                outputs: self.channels,
                padding: [0, 1].map(|axis| self.kernel[axis] - 1 - self.padding[axis]),
                ..*self
            };
            dispatch(Forward {
                shape: turned.flattened(),
                samples,
                x: dy,
                left: Flipped::new(w, self.channels, self.kernel[0] * self.kernel[1]),
                y: dx,
            });
        } else {
            dx.fill(0.0);
            dispatch(InputGradient {
                shape: *self,
                samples,
                w,
                dy,
                dx,
            });
        }
    }

    /// `dw`, the gradient of the weights, summed over samples. Cost: as forward.
    ///
    /// # Panics
    /// When lengths do not fit.
    pub fn weight_gradient(&self, samples: usize, x: &[f32], dy: &[f32], dw: &mut [f32]) {
        self.check(samples, x.len(), dw.len(), dy.len());
        dispatch(weights::WeightGradient {
            shape: self.flattened(),
            samples,
            x,
            dy,
            dw,
        });
    }
}

struct Forward<'a, L> {
    shape: Convolution,
    samples: usize,
    x: &'a [f32],
    left: L,
    y: &'a mut [f32],
}

impl<L: Panels> Kernel for Forward<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let shape = self.shape;
        let output = shape.output_size();
        let buffers = &mut *lend();
        let (lengths, left) = ([shape.outputs, shape.window()], &mut self.left);
        let left = pack_left::<V>(lengths, left, &mut buffers.left);
        for group in groups(self.samples, output) {
            let image = Image::of::<V>(&shape, self.x, &group, &mut buffers.image);
            let size = Size {
                rows: shape.outputs,
                depth: shape.window(),
                columns: group.columns(output),
            };
            let panel = V::COLUMNS * V::LANES;
            let mut windows = Windows::new(&image, &shape, &group, output, panel);
            let mut sink = Planes::new(self.y, shape.outputs, &group, output);
            drive_packed::<V>(size, left, &mut windows, &mut sink, &mut buffers.right);
        }
    }
}

struct InputGradient<'a> {
    shape: Convolution,
    samples: usize,
    w: &'a [f32],
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl Kernel for InputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let shape = self.shape;
        let output = shape.output_size();
        // The output's gradient, seen as the input of a kernel of one element.
        let seen = Convolution {
            channels: shape.outputs,
            size: output,
            outputs: shape.window(),
            kernel: [1, 1],
            stride: [1, 1],
            padding: [0, 0],
        };
        let mut left = Matrix::new(self.w, shape.outputs, shape.window());
        let buffers = &mut *lend();
        for group in groups(self.samples, output) {
            let image = Image::in_place(&seen, self.dy, &group);
            let size = Size {
                rows: shape.window(),
                depth: shape.outputs,
                columns: group.columns(output),
            };
            let panel = V::COLUMNS * V::LANES;
            let mut windows = Windows::new(&image, &seen, &group, output, panel);
            let mut sink = Fold::new(self.dx, &shape, &group, output);
            let memory = (&mut buffers.left, &mut buffers.right);
            drive::<V>(size, &mut left, &mut windows, &mut sink, memory);
        }
    }
}

/// What all parts of a convolution share about one group of outputs.
fn taps(shape: &Convolution, image: &Image<'_>) -> Vec<usize> {
    let [height, width] = shape.kernel;
    (0..shape.window())
        .map(|tap| {
            let (channel, place) = (tap / (height * width), tap % (height * width));
            channel * image.channel_stride + place / width * image.row_stride + place % width
        })
        .collect()
}

/// Where the window of each row of outputs begins, in the order of the columns.
fn row_starts(shape: &Convolution, image: &Image<'_>, group: &Group) -> Vec<usize> {
    let rows = group.rows.len();
    (0..group.images.len() * rows)
        .map(|i| {
            let (place, row) = (i / rows, i % rows);
            place * image.image_stride + row * shape.stride[0] * image.row_stride
        })
        .collect()
}

#[cfg(test)]
mod tests;
