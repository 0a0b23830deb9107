//! [`Tensors`]: the tensors of an operation in the state of its layer, and their gradients.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::exact::Node;
use ronde_kernels::ShortFormat;

use super::{JoinedShard, OwnTokens};
use crate::activation::Activation;
use crate::blocks::Blocks;
use crate::device::kernel::{AddExactKernel, AddKernel, MatrixSlice, RoundKernel};
use crate::device::{Device, DeviceBuffer, DeviceSlice, DeviceSliceMut};
use crate::shared_state::SharedState;

/// The committed state of a layer, where its device reads it.
#[derive(Debug, Clone, Default)]
pub(crate) struct LoadedState {
    /// The values on the host, none once they are released, and the range of each tensor.
    values: Option<SharedState>,
    ranges: Arc<[Range<usize>]>,
    /// The copies of tensors that are in the memory of a device or rounded.
    copies: Arc<[Option<TensorCopy>]>,
}

/// A tensor where a device reads it.
#[derive(Debug)]
struct TensorCopy {
    buffer: DeviceBuffer,
    /// The format to which the values are rounded.
    format: Option<ShortFormat>,
}

/// How operations read the tensors of a state.
#[derive(Clone, Copy)]
pub(crate) struct TensorAccess<'a> {
    /// The device that reads them.
    pub(crate) device: &'a dyn Device,
    /// The format to which matrices are rounded.
    pub(crate) format: Option<ShortFormat>,
    /// Whether each tensor is a matrix of weights.
    pub(crate) is_matrix: &'a [bool],
}

impl LoadedState {
    /// Takes tensors on the host. Cost: none on the host, otherwise a copy to the device; and a copy of matrices to round
    /// them to a format.
    pub(crate) fn new(
        values: Option<SharedState>,
        ranges: Arc<[Range<usize>]>,
        access: TensorAccess<'_>,
    ) -> Self {
        let device = access.device;
        let of_host = values.as_ref().map_or(&[][..], |state| state.values());
        let copy = |(range, is_matrix): (&Range<usize>, &bool)| {
            let format = access.format.filter(|_| *is_matrix);
            if device.is_host() && format.is_none() {
                return None;
            }
            let mut buffer = device.allocate(range.len());
            device.write(&of_host[range.clone()], buffer.slice_mut());
            if let Some(format) = format {
                RoundKernel {
                    format,
                    values: buffer.slice_mut(),
                }
                .run_on(device);
            }
            Some(TensorCopy { buffer, format })
        };
        let copies = ranges.iter().zip(access.is_matrix).map(copy).collect();
        Self {
            values,
            ranges,
            copies,
        }
    }

    /// Returns tensors of a device that computes nothing.
    pub(crate) fn planned(lengths: impl Iterator<Item = usize>, device: &dyn Device) -> Self {
        let copies = lengths.map(|length| {
            Some(TensorCopy {
                buffer: device.allocate(length),
                format: None,
            })
        });
        Self {
            copies: copies.collect(),
            ..Self::default()
        }
    }

    /// Lets operations read the tensors in another way.
    pub(crate) fn change_access(&mut self, access: TensorAccess<'_>) {
        *self = Self::new(self.values.clone(), self.ranges.clone(), access);
    }

    /// Drops the values.
    pub(crate) fn release(&mut self) {
        self.values = None;
        self.copies = Arc::default();
    }

    /// Returns the values on the host. A released state has none; to use it is a bug of the caller.
    fn values(&self) -> &[f32] {
        self.values.as_ref().map_or(&[], |state| state.values())
    }

