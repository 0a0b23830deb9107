//! [`GroupedConvolution`]: convolution in which each group of channels sees only its own inputs.

use crate::conv::Convolution;
use crate::elementwise::add_to;
use crate::simd::Products;
use crate::simd::{Vectorised, vectorised};

/// The lengths of a grouped convolution: each of `groups` groups of input channels makes a group of output channels.
/// Weights are `[outputs, channels of a group, kernel height, kernel width]`. With one channel per group on both sides it
/// is depthwise and needs no matrix product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupedConvolution {
    /// The convolution of one group.
    pub each: Convolution,
    /// The number of groups.
    pub groups: usize,
}

/// The values of one sample and one group.
struct GroupPart {
    input: std::ops::Range<usize>,
    weights: std::ops::Range<usize>,
    output: std::ops::Range<usize>,
}

impl GroupedConvolution {
    /// Returns the numbers of elements of an input sample, an output sample and the weights.
    ///
    /// # Panics
    /// As [`Convolution::output_size`].
    #[must_use]
    pub fn elements(&self) -> [usize; 3] {
        self.each.elements().map(|elements| elements * self.groups)
    }

    /// Returns the ranges of each group of each sample, after a check of all lengths.
    fn parts(
        &self,
        samples: usize,
        lengths: [usize; 3],
    ) -> impl Iterator<Item = GroupPart> + use<> {
        let [input, output, weights] = self.elements();
        let expected = [samples * input, weights, samples * output];
        assert_eq!(lengths, expected, "input, weights, output of {self:?}");
        let groups = self.groups;
        (0..samples * groups).map(move |number| {
            // The range of group `index` of sample `sample`, of a value with so many elements per sample.
            let range = |elements: usize, sample: usize| {
                let (each, group) = (elements / groups, number % groups);
                let start = sample * elements + group * each;
                start..start + each
            };
            let sample = number / groups;
            GroupPart {
                input: range(input, sample),
                weights: range(weights, 0),
                output: range(output, sample),
            }
        })
    }

    fn is_depthwise(&self) -> bool {
        self.each.channels == 1 && self.each.outputs == 1
    }

    /// Computes `y`, the output for `x`. `products`: as [`Convolution::forward`].
    ///
    /// # Panics
    /// If lengths do not match.
    pub fn forward(&self, products: Products, samples: usize, x: &[f32], w: &[f32], y: &mut [f32]) {
        if self.groups == 1 {
            return self.each.forward(products, samples, x, w, y);
        }
        for part in self.parts(samples, [x.len(), w.len(), y.len()]) {
            let (x, w, y) = (&x[part.input], &w[part.weights], &mut y[part.output]);
            if self.is_depthwise() {
                y.fill(0.0);
                vectorised(PlaneForward {
                    shape: self.each,
                    x,
                    w,
                    y,
                });
            } else {
                self.each.forward(products, 1, x, w, y);
            }
        }
    }

    /// Computes `dx`, the gradient of the input, from `dy`, the gradient of the output. `products`: as
    /// [`Convolution::forward`].
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
        if self.groups == 1 {
            return self.each.input_gradient(products, samples, w, dy, dx);
        }
        for part in self.parts(samples, [dx.len(), w.len(), dy.len()]) {
            let (dx, w, dy) = (&mut dx[part.input], &w[part.weights], &dy[part.output]);
            if self.is_depthwise() {
                dx.fill(0.0);
                vectorised(PlaneInputGradient {
                    shape: self.each,
                    dx,
                    w,
                    dy,
                });
            } else {
                self.each.input_gradient(products, 1, w, dy, dx);
            }
        }
    }

    /// Computes `dw`, the gradient of the weights, summed over samples in order.
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
        if self.groups == 1 {
            return self.each.weight_gradient(products, samples, x, dy, dw);
        }
        let parts = self.parts(samples, [x.len(), dw.len(), dy.len()]);
        dw.fill(0.0);
        let mut own = vec![0.0; dw.len() / self.groups.max(1)];
        for part in parts {
            let (x, dw, dy) = (&x[part.input], &mut dw[part.weights], &dy[part.output]);
            if self.is_depthwise() {
                vectorised(PlaneWeightGradient {
                    shape: self.each,
                    x,
                    dw,
                    dy,
                });
            } else {
                self.each.weight_gradient(products, 1, x, dy, &mut own);
                add_to(dw, &own);
            }
        }
    }
}

/// A row of outputs, and the row of inputs that one element of the kernel multiplies for them.
struct TapRow {
    /// The index of the element of the kernel.
    tap: usize,
    output: std::ops::Range<usize>,
    /// The first input; the next ones are `stride` apart.
    input: usize,
}

/// Calls `each` for every element of the kernel and every row of outputs that it contributes to.
#[inline(always)]
fn each_row(shape: &Convolution, mut each: impl FnMut(TapRow)) {
    let ([height, width], [rows, columns]) = (shape.size, shape.output_size());
    let [stride_y, stride_x] = shape.stride;
    let [pad_y, pad_x] = shape.padding;
    for tap in 0..shape.kernel[0] * shape.kernel[1] {
        let (down, right) = (tap / shape.kernel[1], tap % shape.kernel[1]);
        // The outputs whose input for this element is inside the image.
        let first = pad_x.saturating_sub(right).div_ceil(stride_x);
        let end = (width + pad_x)
            .saturating_sub(right)
            .div_ceil(stride_x)
            .min(columns);
        if first >= end {
            continue;
        }
        for row in 0..rows {
            let line = row * stride_y + down;
            if line < pad_y || line - pad_y >= height {
                continue;
            }
            each(TapRow {
                tap,
                output: row * columns + first..row * columns + end,
                input: (line - pad_y) * width + first * stride_x + right - pad_x,
            });
        }
    }
}

