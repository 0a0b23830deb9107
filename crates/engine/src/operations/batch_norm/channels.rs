//! [`ChannelNorm`]: the passes of a batch normalisation, each in blocks of samples.

use ronde_kernels::{BatchNorm, BatchStatistics};

use super::{AfterNorm, EPSILON, affine};
use crate::activation::Activation;
use crate::device::kernel::{
    BatchGradientSumsKernel, BatchInputGradientKernel, BatchMomentsKernel, BatchNormByKernel,
    RectifyGradientKernel,
};
use crate::device::{DeviceSlice, DeviceSliceMut, statistics_values};
use crate::graph::Tensors;

/// The normalisation of the channels of `[N, C, H, W]`, then the sum with a second input if there is one, then a rectifier if
/// configured.
pub(in crate::operations) struct ChannelNorm {
    pub(in crate::operations) channels: usize,
    /// The number of elements of a channel of one sample.
    pub(in crate::operations) places: usize,
    pub(in crate::operations) after: AfterNorm,
    pub(in crate::operations) adds: bool,
}

/// Adds sums of a block to those of the blocks before.
fn add_sums(sums: &mut Vec<f64>, more: Vec<f64>) {
    if sums.is_empty() {
        *sums = more;
    } else {
        for (sum, more) in sums.iter_mut().zip(more) {
            *sum += more;
        }
    }
}

impl ChannelNorm {
    /// Returns the lengths for some samples, without the rectifier.
    pub(in crate::operations) fn shape(&self, samples: usize) -> BatchNorm {
        BatchNorm {
            samples,
            channels: self.channels,
            places: self.places,
            epsilon: EPSILON,
            rectified: false,
        }
    }

    /// Returns the number of elements of a channel, and the sum and sum of squares of each.
    pub(in crate::operations) fn moments(&self, x: &Activation, tensors: Tensors<'_>) -> Vec<f64> {
        let (mut sums, device) = (Vec::new(), tensors.device());
        let blocks = tensors.blocks(x.samples());
        blocks.run([x], [], |samples, [x], []| {
            let shape = self.shape(samples.len());
            let mut found = device.allocate(2 * shape.sums_len());
            BatchMomentsKernel {
                x,
                sums: found.slice_mut(),
                shape,
            }
            .run_on(device);
            add_sums(&mut sums, found.slice().to_f64());
        });
        sums
    }

    /// Returns the statistics of moments.
    pub(in crate::operations) fn statistics(
        &self,
        moments: &[f64],
        tensors: Tensors<'_>,
    ) -> Activation {
        let statistics = BatchStatistics::of_moments(moments, EPSILON);
        let statistics = statistics_values(&statistics);
        let statistics = Activation::from_host(&[3, self.channels], statistics);
        statistics.on_device(tensors.device())
    }

    /// Returns the output for given statistics.
    pub(in crate::operations) fn normalised(
        &self,
        [x, added]: [&Activation; 2],
        statistics: &Activation,
        tensors: Tensors<'_>,
    ) -> Activation {
        let device = tensors.device();
        let mut y = tensors.result(x.shape());
        let ([gamma, beta], known) = (affine(tensors), statistics.values());
        let rectified = self.after == AfterNorm::Rectified;
        let normalise = |samples: usize,
                         x: DeviceSlice<'_>,
                         added: Option<DeviceSlice<'_>>,
                         to: DeviceSliceMut<'_>| {
            // In the same pass.
            let shape = BatchNorm {
                rectified,
                ..self.shape(samples)
            };
            BatchNormByKernel {
                shape,
                x,
                gamma,
                beta,
                added,
                y: to,
                statistics: known,
            }
            .run_on(device);
        };
        let blocks = tensors.blocks(x.samples());
        if self.adds {
            blocks.run([x, added], [&mut y], |samples, [x, added], [to]| {
                normalise(samples.len(), x, Some(added), to);
            });
        } else {
            blocks.run([x], [&mut y], |samples, [x], [to]| {
                normalise(samples.len(), x, None, to);
            });
        }
        y
    }

    /// Returns the gradient before the rectifier that has the output `y`.
    pub(in crate::operations) fn masked(
        &self,
        y: &Activation,
        gradient: &Activation,
        tensors: Tensors<'_>,
    ) -> Activation {
        let device = tensors.device();
        let mut open = tensors.result(gradient.shape());
        let blocks = tensors.blocks(gradient.elements());
        blocks.run([y, gradient], [&mut open], |_, [y, given], [open]| {
            RectifyGradientKernel {
                y,
                dy: given,
                dx: open,
            }
            .run_on(device);
        });
        open
    }

    /// Returns the sums that the gradients depend on.
    pub(in crate::operations) fn gradient_sums(
        &self,
        [x, given, statistics]: [&Activation; 3],
        tensors: Tensors<'_>,
    ) -> Vec<f64> {
        let (mut sums, device) = (Vec::new(), tensors.device());
        let known = statistics.values();
        let blocks = tensors.blocks(x.samples());
        blocks.run([x, given], [], |samples, [x, given], []| {
            let shape = self.shape(samples.len());
            let mut found = device.allocate(2 * shape.sums_len());
            BatchGradientSumsKernel {
                x,
                dy: given,
                statistics: known,
                sums: found.slice_mut(),
                shape,
            }
            .run_on(device);
            add_sums(&mut sums, found.slice().to_f64());
        });
        sums
    }

    /// Turns the gradient of the output into that of the input.
    pub(in crate::operations) fn input_gradient(
        &self,
        [x, statistics]: [&Activation; 2],
        summed: &[f64],
        gradient: &mut Activation,
        tensors: Tensors<'_>,
    ) {
        let device = tensors.device();
        let (gamma, known) = (tensors.get(0), statistics.values());
        let blocks = tensors.blocks(x.samples());
        blocks.change(gradient, [x], |samples, to, [x]| {
            let shape = self.shape(samples.len());
            BatchInputGradientKernel {
                shape,
                x,
                gamma,
                statistics: known,
                summed: summed.to_vec(),
                dy: to,
            }
            .run_on(device);
        });
    }
}
