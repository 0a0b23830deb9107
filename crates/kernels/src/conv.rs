//! Two-dimensional convolution, forward and backward, as matrix products that read the image in place.
//!
//! Images are `[samples, channels, height, width]`, weights `[outputs, channels, kernel height, kernel
//! width]`. The forward pass multiplies weights by windows of the image, which are packed directly from a
//! copy with a border; the gradient of the weights reads each window in place. Work is divided into groups of images, or
//! rows of one image, that fit the second-level cache.
//!
//! 3 x 3 kernels with many channels are computed by the algorithm in `winograd.rs`, whose rounding errors are up to ten
//! times as large, and which needs a quarter of the multiplications. The shape alone decides, unless values of bf16 are
//! multiplied in tiles, which is faster.

mod fold;
mod image;
mod planes;
mod weights;
mod windows;
mod winograd;

use std::ops::Range;

use fold::Fold;
use image::{GroupImage, OutputGroup, groups, images_of_group};
use planes::Planes;
use windows::{FlippedWeights, PackedWindows};
use winograd::{TiledWeights, WinogradForward, WinogradTreeGradient, WinogradWeightGradient};

use crate::elementwise::add_exactly;
use crate::gemm::{Matrix, Panels, ProductSize, drive, drive_packed, pack_left};
use crate::scratch::lend;
use crate::shard_tree::{ShardStep, slots};
use crate::simd::Products;
use crate::simd::{SimdKernel, SimdVector, dispatch, dispatch_products};

/// The number of channels of the output at whose multiples a convolution can be divided.
const OUTPUTS_TOGETHER: usize = 16;

/// The least number of channels of the output from which the gradient of the weights is faster in tiles than in Winograd's form:
/// windows are packed for all of them together.
const TILED_OUTPUTS: usize = 128;

/// The number of bytes of the images of shards whose gradients of the weights are added in the cache.
const SHARDS_BYTES: usize = 5 << 20;

/// The lengths of a convolution without dilation and groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    /// The number of channels of the input.
    pub channels: usize,
    /// The height and width of the input.
    pub size: [usize; 2],
    /// The number of channels of the output.
    pub outputs: usize,
    /// The height and width of the kernel.
    pub kernel: [usize; 2],
    /// The distance of windows along height and width, at least 1.
    pub stride: [usize; 2],
    /// The number of zeros around the input along height and width.
    pub padding: [usize; 2],
}

impl Convolution {
    /// Returns the height and width of the output.
    ///
    /// # Panics
    /// If the kernel is larger than the input with its border, or a stride is 0.
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

    /// Returns the numbers of elements of an input sample, an output sample and the weights.
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

    /// Returns the number of input elements per output.
    fn window(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    /// Simplifies a kernel of one element without stride or border: the image becomes one row.
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

    /// Computes `y`, the output for `x`. Products of a short format need operands that are rounded to it. Cost: outputs x window
    /// multiply-adds for each position of the output.
    ///
    /// # Panics
    /// If lengths do not match, or this processor does not have the instructions: see [`Products::of`].
    pub fn forward(&self, products: Products, samples: usize, x: &[f32], w: &[f32], y: &mut [f32]) {
        self.forward_of(0..self.outputs, products, samples, x, w, y);
    }

    /// Computes some channels of the output, `[samples, outputs of the range, ..]`, with the bits of
    /// [`Convolution::forward`]. The range starts and ends at multiples of 16 or at the ends of the channels.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward_of(
        &self,
        outputs: Range<usize>,
        products: Products,
        samples: usize,
        x: &[f32],
        w: &[f32],
        y: &mut [f32],
    ) {
        let shape = Self {
            outputs: outputs.len(),
            ..*self
        };
        let weights = self.elements()[2];
        assert!(
            outputs.end <= self.outputs && w.len() == weights,
            "input, weights, output of {self:?}"
        );
        let w = &w[outputs.start * self.window()..outputs.end * self.window()];
        shape.check(samples, x.len(), w.len(), y.len());
        if winograd::applies(self) && products != Products::Bf16Tiles {
            return dispatch(WinogradForward {
                shape,
                samples,
                x,
                weights: TiledWeights::Forward(w),
                y,
            });
        }
        let left = Matrix::new(w, shape.outputs, self.window()).transposed();
        let forward = ConvolutionForward {
            shape: shape.flattened(),
            samples,
            x,
            left,
            y,
        };
        dispatch_products(of_convolution(products), forward);
    }

