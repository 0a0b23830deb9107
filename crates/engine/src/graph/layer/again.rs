//! Values that are not kept: cheap operations compute their outputs again before the backward passes that read them.
//!
//! In training, kept copies of such a value are dropped as soon as it was used, and a handle finds these places
//! again. The value exists once more from the backward pass of its last reader to that of the operation that computes it.
//!
//! These are the outputs of normalisations and activation functions. They have the same bits again; in short formats they are
//! packed as if they had been kept.

use ronde_core::Shard;

use super::GraphLayer;
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::error::EngineError;
use crate::graph::{LoadedState, Tensors};

/// A value of a shard that is computed again.
pub(super) struct ValueAgain {
    value: usize,
    /// A handle of the places that keep the value, with the value itself once it is computed again.
    found: Activation,
}

impl ValueAgain {
    /// Returns whether an operation with some inputs reads or writes the value.
    fn is_of(&self, index: usize, inputs: &[usize]) -> bool {
        self.value == index + 1 || inputs.contains(&self.value)
    }
}

impl GraphLayer {
    /// Forgets the values of earlier passes of shards that begin a forward pass.
    pub(super) fn begin_values_again(&mut self, contexts: &[ForwardContext]) {
        for context in contexts
            .iter()
            .filter(|context| context.mode == Mode::Train)
        {
            self.again.remove(&context.shard);
        }
    }

    /// Drops an operation's copies of values that are computed again, right after its forward pass.
    pub(super) fn leave_values_again(
        &mut self,
        index: usize,
        outputs: &[Activation],
        contexts: &[ForwardContext],
    ) {
        let node = &mut self.outline.nodes[index];
        let is_own = self.is_again[index + 1];
        let reads_any = node.inputs.iter().any(|value| self.is_again[*value]);
        if !is_own && !reads_any {
            return;
        }
        let of_training = outputs.iter().zip(contexts);
        for (output, context) in of_training.filter(|(_, context)| context.mode == Mode::Train) {
            let known = self.again.get_or_default(context.shard);
            if is_own {
                known.push(ValueAgain {
                    value: index + 1,
                    found: output.handle(),
                });
            }
            let inputs = &node.inputs;
            let of_node = known.iter().filter(|again| again.is_of(index, inputs));
            node.node.each_saved(context.shard, &mut |saved| {
                if of_node.clone().any(|again| saved.is_clone_of(&again.found)) {
                    saved.leave();
                }
            });
        }
    }

    /// Restores the values that an operation keeps of a shard, before its backward passes.
    pub(super) fn restore_values_again(
        &mut self,
        index: usize,
        (shard, state): (Shard, &LoadedState),
    ) -> Result<(), EngineError> {
        let Some(mut known) = self.again.remove(&shard) else {
            return Ok(());
        };
        let restored = self.restore(index, &mut known, (shard, state));
        self.again.insert(shard, known);
        restored
    }

    /// Restores those of some values that an operation keeps.
    fn restore(
        &mut self,
        index: usize,
        known: &mut [ValueAgain],
        (shard, state): (Shard, &LoadedState),
    ) -> Result<(), EngineError> {
        for place in 0..known.len() {
            let again = &known[place];
            let mut is_missing = false;
            let node = &mut self.outline.nodes[index].node;
            node.each_saved(shard, &mut |saved| {
                is_missing |= saved.is_clone_of(&again.found) && !saved.has_values();
            });
            if !is_missing {
                continue;
            }
            if !again.found.has_values() {
                let producer = again.value - 1;
                // Those that the operation reads, to compute its output again.
                let (before, rest) = known.split_at_mut(place);
                self.restore(producer, before, (shard, state))?;
                self.compute_again(&mut rest[0], (shard, state))?;
            }
            let again = &known[place];
            let node = &mut self.outline.nodes[index].node;
            node.each_saved(shard, &mut |saved| {
                if saved.is_clone_of(&again.found) {
                    saved.restore(&again.found);
                }
            });
        }
        Ok(())
    }

    fn compute_again(
        &mut self,
        again: &mut ValueAgain,
        (shard, state): (Shard, &LoadedState),
    ) -> Result<(), EngineError> {
        let index = again.value - 1;
        let format = self.precision.short();
        let packs = self.format_of_results(index);
        let device = self.device.as_ref();
        let node = &mut self.outline.nodes[index];
        if format.is_some() && packs.is_none() {
            // The output itself may be among these values, and has none.
            let each = &mut |saved: &mut Activation| {
                if saved.has_values() {
                    saved.unpack(device);
                }
            };
            node.node.each_saved(shard, each);
        }
        let tensors = Tensors::new(device, state, node.tensors.start).packing(packs);
        if let Some(mut output) = node.node.output_again(shard, tensors)? {
            if let Some(format) = format {
                output.pack(device, format);
            }
            again.found.restore(&output);
        }
        Ok(())
    }

    /// Drops the values of a shard between its two backward passes, except those that operations keep.
    pub(super) fn leave_values_between_passes(&mut self, shard: Shard) {
        let known = self.again.get_mut(&shard).into_iter().flatten();
        known.for_each(|again| again.found.leave());
    }

    /// Drops the output of an operation whose backward passes are complete.
    pub(super) fn end_value_again(&mut self, index: usize, shard: Shard) {
        if let Some(known) = self.again.get_mut(&shard) {
            known.retain(|again| again.value != index + 1);
            if known.is_empty() {
                self.again.remove(&shard);
            }
        }
    }
}