    /// Writes all tensors to ranges of a state.
    pub(crate) fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        // Tensors of other parts are not loaded.
        let own = self
            .ranges
            .iter()
            .zip(ranges)
            .filter(|(from, _)| !from.is_empty());
        for (from, to) in own {
            state[to.clone()].copy_from_slice(&self.values()[from.clone()]);
        }
    }

    /// Returns the values of a tensor.
    fn get(&self, index: usize) -> DeviceSlice<'_> {
        match self.copies.get(index).and_then(Option::as_ref) {
            Some(copy) => copy.buffer.slice(),
            None => DeviceSlice::Host(&self.values()[self.ranges[index].clone()]),
        }
    }

    /// Returns the format to which a tensor is rounded.
    fn format(&self, index: usize) -> Option<ShortFormat> {
        let copy = self.copies.get(index).and_then(Option::as_ref);
        copy.and_then(|copy| copy.format)
    }

    /// Returns a tensor as a matrix of `rows` by `columns`.
    fn matrix(&self, index: usize, rows: usize, columns: usize) -> MatrixSlice<'_> {
        MatrixSlice::new(self.get(index), rows, columns).rounded_to(self.format(index))
    }
}

/// The tensors of an operation during one pass, and the device that computes it.
#[derive(Clone, Copy)]
pub(crate) struct Tensors<'a> {
    device: &'a dyn Device,
    state: &'a LoadedState,
    /// The number of the first tensor in the state of the layer.
    first: usize,
    has_output_again: bool,
    packs: Option<ShortFormat>,
    tokens: Option<OwnTokens<'a>>,
    part: Option<u32>,
    joined: &'a [JoinedShard],
}

impl<'a> Tensors<'a> {
    pub(crate) fn new(device: &'a dyn Device, state: &'a LoadedState, first: usize) -> Self {
        Self {
            device,
            state,
            first,
            has_output_again: false,
            packs: None,
            tokens: None,
            part: None,
            joined: &[],
        }
    }

    /// Sets the joined shards, if there are several.
    pub(crate) fn with_shards(self, joined: &'a [JoinedShard]) -> Self {
        Self { joined, ..self }
    }

