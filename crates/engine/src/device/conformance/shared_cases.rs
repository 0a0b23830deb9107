//! Cases of kernels that several checks run with other inputs.

use crate::device::kernel::{
    AttendGradientKernel, AttendKernel, BatchGradientSumsKernel, BatchMomentsKernel,
    GroupNormGradientKernel, GroupNormKernel, LayerNormGradientKernel, LayerNormKernel,
};
use crate::device::{Device, DeviceBuffer, DeviceSlice};
use ronde_kernels::{Attention, BatchNorm, GroupNorm};

use super::writable;

/// A normalisation of each sample, with its gradients.
pub(super) enum SampleNorm {
    /// By groups of channels.
    Group(GroupNorm),
    /// Of rows.
    Layer,
}

impl SampleNorm {
    /// Returns each with its name, its number of affine parameters and that of its statistics, for inputs of 120 values.
    pub(super) fn each() -> [(&'static str, Self, usize, usize); 2] {
        let shape = GroupNorm {
            samples: 2,
            channels: 6,
            places: 10,
            groups: 3,
            epsilon: 1e-5,
        };
        [
            ("group_norm", Self::Group(shape), 6, 12),
            ("layer_norm", Self::Layer, 10, 24),
        ]
    }

    /// Runs both passes with `[x, dy, gamma, beta]`; the outputs are `[y, statistics, dx, dgamma, dbeta]`.
    pub(super) fn run(&self, device: &dyn Device, x: &[DeviceSlice<'_>], to: &mut [DeviceBuffer]) {
        let (first, rest) = to.split_at_mut(2);
        let [y, statistics] = writable(first);
        let gradients = writable(rest);
        match self {
            Self::Group(shape) => {
                GroupNormKernel {
                    shape: *shape,
                    x: x[0],
                    gamma: x[2],
                    beta: x[3],
                    y,
                    statistics,
                }
                .run_on(device);
                let [dx, of_gamma, of_beta] = gradients;
                GroupNormGradientKernel {
                    shape: *shape,
                    x: x[0],
                    dy: x[1],
                    gamma: x[2],
                    statistics: first[1].slice(),
                    dx,
                    of_gamma,
                    of_beta,
                }
                .run_on(device);
            }
            Self::Layer => {
                LayerNormKernel {
                    x: x[0],
                    gamma: x[2],
                    beta: x[3],
                    epsilon: 1e-5,
                    y,
                    statistics,
                }
                .run_on(device);
                let [dx, of_gamma, of_beta] = gradients;
                LayerNormGradientKernel {
                    x: x[0],
                    dy: x[1],
                    gamma: x[2],
                    statistics: first[1].slice(),
                    dx,
                    of_gamma,
                    of_beta,
                }
                .run_on(device);
            }
        }
    }
}

/// An attention, and the numbers of keys that each text looks at; all if it is empty.
pub(super) struct AttentionCase {
    pub(super) shape: Attention,
    pub(super) lengths: Vec<usize>,
}

impl AttentionCase {
    /// Returns a causal one, one of all keys, and one of the first keys.
    pub(super) fn each() -> [Self; 3] {
        [
            (5, true, vec![]),
            (4, false, vec![]),
            (3, false, vec![2, 5]),
        ]
        .map(|(queries, causal, lengths)| Self {
            shape: Attention {
                batch: 2,
                queries,
                keys: 5,
                heads: 2,
                width: 4,
                causal,
            },
            lengths,
        })
    }

    /// Runs both passes with `[queries, keys and values, dy]`; the outputs are `[y, and both gradients]`.
    pub(super) fn run(&self, device: &dyn Device, x: &[DeviceSlice<'_>], to: &mut [DeviceBuffer]) {
        run_attention(device, &self.shape, &self.lengths, x, to);
    }
}

/// Runs both passes of an attention with `[queries, keys and values, dy]`; the outputs are `[y, and both gradients]`.
pub(super) fn run_attention(
    device: &dyn Device,
    shape: &Attention,
    lengths: &[usize],
    x: &[DeviceSlice<'_>],
    to: &mut [DeviceBuffer],
) {
    let mut statistics = device.allocate(shape.elements()[2]);
    let [y, dq, dkv] = writable(to);
    AttendKernel {
        shape: *shape,
        queries: x[0],
        keys_values: x[1],
        lengths: lengths.to_vec(),
        y,
        statistics: statistics.slice_mut(),
    }
    .run_on(device);
    AttendGradientKernel {
        shape: *shape,
        format: None,
        queries: x[0],
        keys_values: x[1],
        statistics: statistics.slice(),
        dy: x[2],
        lengths: lengths.to_vec(),
        of_queries: dq,
        of_keys_values: dkv,
    }
    .run_on(device);
}

/// Returns the sums of [`BatchGradientSumsKernel`] of `[x, dy, statistics]`, and those of [`BatchMomentsKernel`] and the former
/// together, in f32.
pub(super) fn sums_of_batch(
    device: &dyn Device,
    shape: BatchNorm,
    [x, dy, statistics]: [DeviceSlice<'_>; 3],
) -> (Vec<f64>, Vec<f32>) {
    let [mut moments, mut sums] = [(); 2].map(|()| device.allocate(2 * shape.sums_len()));
    BatchMomentsKernel {
        x,
        sums: moments.slice_mut(),
        shape,
    }
    .run_on(device);
    BatchGradientSumsKernel {
        x,
        dy,
        statistics,
        sums: sums.slice_mut(),
        shape,
    }
    .run_on(device);
    let [moments, sums] = [moments, sums].map(|sums| sums.slice().to_f64());
    let all = moments.iter().chain(&sums).map(|sum| *sum as f32);
    let all = all.collect();
    (sums, all)
}
