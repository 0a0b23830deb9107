//! Short formats in a layer: which values are rounded, and when kept ones are packed and unpacked.
//!
//! A value is rounded when it is complete, in the pass that also packs it if an operation keeps it. Kept values are packed
//! as soon as their operation has run, and unpacked only while its backward pass runs.

use ronde_core::Shard;
use ronde_kernels::ShortFormat;

use super::GraphLayer;
use crate::graph::TensorAccess;
use crate::{Activation, ForwardContext, Mode, Precision};

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
            self.reload();
        }
    }

    /// Lets operations read the state as the device and the format require.
    pub(super) fn reload(&mut self) {
        let mut state = std::mem::take(&mut self.state);
        state.change_access(self.access());
        self.state = state;
    }

    /// Rounds the layer's input.
    pub(super) fn round_input(&self, input: &mut Activation, context: &ForwardContext) {
        if let Some(format) = self.format().filter(|_| !self.has_numbers[0]) {
            let packs = context.mode == Mode::Train && self.is_kept[0];
            input.round(self.device.as_ref(), format, packs);
        }
    }

    /// Rounds the outputs of an operation, and packs what the operation keeps.
    pub(super) fn round_outputs(
        &mut self,
        index: usize,
        outputs: &mut [Activation],
        contexts: &[ForwardContext],
    ) {
        let Some(format) = self.format() else { return };
        let device = self.device.as_ref();
        let node = &mut self.outline.nodes[index];
        let rounds = !self.has_numbers[index + 1];
        let reads_numbers = node.inputs.iter().any(|value| self.has_numbers[*value]);
        for (output, context) in outputs.iter_mut().zip(contexts) {
            let trains = context.mode == Mode::Train;
            // What is computed again is not kept.
            let is_again = self.is_again[index + 1];
            let mut packs = trains && self.is_kept[index + 1] && !is_again;
            if trains && !reads_numbers {
                node.node.each_saved(context.shard, &mut |saved| {
                    if rounds && saved.shares_values(output) {
                        saved.leave_to_clone();
                        packs = true;
                    } else {
                        saved.pack(device, format);
                    }
                });
            }
            if rounds {
                output.round(device, format, packs);
            }
        }
    }

    /// Rounds complete gradients of a value.
    pub(super) fn round_gradients(&self, gradients: &mut [Option<Activation>]) {
        if let Some(format) = self.format() {
            let device = self.device.as_ref();
            let known = gradients.iter_mut().flatten();
            known.for_each(|gradient| gradient.round(device, format, false));
        }
    }

    /// Unpacks what an operation keeps of a shard, before its backward passes.
    pub(super) fn unpack_saved(&mut self, index: usize, shard: Shard) {
        if self.format().is_some() {
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
            node.node.each_saved(shard, &mut |saved| {
                // Values that were computed again are rounded, but not packed yet.
                if saved.rounded_to() == Some(format) {
                    saved.pack(device, format);
                } else {
                    saved.drop_unpacked();
                }
            });
        }
        let known = gradients.iter_mut().flatten();
        known.for_each(|gradient| gradient.pack(device, format));
    }
}