    /// Returns the joined shards that an operation computes the gradients of its tensors from, or draws random numbers for. None if the
    /// samples are those of one shard.
    pub(crate) fn joined(&self) -> &'a [JoinedShard] {
        self.joined
    }

    /// Returns the samples of each joined shard, or all of them.
    pub(crate) fn samples_of_shards(&self, samples: usize) -> Vec<Range<usize>> {
        match self.joined {
            [] => std::iter::once(0..samples).collect(),
            joined => joined.iter().map(|of| of.samples.clone()).collect(),
        }
    }

    /// Sets the own tokens of the output, if it is divided along its tokens.
    pub(crate) fn with_tokens(self, tokens: Option<OwnTokens<'a>>) -> Self {
        Self { tokens, ..self }
    }

    /// Returns the own tokens of the output, if it is divided along its tokens.
    pub(crate) fn tokens(&self) -> Option<OwnTokens<'a>> {
        self.tokens
    }

    /// Lets the operation compute the gradients of its tensors from the tokens of one of the own parts.
    pub(crate) fn of_part(self, part: u32) -> Self {
        Self {
            part: Some(part),
            ..self
        }
    }

    /// Returns the own part whose tokens the gradients of the tensors are computed from, with its tokens; `None` for all.
    pub(crate) fn tokens_of_part(&self) -> Option<(u32, OwnTokens<'a>)> {
        self.part.zip(self.tokens)
    }

    /// Sets whether the output is computed again in the backward pass.
    pub(crate) fn with_output_again(self, has_output_again: bool) -> Self {
        Self {
            has_output_again,
            ..self
        }
    }

    /// Returns whether the output is computed again in the backward pass: see [`GraphOperation::output_again`](super::GraphOperation::output_again).
    pub(crate) fn has_output_again(&self) -> bool {
        self.has_output_again
    }

    /// Sets the format in which the operation packs its results.
    pub(crate) fn packing(self, packs: Option<ShortFormat>) -> Self {
        Self { packs, ..self }
    }

    /// Returns blocks of units whose values need little work each.
    pub(crate) fn blocks(&self, units: usize) -> Blocks<'a> {
        Blocks::new(self.device, units)
    }

    /// Returns blocks of units for matrix products and convolutions.
    pub(crate) fn blocks_of_products(&self, units: usize) -> Blocks<'a> {
        Blocks::of_products(self.device, units)
    }

    /// Returns the device that computes the operation.
    pub(crate) fn device(&self) -> &'a dyn Device {
        self.device
    }

    /// Returns memory with unspecified contents, to be written before it is read.
    pub(crate) fn unwritten(&self, shape: &[usize]) -> Activation {
        Activation::unwritten(self.device, shape)
    }

    /// Lets a kernel write a gradient of a tensor, or adds its output.
    pub(crate) fn write_or_add(
        &self,
        adds: bool,
        to: DeviceSliceMut<'_>,
        kernel: impl FnOnce(DeviceSliceMut<'_>),
    ) {
        if !adds {
            return kernel(to);
        }
        let mut more = self.device.allocate(to.length());
        kernel(more.slice_mut());
        AddKernel {
            y: to,
            x: more.slice(),
        }
        .run_on(self.device);
    }

    /// Returns memory for values that the operation computes in [`Blocks`]: packed if it packs them.
    pub(crate) fn result(&self, shape: &[usize]) -> Activation {
        match self.packs {
            Some(format) => Activation::unwritten_packed(self.device, shape, format),
            None => self.unwritten(shape),
        }
    }

    /// Returns the values of the operation's tensor number `index`.
    pub(crate) fn get(&self, index: usize) -> DeviceSlice<'a> {
        self.state.get(self.first + index)
    }

    /// Returns the operation's tensor number `index` as a matrix of `rows` by `columns`.
    pub(crate) fn matrix(&self, index: usize, rows: usize, columns: usize) -> MatrixSlice<'a> {
        self.state.matrix(self.first + index, rows, columns)
    }

    /// Returns the format to which both the operation's tensor number `index` and other values are rounded.
    pub(crate) fn format_with(&self, index: usize, other: &Activation) -> Option<ShortFormat> {
        let format = self.state.format(self.first + index);
        format.filter(|_| format == other.rounded_to())
    }

    /// Returns a handle of a tensor, for an operation of another layer.
    pub(crate) fn share(&self, index: usize) -> SharedTensor {
        SharedTensor {
            state: self.state.clone(),
            index: self.first + index,
        }
    }
}

/// A tensor that a layer shares with another one of the same model.
#[derive(Debug, Clone)]
pub(crate) struct SharedTensor {
    state: LoadedState,
    index: usize,
}

impl SharedTensor {
    /// Returns the values as a matrix of `rows` by `columns`.
    pub(crate) fn matrix(&self, rows: usize, columns: usize) -> MatrixSlice<'_> {
        self.state.matrix(self.index, rows, columns)
    }
}

/// The gradients of the tensors of an operation: in the buffer of the layer's gradients, or in the memory of a device.
pub(crate) enum TensorGradients<'a> {
    /// Ranges of a buffer on the host.
    Host {
        values: &'a mut [f32],
        ranges: &'a [Range<usize>],
    },
    /// A buffer for each tensor.
    Foreign(Vec<DeviceBuffer>),
}

impl<'a> TensorGradients<'a> {
    /// `ranges` are the ranges of the tensors in `values`.
    pub(crate) fn new(
        device: &dyn Device,
        values: &'a mut [f32],
        ranges: &'a [Range<usize>],
    ) -> Self {
        if device.is_host() {
            return Self::Host { values, ranges };
        }
        let buffers = ranges.iter().map(|range| device.allocate(range.len()));
        Self::Foreign(buffers.collect())
    }

    /// Returns the buffers in the memory of a device, which are not in the buffer on the host yet.
    pub(super) fn foreign(self) -> Vec<DeviceBuffer> {
        match self {
            Self::Host { .. } => Vec::new(),
            Self::Foreign(found) => found,
        }
    }

