//! Cases of kernels that several checks run with other inputs.

use ronde_kernels::{Attention, GroupNorm};

use super::writable;
use crate::device::{AffineSlices, Device, DeviceBuffer, DeviceSlice};

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
        let of = AffineSlices {
            gamma: x[2],
            beta: x[3],
        };
        let (first, rest) = to.split_at_mut(2);
        let [y, statistics] = writable(first);
        let gradients = writable(rest);
        let inputs = [x[0], x[1], x[2]];
        match self {
            Self::Group(shape) => {
                device.group_norm(shape, x[0], of, y, statistics);
                device.group_norm_gradient(shape, inputs, first[1].slice(), gradients);
            }
            Self::Layer => {
                device.layer_norm(x[0], of, 1e-5, y, statistics);
                device.layer_norm_gradient(inputs, first[1].slice(), gradients);
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
    device.attend(shape, [x[0], x[1]], lengths, y, statistics.slice_mut());
    let inputs = [x[0], x[1], statistics.slice(), x[2]];
    device.attend_gradient(shape, None, inputs, lengths, [dq, dkv]);
}
