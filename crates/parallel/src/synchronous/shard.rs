//! Passes of single shards.

use std::ops::Range;

use ronde_core::Shard;
use ronde_engine::{Activation, EngineError, LayerExt};

use super::passes::Passes;
use super::program::{RunningStep, not_loaded};
use crate::error::ParallelError;
use crate::step_method::MicroBatch;

/// Takes the features of a batch; `None` for one without samples.
pub(super) fn features(batch: &mut MicroBatch) -> Option<Activation> {
    let features = std::mem::take(&mut batch.features);
    (batch.samples() > 0).then(|| Activation::from_host(&batch.shape, features))
}

impl Passes<'_> {
    /// Takes the values that enter layers of a stage; `None` for a shard without samples.
    pub(super) fn input(
        &self,
        stage: usize,
        layers: &Range<usize>,
        shard: u32,
        running: &mut RunningStep,
    ) -> Result<Option<Activation>, ParallelError> {
        if layers.start > self.mesh.layout.stages()[stage].layers.start {
            return Ok(running.outputs.remove(&(stage, shard)).flatten());
        }
        match stage.checked_sub(1) {
            Some(before) => Ok(running.outputs.remove(&(before, shard)).flatten()),
            None => {
                let batch = running.batches.get_mut(&shard);
                Ok(features(batch.ok_or_else(|| not_loaded(shard))?))
            }
        }
    }

    /// Passes the gradient of the output of a unit back through its layers, and adds the gradient of their weights. Returns the gradient of
    /// the input. A shard without samples has no gradient, and adds zeros.
    pub(super) fn backward_unit(
        &mut self,
        unit: usize,
        (shard, samples): (Shard, usize),
        output: Option<Activation>,
    ) -> Result<Option<Activation>, ParallelError> {
        let mut buffer = self.reducer.take_unit(unit)?;
        let gradients = buffer.values_mut();
        let gradient = match output {
            Some(output) => {
                let passed = self.backward_layers(unit, (shard, samples), output, gradients);
                passed.map_err(|source| self.model.pass_error(shard, source))?
            }
            None => {
                gradients.fill(0.0);
                None
            }
        };
        self.reducer.add_unit(&(shard.0..shard.0 + 1), buffer);
        Ok(gradient)
    }

    /// Runs the half of the backward pass of a shard through the layers of a unit that the layers before them need.
    pub(super) fn backward_input_of(
        &mut self,
        index: usize,
        shard: u32,
        running: &mut RunningStep,
    ) -> Result<(), ParallelError> {
        let stage = self.reducer.unit(index).stage;
        let mut gradient = running.gradients.remove(&(stage, shard)).flatten();
        for layer in self.reducer.unit(index).layers.clone().rev() {
            // A shard without samples has no gradient.
            let Some(output) = gradient.take() else { break };
            let (shape, needs_input) = (output.shape().to_vec(), layer > 0);
            let found = self.model.pass(layer, "backward", shape, |layer| {
                layer.backward_input(Shard(shard), output, needs_input)
            });
            gradient = found.map_err(|source| self.model.pass_error(Shard(shard), source))?;
        }
        running.gradients.insert((stage, shard), gradient);
        Ok(())
    }

    /// Runs the other half, which adds the gradient of the weights.
    pub(super) fn backward_weights_of(
        &mut self,
        index: usize,
        shard: u32,
        running: &mut RunningStep,
    ) -> Result<(), ParallelError> {
        let mut buffer = self.reducer.take_unit(index)?;
        let samples = running.samples.get(&shard).copied().unwrap_or(0);
        if samples == 0 {
            buffer.values_mut().fill(0.0);
        } else {
            for layer in self.reducer.unit(index).layers.clone().rev() {
                let ranges = self.reducer.unit_ranges(index, layer);
                let gradients = buffer.values_mut();
                let done = self.model.pass(layer, "backward", Vec::new(), |layer| {
                    layer.backward_weights(Shard(shard), gradients, &ranges)
                });
                done.map_err(|source| self.model.pass_error(Shard(shard), source))?;
                self.model.weigh_buffers(layer, samples, &ranges, gradients);
            }
        }
        self.reducer.add_unit(&(shard..shard + 1), buffer);
        Ok(())
    }

    /// Runs backward of the layers of one unit into its buffer and returns the gradient of their input.
    fn backward_layers(
        &mut self,
        index: usize,
        (shard, samples): (Shard, usize),
        output: Activation,
        buffer: &mut [f32],
    ) -> Result<Option<Activation>, EngineError> {
        let mut gradient = Some(output);
        for layer in self.reducer.unit(index).layers.clone().rev() {
            let Some(output) = gradient.take() else { break };
            let ranges = self.reducer.unit_ranges(index, layer);
            gradient = self.model.backward(layer, shard, output, buffer, &ranges)?;
            self.model.weigh_buffers(layer, samples, &ranges, buffer);
        }
        Ok(gradient)
    }
}