    /// Computes `dx`, the gradient of the input, from `dy`, the gradient of the output. Format and cost: as forward.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn input_gradient(
        &self,
        products: Products,
        samples: usize,
        w: &[f32],
        dy: &[f32],
        dx: &mut [f32],
    ) {
        self.input_gradient_of(0..self.channels, products, samples, w, dy, dx);
    }

    /// Computes the gradient of some channels of the input, `[samples, channels of the range, ..]`, with the bits of
    /// [`Convolution::input_gradient`]. The range is one of [`Convolution::gradient_division`], or has all channels.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn input_gradient_of(
        &self,
        channels: Range<usize>,
        products: Products,
        samples: usize,
        w: &[f32],
        dy: &[f32],
        dx: &mut [f32],
    ) {
        let size: usize = self.size.iter().product();
        let all = self.elements()[0] * samples;
        self.check(samples, all, w.len(), dy.len());
        assert!(
            channels.end <= self.channels && dx.len() == samples * channels.len() * size,
            "gradient of channels {channels:?} of {self:?}"
        );
        if self.is_dense() {
            let turned = self.turned();
            let shape = Self {
                outputs: channels.len(),
                ..turned
            };
            if winograd::applies(&turned) && products != Products::Bf16Tiles {
                let weights = TiledWeights::Flipped {
                    weights: w,
                    outer: self.channels,
                    first: channels.start,
                };
                return dispatch(WinogradForward {
                    shape,
                    samples,
                    x: dy,
                    weights,
                    y: dx,
                });
            }
            let taps = self.kernel[0] * self.kernel[1];
            let forward = ConvolutionForward {
                shape: shape.flattened(),
                samples,
                x: dy,
                left: FlippedWeights::new(w, self.channels, channels.start, taps),
                y: dx,
            };
            dispatch_products(of_convolution(products), forward);
        } else {
            dx.fill(0.0);
            let taps = self.kernel[0] * self.kernel[1];
            let shape = Self {
                channels: channels.len(),
                ..*self
            };
            let from = &w[(channels.start * taps).min(w.len())..];
            let gradient = ConvolutionInputGradient {
                shape,
                samples,
                left: Matrix::strided(from, self.outputs, shape.window(), self.window()),
                dy,
                dx,
            };
            dispatch_products(of_convolution(products), gradient);
        }
    }

    /// Copies some channels of outputs `[samples, outputs, positions]`.
    fn some_outputs(&self, samples: usize, dy: &[f32], outputs: &Range<usize>) -> Vec<f32> {
        let places: usize = self.output_size().iter().product();
        let mut found = Vec::with_capacity(samples * outputs.len() * places);
        for sample in dy.chunks_exact((self.outputs * places).max(1)) {
            found.extend_from_slice(&sample[outputs.start * places..outputs.end * places]);
        }
        found
    }

    /// Returns the convolution of the output's gradient with the reversed weights, which is the input's gradient.
    fn turned(&self) -> Self {
        Self {
            channels: self.outputs,
            size: self.output_size(),
            outputs: self.channels,
            padding: [0, 1].map(|axis| self.kernel[axis] - 1 - self.padding[axis]),
            ..*self
        }
    }

    /// Returns how [`Convolution::forward`] of a number of samples is divided best.
    #[must_use]
    pub fn division(&self, samples: usize) -> ConvolutionDivision {
        if winograd::applies(self) && winograd::has_more_weights_than_tiles(self, samples) {
            return ConvolutionDivision::Channels(OUTPUTS_TOGETHER);
        }
        ConvolutionDivision::Samples(1)
    }

    /// Returns how [`Convolution::input_gradient`] of a number of samples is divided best.
    #[must_use]
    pub fn gradient_division(&self, samples: usize) -> ConvolutionDivision {
        if self.is_dense() {
            return self.turned().division(samples);
        }
        if (0..2).all(|axis| self.kernel[axis] <= self.stride[axis]) {
            // Windows do not overlap, so an element has one term.
            return ConvolutionDivision::Samples(1);
        }
        if samples > images_of_group(self.output_size()) {
            return ConvolutionDivision::Samples(1);
        }
        ConvolutionDivision::Channels(OUTPUTS_TOGETHER)
    }

    /// Returns whether the input's gradient is itself a convolution.
    fn is_dense(&self) -> bool {
        self.stride == [1, 1] && (0..2).all(|axis| self.padding[axis] < self.kernel[axis])
    }

    /// Computes `dw`, the gradient of the weights, summed over samples. Cost: as forward. Products are those in tiles, but for
    /// narrow outputs, or f32.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn weight_gradient(
        &self,
        products: Products,
        samples: usize,
        x: &[f32],
        dy: &[f32],
        dw: &mut [f32],
    ) {
        self.weight_gradient_of(0..self.outputs, products, samples, x, dy, dw);
    }

    /// Computes the gradient of the weights of some channels of the output, as [`Convolution::weight_gradient`] does.
    /// The range starts and ends at multiples of 16 or at the ends of the channels.
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn weight_gradient_of(
        &self,
        outputs: Range<usize>,
        products: Products,
        samples: usize,
        x: &[f32],
        dy: &[f32],
        dw: &mut [f32],
    ) {
        self.check_outputs(&outputs, samples, [x.len(), dy.len(), dw.len()]);
        if self.gradient_is_winograd(products) {
            return self.in_winograd(&outputs, samples, [x, dy], dw, |gradient| {
                dispatch(gradient)
            });
        }
        let gradient = weights::WeightGradient {
            shape: self.flattened(),
            samples,
            x,
            dy,
            outputs,
            dw,
        };
        let products = match products {
            Products::Bf16Tiles => products,
            _ => Products::F32,
        };
        dispatch_products(products, gradient);
    }

    /// Computes the sum over shards of the gradients of the weights of some channels of the output along the binary tree of the
    /// exact sum. `shards` has the numbers of samples, which follow each other.
    ///
    /// The tree adds neighbours to pairs, pairs to quadruples and so on; a subtree without a right neighbour is lifted. A sum
    /// that is NaN is the canonical NaN. Each gradient has the bits of [`Convolution::weight_gradient_of`]. Cost: as that, with the
    /// additions in the cache if at most [`Convolution::shards_in_cache`] shards are given, else through memory for a gradient of
    /// each level of the tree.
    ///
    /// # Panics
    /// If lengths do not match, or there is no shard.
    pub fn weight_gradient_in_tree(
        &self,
        outputs: Range<usize>,
        products: Products,
        shards: &[usize],
        x: &[f32],
        dy: &[f32],
        dw: &mut [f32],
    ) {
        let samples = shards.iter().sum();
        assert!(!shards.is_empty(), "a gradient of no shard");
        if shards.len() == 1 {
            return self.weight_gradient_of(outputs, products, samples, x, dy, dw);
        }
        self.check_outputs(&outputs, samples, [x.len(), dy.len(), dw.len()]);
        let most = shards.iter().max().copied().unwrap_or(0);
        if most == 0 {
            return dw.fill(0.0);
        }
        if products == Products::Bf16Tiles || self.bytes_of_shard(most).is_none() {
            return self.add_weight_gradients(&outputs, products, shards, [x, dy], dw);
        }
        if self.gradient_is_winograd(products) {
            return self.in_winograd(&outputs, samples, [x, dy], dw, |all| {
                dispatch(WinogradTreeGradient { all, shards });
            });
        }
        let all = weights::WeightGradient {
            shape: self.flattened(),
            samples,
            x,
            dy,
            outputs,
            dw,
        };
        dispatch_products(Products::F32, weights::WeightGradientTree { all, shards });
    }

    /// Returns the number of shards of some samples, a power of two, whose gradients of the weights are best added by one call of
    /// [`Convolution::weight_gradient_in_tree`]: 1 if the images of two do not fit the cache together, or have so many positions that
    /// writing each gradient is a small part of the time.
    #[must_use]
    pub fn shards_in_cache(&self, samples: usize) -> usize {
        let fits = |bytes: usize| (SHARDS_BYTES / bytes.max(1)).max(1);
        let count = self.bytes_of_shard(samples).map_or(1, fits);
        1 << count.ilog2()
    }

    /// Returns the number of bytes that a shard needs beside others, or nothing if it has too many positions.
    fn bytes_of_shard(&self, samples: usize) -> Option<usize> {
        match winograd::applies(self) {
            true => winograd::bytes_of_shard(self, samples),
            false => weights::bytes_of_shard(&self.flattened(), samples),
        }
    }

    /// Adds the gradients of shards through memory.
    fn add_weight_gradients(
        &self,
        outputs: &Range<usize>,
        products: Products,
        shards: &[usize],
        [x, dy]: [&[f32]; 2],
        dw: &mut [f32],
    ) {
        let [input, output, _] = self.elements();
        let mut sums = vec![Vec::new(); slots(shards.len())];
        let mut first = 0;
        for (shard, &samples) in shards.iter().enumerate() {
            let range = first..first + samples;
            let mut found = vec![0.0; dw.len()];
            self.weight_gradient_of(
                outputs.clone(),
                products,
                samples,
                &x[range.start * input..range.end * input],
                &dy[range.start * output..range.end * output],
                &mut found,
            );
            let step = ShardStep::of(shard, shards.len());
            for slot in step.added_slots() {
                let mut left: Vec<f32> = std::mem::take(&mut sums[slot]);
                add_exactly(&mut left, &found);
                found = left;
            }
            sums[step.to] = found;
            first = range.end;
        }
        dw.copy_from_slice(&sums[0]);
    }

    /// Returns whether the gradient of the weights is computed in Winograd's form.
    fn gradient_is_winograd(&self, products: Products) -> bool {
        winograd::applies(self) && (products != Products::Bf16Tiles || self.outputs < TILED_OUTPUTS)
    }

    /// Passes the gradient of the weights of some channels of the output in Winograd's form to `run`.
    fn in_winograd(
        &self,
        outputs: &Range<usize>,
        samples: usize,
        [x, dy]: [&[f32]; 2],
        dw: &mut [f32],
        run: impl FnOnce(WinogradWeightGradient<'_>),
    ) {
        let gathered =
            (outputs.len() != self.outputs).then(|| self.some_outputs(samples, dy, outputs));
        run(WinogradWeightGradient {
            shape: Self {
                outputs: outputs.len(),
                ..*self
            },
            samples,
            x,
            dy: gathered.as_deref().unwrap_or(dy),
            group_tiles: winograd::group_tiles(self.channels.max(self.outputs)),
            dw,
        });
    }

    /// Checks the lengths of the input, the output's gradient and the gradient of the weights of some outputs.
    fn check_outputs(&self, outputs: &Range<usize>, samples: usize, [x, dy, dw]: [usize; 3]) {
        self.check(samples, x, self.outputs * self.window(), dy);
        assert!(
            outputs.end <= self.outputs && dw == outputs.len() * self.window(),
            "weights of outputs {outputs:?} of {self:?}"
        );
    }
}