    /// Lets `write` write the gradients of some tensors: from all samples, or from those of each joined shard with its number among
    /// them, which are added in the order of the exact sum. Cost beyond the calls: memory for the gradients of log2(shards) + 1 shards,
    /// and an addition for each shard.
    pub(crate) fn add_shards(
        &mut self,
        some: Range<usize>,
        tensors: Tensors<'_>,
        samples: usize,
        mut write: impl FnMut(usize, Range<usize>, &mut TensorGradients<'_>),
    ) {
        self.add_groups(1, some, tensors, |group, to| match group.first() {
            Some(of) => write(of.place, of.samples.clone(), to),
            None => write(0, 0..samples, to),
        });
    }

    /// Lets `write` write the gradients of some tensors, summed over the joined shards of each group in the order of the exact sum.
    /// The sums of groups are then added in this order. A group has `together` shards, a power of two; the last one may have fewer.
    /// Without joined shards there is one empty group, for all samples.
    pub(crate) fn add_groups(
        &mut self,
        together: usize,
        some: Range<usize>,
        tensors: Tensors<'_>,
        mut write: impl FnMut(&[JoinedShard], &mut TensorGradients<'_>),
    ) {
        debug_assert!(together.is_power_of_two(), "subtrees of the exact sum");
        let mut groups = tensors.joined().chunks(together);
        write(groups.next().unwrap_or_default(), self);
        let device = tensors.device();
        let length = |tensor: usize| match some.contains(&tensor) {
            true => self.get(tensor).length(),
            false => 0,
        };
        let lengths: Vec<usize> = (0..some.end).map(length).collect();
        let count = 1 + groups.len() as u32;
        // The sum that begins with the first group is where the gradients belong; others have memory of their own.
        let mut sums: Vec<(Node, Option<Vec<DeviceBuffer>>)> = vec![(Node::leaf(0, count), None)];
        for (number, group) in (1..).zip(groups) {
            let found = lengths.iter().map(|length| device.allocate(*length));
            let mut found = TensorGradients::Foreign(found.collect());
            write(group, &mut found);
            let (mut node, mut found) = (Node::leaf(number, count), found.foreign());
            while let Some((_, left)) = sums.pop_if(|(left, _)| node.is_right_sibling_of(*left)) {
                let mut left = left.map(TensorGradients::Foreign);
                let to = left.as_mut().unwrap_or(self);
                for tensor in some.clone() {
                    AddExactKernel {
                        y: to.get(tensor),
                        x: found[tensor].slice(),
                    }
                    .run_on(device);
                }
                node = node.parent(count);
                match left {
                    Some(left) => found = left.foreign(),
                    None => {
                        found.clear();
                        break;
                    }
                }
            }
            sums.push((node, (!found.is_empty()).then_some(found)));
        }
        debug_assert_eq!(sums.len(), 1, "joined shards are one subtree");
    }

    /// Returns the gradient of tensor number `index`, to be written completely.
    pub(crate) fn get(&mut self, index: usize) -> DeviceSliceMut<'_> {
        match self {
            Self::Host { values, ranges } => {
                DeviceSliceMut::Host(&mut values[ranges[index].clone()])
            }
            Self::Foreign(buffers) => buffers[index].slice_mut(),
        }
    }

    /// Returns the gradients of two tensors that follow each other.
    pub(crate) fn pair(&mut self, first: usize) -> [DeviceSliceMut<'_>; 2] {
        self.several(first)
    }

    /// Returns the gradients of tensors that follow each other.
    pub(crate) fn several<const N: usize>(&mut self, first: usize) -> [DeviceSliceMut<'_>; N] {
        let indices = std::array::from_fn(|index| first + index);
        match self {
            Self::Host { values, ranges } => {
                let all = values.get_disjoint_mut(indices.map(|index| ranges[index].clone()));
                all.expect("tensors of one state do not overlap")
                    .map(DeviceSliceMut::Host)
            }
            Self::Foreign(buffers) => {
                let all = buffers.get_disjoint_mut(indices);
                all.expect("an operation has these tensors")
                    .map(DeviceBuffer::slice_mut)
            }
        }
    }
}
