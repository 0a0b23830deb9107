//! Passes of single shards, and the loss.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ronde_core::layout::Role;
use ronde_core::{Shard, Step};
use ronde_engine::{
    Activation, Chain, EngineError, ForwardContext, Layer, LayerExt, LossOutput, Mode, Predictions,
};
use ronde_protocol::transaction::ShardReport;

use super::SynchronousStrategy;
use super::program::{RunningStep, not_loaded};
use crate::error::ParallelError;
use crate::strategy::MicroBatch;

/// Runs a pass of a layer and returns a panic as an error that names the layer.
///
/// A layer that has panicked is not used again: the error ends the run.
pub(super) fn guarded<T>(
    chain: &mut Chain,
    index: usize,
    pass: &'static str,
    got: Vec<usize>,
    run: impl FnOnce(&mut dyn Layer) -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    let layer = &mut chain.layers_mut()[index];
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&mut **layer)));
    outcome.unwrap_or_else(|payload| {
        let message = payload.downcast_ref::<String>().cloned();
        let message = message.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
        let tensors = &layer.layout().tensors;
        let first = tensors.first().map(|tensor| format!(" ({})", tensor.name));
        Err(EngineError::Panicked {
            layer: format!("{index}{}", first.unwrap_or_default()),
            pass,
            got,
            message: message.unwrap_or_else(|| "without a message".to_owned()),
        })
    })
}

/// Passes values through all layers of a model in evaluation mode, and returns a panic of a layer as an error that names it.
///
/// # Errors
/// When a layer fails.
pub fn evaluate_guarded(chain: &mut Chain, values: Activation) -> Result<Activation, EngineError> {
    let mut activation = values;
    for layer in 0..chain.len() {
        let context = ForwardContext::evaluate().at_layer(layer as u32);
        let shape = activation.shape().to_vec();
        activation = guarded(chain, layer, "forward", shape, |layer| {
            layer.forward_shard(activation, &context)
        })?;
    }
    Ok(activation)
}

/// Takes the features of a batch; `None` for one without samples.
pub(super) fn features(batch: &mut MicroBatch) -> Option<Activation> {
    let features = std::mem::take(&mut batch.features);
    (batch.samples() > 0).then(|| Activation::from_host(&batch.shape, features))
}

impl SynchronousStrategy {
    /// Passes values through layers of the model.
    pub(super) fn forward(
        &mut self,
        layers: Range<usize>,
        (step, shard, mode): (Step, Shard, Mode),
        values: Activation,
    ) -> Result<Activation, EngineError> {
        let mut activation = values;
        for layer in layers {
            let context = self.context(step, shard, layer, mode);
            let shape = activation.shape().to_vec();
            activation = guarded(&mut self.chain, layer, "forward", shape, |layer| {
                layer.forward_shard(activation, &context)
            })?;
        }
        Ok(activation)
    }