/// Returns the products of a convolution: images are packed for too few rows of weights to pay for splitting their values.
fn of_convolution(products: Products) -> Products {
    match products {
        Products::SplitTiles => Products::F32,
        products => products,
    }
}

/// How a convolution is divided without a change of bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvolutionDivision {
    /// By samples, at multiples of a number.
    Samples(usize),
    /// By channels of the result, at multiples of a number.
    Channels(usize),
}

struct ConvolutionForward<'a, L> {
    shape: Convolution,
    samples: usize,
    x: &'a [f32],
    left: L,
    y: &'a mut [f32],
}

impl<L: Panels> SimdKernel for ConvolutionForward<'_, L> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(mut self) {
        let shape = self.shape;
        let output = shape.output_size();
        let buffers = &mut *lend();
        let (lengths, left) = ([shape.outputs, shape.window()], &mut self.left);
        let left = pack_left::<V>(lengths, left, &mut buffers.left);
        for group in groups(self.samples, output) {
            let image = GroupImage::of::<V>(&shape, self.x, &group, &mut buffers.image);
            let size = ProductSize {
                rows: shape.outputs,
                depth: shape.window(),
                columns: group.columns(output),
            };
            let panel = V::COLUMNS * V::LANES;
            let mut windows = PackedWindows::new(&image, &shape, &group, output, panel);
            let mut sink = Planes::new(self.y, shape.outputs, &group, output);
            drive_packed::<V>(size, left, &mut windows, &mut sink, &mut buffers.right);
        }
    }
}

