//! Short formats in a layer: which values are packed, and when they are unpacked.
//!
//! All values between operations and their gradients are packed, but for numbers that select rows of a table. Operations that
//! take packed values unpack them in blocks; others get whole values in f32 while they run. The layer's input and output
//! and their gradients are f32, rounded.
//!
//! Copies of parts that are not whole groups also get whole values, and so do layers in parts, whose exchange is f32. Slopes of
//! activation functions that no operation computes again are packed too. Clones of an `Activation` share one packed copy.

use ronde_core::Shard;
use ronde_kernels::ShortFormat;

use super::GraphLayer;
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::graph::TensorAccess;
use crate::precision::Precision;

impl GraphLayer {
    fn format(&self) -> Option<ShortFormat> {
        self.precision.short()
    }

    /// Returns how operations read tensors.
    pub(super) fn access(&self) -> TensorAccess<'_> {
        TensorAccess {
            device: self.device.as_ref(),
            format: self.format(),
            is_matrix: &self.is_matrix,
        }
    }

    /// Changes the format of values, and drops all pending shards.
    pub(super) fn change_precision(&mut self, precision: Precision) {
        if self.precision != precision {
            self.drop_pending();
            self.precision = precision;
            self.find_joining();
            self.reload();
        }
    }

    /// Lets operations read the state as the device and the format require.
    pub(super) fn reload(&mut self) {
        let mut state = std::mem::take(&mut self.state);
        state.change_access(self.access());
        self.state = state;
    }

    /// Returns the format in which an operation packs its results.
    pub(super) fn format_of_results(&self, index: usize) -> Option<ShortFormat> {
        // The parts of a sum are exchanged in f32.
        let packs = self.outline.parts < 2 && self.outline.nodes[index].node.takes_packed();
        self.format().filter(|_| packs)
    }

    /// Returns the format in which an operation packs its output. The layer's output is f32.
    pub(super) fn format_of_output(&self, index: usize) -> Option<ShortFormat> {
        let is_last = index + 1 == self.outline.nodes.len();
        let packs = !is_last && !self.has_numbers[index + 1];
        self.format_of_results(index).filter(|_| packs)
    }

    /// Unpacks values for an operation that takes no packed ones.
    pub(super) fn unpack_for<'v>(
        &self,
        index: usize,
        values: impl Iterator<Item = &'v mut Activation>,
    ) {
        if self.format().is_some() && self.format_of_results(index).is_none() {
            let known = values.filter(|value| value.has_values());
            known.for_each(|value| value.unpack(self.device.as_ref()));
        }
    }

    /// Packs the layer's input.
    pub(super) fn pack_input(&self, input: &mut Activation) {
        if let Some(format) = self.format().filter(|_| !self.has_numbers[0]) {
            input.pack(self.device.as_ref(), format);
        }
    }

    /// Rounds the input of a layer or the outputs of an operation that continues texts, which stay f32.
    pub(super) fn round_value(&self, value: usize, values: &mut [Activation]) {
        if let Some(format) = self.format().filter(|_| !self.has_numbers[value]) {
            let values = values.iter_mut();
            values.for_each(|value| value.round(self.device.as_ref(), format));
        }
    }

    /// Packs the outputs of an operation and its kept values. The layer's output is rounded.
    pub(super) fn pack_outputs(
        &mut self,
        index: usize,
        outputs: &mut [Activation],
        contexts: &[ForwardContext],
    ) {
        let Some(format) = self.format() else { return };
        let is_last = index + 1 == self.outline.nodes.len();
        let device = self.device.as_ref();
        let node = &mut self.outline.nodes[index];
        let reads_numbers = node.inputs.iter().any(|value| self.has_numbers[*value]);
        for (output, context) in outputs.iter_mut().zip(contexts) {
            if context.mode == Mode::Train && !reads_numbers {
                let pack = &mut |saved: &mut Activation| saved.pack(device, format);
                node.node.each_saved(context.shard, pack);
            }
            if self.has_numbers[index + 1] {
                continue;
            }
            if is_last && output.packed_format().is_none() {
                output.round(device, format);
            } else {
                output.pack(device, format);
            }
        }
    }

    /// Rounds the complete gradients of an operation's output, and packs them if it takes packed values. Those that are longer
    /// than its only input, as of scores, are rounded in place: beside them, packed ones would be in memory at its peak.
    pub(super) fn round_gradients(&self, index: usize, gradients: &mut [Option<Activation>]) {
        let Some(format) = self.format() else { return };
        let elements = |value: usize| self.outline.shapes[value].iter().product::<usize>();
        let is_longer = match self.outline.nodes[index].inputs[..] {
            [input] => elements(input) < elements(index + 1),
            _ => false,
        };
        let packs = self.format_of_results(index).is_some() && !is_longer;
        let device = self.device.as_ref();
        for gradient in gradients.iter_mut().flatten() {
            if packs {
                gradient.pack(device, format);
            } else {
                gradient.round(device, format);
            }
        }
    }

    /// Packs the gradient of one use of a value. Layers in parts exchange it in f32.
    pub(super) fn pack_contribution(&self, gradient: &mut Activation) {
        if let Some(format) = self.format().filter(|_| self.outline.parts < 2) {
            gradient.pack(self.device.as_ref(), format);
        }
    }

    /// Returns the gradients of the layer's input in f32, rounded.
    pub(super) fn rounded_gradients(
        &self,
        mut gradients: Vec<Option<Activation>>,
    ) -> Vec<Option<Activation>> {
        if let Some(format) = self.format() {
            let device = self.device.as_ref();
            for gradient in gradients.iter_mut().flatten() {
                gradient.unpack(device);
                gradient.round(device, format);
            }
        }
        gradients
    }

    /// Unpacks an operation's kept values of a shard before its backward passes, unless it takes packed values.
    pub(super) fn unpack_saved(&mut self, index: usize, shard: Shard) {
        if self.format().is_some() && self.format_of_results(index).is_none() {
            let device = self.device.as_ref();
            let node = &mut self.outline.nodes[index].node;
            node.each_saved(shard, &mut |saved| saved.unpack(device));
        }
    }

    /// Keeps only the packed values of a shard between its two backward passes.
    pub(super) fn pack_deferred(&mut self, shard: Shard, gradients: &mut [Option<Activation>]) {
        let Some(format) = self.format() else { return };
        self.leave_values_between_passes(shard);
        let device = self.device.as_ref();
        for node in &mut self.outline.nodes {
            let reads_numbers = node.inputs.iter().any(|value| self.has_numbers[*value]);
            if !reads_numbers {
                let pack = &mut |saved: &mut Activation| saved.pack(device, format);
                node.node.each_saved(shard, pack);
            }
        }
        let known = gradients.iter_mut().flatten();
        known.for_each(|gradient| gradient.pack(device, format));
    }
}