    /// Takes the values that enter layers of a stage; `None` for a shard without samples.
    pub(super) fn input(
        &self,
        stage: usize,
        layers: &Range<usize>,
        shard: u32,
        running: &mut RunningStep,
    ) -> Result<Option<Activation>, ParallelError> {
        if layers.start > self.layout.stages()[stage].layers.start {
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

    /// Runs the half of the backward pass of a shard through the layers of a unit that the layers before them need.
    pub(super) fn backward_input_of(
        &mut self,
        index: usize,
        shard: u32,
        running: &mut RunningStep,
    ) -> Result<(), ParallelError> {
        let stage = self.unit(index).stage;
        let mut gradient = running.gradients.remove(&(stage, shard)).flatten();
        for layer in self.unit(index).layers.clone().rev() {
            // A shard without samples has no gradient.
            let Some(output) = gradient.take() else { break };
            let (shape, needs_input) = (output.shape().to_vec(), layer > 0);
            let found = guarded(&mut self.chain, layer, "backward", shape, |layer| {
                layer.backward_input(Shard(shard), output, needs_input)
            });
            gradient = found.map_err(|source| self.pass_error(Shard(shard), source))?;
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
        let mut buffer = self.take_unit(index)?;
        let samples = running.samples.get(&shard).copied().unwrap_or(0);
        if samples == 0 {
            buffer.values_mut().fill(0.0);
        } else {
            for layer in self.unit(index).layers.clone().rev() {
                let ranges = self.unit_ranges(index, layer);
                let gradients = buffer.values_mut();
                let done = guarded(&mut self.chain, layer, "backward", Vec::new(), |layer| {
                    layer.backward_weights(Shard(shard), gradients, &ranges)
                });
                done.map_err(|source| self.pass_error(Shard(shard), source))?;
                self.weigh_buffers(layer, samples, &ranges, gradients);
            }
        }
        self.add_unit(&(shard..shard + 1), buffer);
        Ok(())
    }

    /// Runs backward of the layers of one unit into its buffer and returns the gradient of their input.
    pub(super) fn backward_layers(
        &mut self,
        index: usize,
        (shard, samples): (Shard, usize),
        output: Activation,
        buffer: &mut [f32],
    ) -> Result<Option<Activation>, EngineError> {
        let mut gradient = Some(output);
        for layer in self.unit(index).layers.clone().rev() {
            let Some(output) = gradient.take() else { break };
            let ranges = self.unit_ranges(index, layer);
            gradient = self.backward_layer(layer, shard, output, buffer, &ranges)?;
            self.weigh_buffers(layer, samples, &ranges, buffer);
        }
        Ok(gradient)
    }

    /// Returns the report of a shard before its loss is computed.
    pub(crate) fn report_of(&self, batch: &MicroBatch) -> ShardReport {
        let samples = batch.samples();
        ShardReport {
            samples: samples as u64,
            targets: self.config.loss.counted_targets(&batch.labels, samples),
            ..ShardReport::empty(batch.shard)
        }
    }

    /// Computes the loss, writes it to the report, and returns its gradient.
    pub(super) fn loss_gradient(
        &mut self,
        output: Activation,
        batch: &MicroBatch,
        report: &mut ShardReport,
    ) -> Result<Activation, ParallelError> {
        let (shape, samples) = (output.shape().to_vec(), batch.samples());
        if let (Some(widths), Some(loss)) = (&self.output_parts, self.config.loss.in_parts()) {
            let outputs = output.on_host().into_host();
            let loss = loss.loss_of_parts(outputs, widths, &batch.labels, samples, &self.parts);
            let loss = loss.map_err(|source| self.pass_error(batch.shard, source))?;
            return Ok(self.scaled_gradient(&shape, loss, report));
        }
        let mut output = output.on_host();
        if let Some(values) = output.host_mut() {
            let (loss, labels) = (&self.config.loss, &batch.labels);
            let found = loss.loss_and_gradient_in_place(values, labels, samples);
            report.loss_sum = found.map_err(|source| self.pass_error(batch.shard, source))?;
            self.scale.multiply(values);
            return Ok(output);
        }
        let loss = Predictions::new(output.as_slice(), &batch.labels, samples)
            .and_then(|predictions| self.config.loss.checked(&predictions));
        let loss = loss.map_err(|source| self.pass_error(batch.shard, source))?;
        Ok(self.scaled_gradient(&shape, loss, report))
    }

    /// Writes a loss to the report, and returns its gradient, scaled for short formats.
    fn scaled_gradient(
        &self,
        shape: &[usize],
        mut loss: LossOutput,
        report: &mut ShardReport,
    ) -> Activation {
        self.scale.multiply(&mut loss.gradient);
        report.loss_sum = loss.loss_sum;
        Activation::from_host(shape, loss.gradient)
    }

    /// Multiplies a layer's buffers, as updated by a shard's forward pass, by the shard's samples for the sum.
    pub(super) fn weigh_buffers(
        &self,
        layer: usize,
        samples: usize,
        ranges: &[Range<usize>],
        to: &mut [f32],
    ) {
        let tensors = &self.chain.layers()[layer].layout().tensors;
        for (entry, range) in tensors.iter().zip(ranges) {
            if entry.role == Role::Buffer {
                let weight = samples as f32;
                to[range.clone()]
                    .iter_mut()
                    .for_each(|value| *value *= weight);
            }
        }
    }
}