struct ConvolutionInputGradient<'a> {
    shape: Convolution,
    samples: usize,
    /// The weights of the shape's channels.
    left: Matrix<'a>,
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl SimdKernel for ConvolutionInputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: SimdVector>(self) {
        let shape = self.shape;
        let output = shape.output_size();
        // The output's gradient as the input of a kernel of one element.
        let seen = Convolution {
            channels: shape.outputs,
            size: output,
            outputs: shape.window(),
            kernel: [1, 1],
            stride: [1, 1],
            padding: [0, 0],
        };
        let mut left = self.left;
        let buffers = &mut *lend();
        for group in groups(self.samples, output) {
            let image = GroupImage::in_place(&seen, self.dy, &group);
            let size = ProductSize {
                rows: shape.window(),
                depth: shape.outputs,
                columns: group.columns(output),
            };
            let panel = V::COLUMNS * V::LANES;
            let mut windows = PackedWindows::new(&image, &seen, &group, output, panel);
            let mut sink = Fold::new(self.dx, &shape, &group, output);
            let memory = (&mut buffers.left, &mut buffers.right);
            drive::<V>(size, &mut left, &mut windows, &mut sink, memory);
        }
    }
}

/// The data of one group of outputs that all parts of a convolution share.
fn taps(shape: &Convolution, image: &GroupImage<'_>) -> Vec<usize> {
    let [height, width] = shape.kernel;
    (0..shape.window())
        .map(|tap| {
            let (channel, place) = (tap / (height * width), tap % (height * width));
            channel * image.channel_stride + place / width * image.row_stride + place % width
        })
        .collect()
}

/// Returns the start of the window of each row of outputs, in the order of the columns.
fn row_starts(shape: &Convolution, image: &GroupImage<'_>, group: &OutputGroup) -> Vec<usize> {
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