struct PlaneForward<'a> {
    shape: Convolution,
    x: &'a [f32],
    w: &'a [f32],
    y: &'a mut [f32],
}

impl Vectorised for PlaneForward<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let stride = self.shape.stride[1];
        each_row(&self.shape, |row| {
            let (weight, y) = (self.w[row.tap], &mut self.y[row.output]);
            if stride == 1 {
                for (y, x) in y.iter_mut().zip(&self.x[row.input..]) {
                    *y += weight * x;
                }
            } else {
                for (y, x) in y.iter_mut().zip(self.x[row.input..].iter().step_by(stride)) {
                    *y += weight * x;
                }
            }
        });
    }
}

struct PlaneInputGradient<'a> {
    shape: Convolution,
    dx: &'a mut [f32],
    w: &'a [f32],
    dy: &'a [f32],
}

impl Vectorised for PlaneInputGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let stride = self.shape.stride[1];
        each_row(&self.shape, |row| {
            let (weight, dy) = (self.w[row.tap], &self.dy[row.output]);
            let dx = self.dx[row.input..].iter_mut().step_by(stride);
            for (dx, dy) in dx.zip(dy) {
                *dx += weight * dy;
            }
        });
    }
}

struct PlaneWeightGradient<'a> {
    shape: Convolution,
    x: &'a [f32],
    dw: &'a mut [f32],
    dy: &'a [f32],
}

impl Vectorised for PlaneWeightGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let stride = self.shape.stride[1];
        each_row(&self.shape, |row| {
            let x = self.x[row.input..].iter().step_by(stride);
            let products = self.dy[row.output].iter().zip(x);
            self.dw[row.tap] += products.map(|(dy, x)| dy * x).sum::<f32>();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at_every_level, close, values};

    /// Returns the ordinary convolution with zeros for the weights between groups.
    fn as_full(grouped: &GroupedConvolution, w: &[f32]) -> (Convolution, Vec<f32>) {
        let each = grouped.each;
        let full = Convolution {
            channels: each.channels * grouped.groups,
            outputs: each.outputs * grouped.groups,
            ..each
        };
        let kernel = each.kernel[0] * each.kernel[1];
        let mut wide = vec![0.0; full.elements()[2]];
        for output in 0..full.outputs {
            for channel in 0..each.channels {
                let seen = output / each.outputs * each.channels + channel;
                let from = (output * each.channels + channel) * kernel;
                let to = (output * full.channels + seen) * kernel;
                wide[to..to + kernel].copy_from_slice(&w[from..from + kernel]);
            }
        }
        (full, wide)
    }

    #[test]
    fn groups_are_a_convolution_with_zeros_between_them() {
        at_every_level(|| {
            for (channels, outputs, groups, kernel, stride, padding) in [
                (2, 3, 4, 3, 1, 1),
                (1, 1, 5, 3, 1, 1),
                (1, 1, 3, 3, 2, 1),
                (1, 1, 3, 5, 2, 0),
                (1, 2, 3, 1, 1, 0),
            ] {
                let each = Convolution {
                    channels,
                    size: [7, 9],
                    outputs,
                    kernel: [kernel; 2],
                    stride: [stride; 2],
                    padding: [padding; 2],
                };
                let grouped = GroupedConvolution { each, groups };
                let samples = 2;
                let [input, output, weights] = grouped.elements();
                let (x, w) = (values(samples * input, 1), values(weights, 2));
                let dy = values(samples * output, 3);
                let (full, wide) = as_full(&grouped, &w);
                let compare = |got: &[f32], expected: &[f32]| {
                    for (got, expected) in got.iter().zip(expected) {
                        close(*got, f64::from(*expected), 1e-5);
                    }
                };
                let mut y = [vec![9.0; dy.len()], vec![9.0; dy.len()]];
                grouped.forward(Products::F32, samples, &x, &w, &mut y[0]);
                full.forward(Products::F32, samples, &x, &wide, &mut y[1]);
                compare(&y[0], &y[1]);
                let mut dx = [vec![9.0; x.len()], vec![9.0; x.len()]];
                grouped.input_gradient(Products::F32, samples, &w, &dy, &mut dx[0]);
                full.input_gradient(Products::F32, samples, &wide, &dy, &mut dx[1]);
                compare(&dx[0], &dx[1]);
                let (mut dw, mut all) = (vec![9.0; w.len()], vec![9.0; wide.len()]);
                grouped.weight_gradient(Products::F32, samples, &x, &dy, &mut dw);
                full.weight_gradient(Products::F32, samples, &x, &dy, &mut all);
                let (_, marks) = as_full(&grouped, &vec![1.0; w.len()]);
                let of_groups = all.iter().zip(marks).filter(|(_, mark)| *mark == 1.0);
                compare(&dw, &of_groups.map(|(x, _)| *x).collect::<Vec<_>>());
            }
        });
    }
}
