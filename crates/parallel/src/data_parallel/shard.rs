//! Runs shards one after the other: forward, loss, and backward into the buckets.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ronde_core::Step;
use ronde_core::layout::Role;
use ronde_core::session::ShardReport;
use ronde_core::spans::SpanKind;
use ronde_engine::{Activation, Chain, EngineError, Layer, Mode, Predictions};

use super::DataParallel;
use crate::{MicroBatch, ParallelError};

/// Runs a pass of a layer and returns a panic as an error that names the layer.
///
/// A layer that has panicked is not used again: the error ends the run.
fn guarded<T>(
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

impl DataParallel {
    /// Runs forward and backward of this rank's shards, one after the other.
    pub(super) fn backward_apart(
        &mut self,
        step: Step,
        micro_batches: Vec<MicroBatch>,
    ) -> Result<Vec<ShardReport>, ParallelError> {
        if micro_batches.is_empty() {
            // A rank without shards contributes nothing but receives the sum.
            for index in 0..self.buckets.len() {
                self.start_bucket(index)?;
            }
        }
        let each = micro_batches.into_iter();
        each.map(|batch| self.backward_shard(step, batch)).collect()
    }

    pub(super) fn forward(
        &mut self,
        step: Step,
        batch: &mut MicroBatch,
        mode: Mode,
    ) -> Result<Activation, EngineError> {
        let mut activation =
            Activation::from_host(&batch.shape, std::mem::take(&mut batch.features));
        for layer in 0..self.chain.len() {
            let context = self.context(step, batch.shard, layer, mode);
            let shape = activation.shape().to_vec();
            activation = guarded(&mut self.chain, layer, "forward", shape, |layer| {
                layer.forward(activation, &context)
            })?;
        }
        Ok(activation.on_host())
    }

    /// Runs backward of all layers, last first; fills and adds buckets, and sends them with the rank's last shard.
    fn backward_buckets(
        &mut self,
        batch: &MicroBatch,
        gradient: Option<Activation>,
        last: bool,
    ) -> Result<(), ParallelError> {
        let mut gradient = gradient;
        for index in 0..self.buckets.len() {
            let span = self.begin_span();
            let mut buffer = self.take_buffer(index)?;
            match gradient.take() {
                Some(output) => {
                    let input = self
                        .backward_layers(index, batch, output, buffer.as_mut_slice())
                        .map_err(|source| ParallelError::Engine {
                            shard: batch.shard,
                            source,
                        })?;
                    gradient = input;
                }
                // A shard without samples contributes zeros.
                None => buffer.as_mut_slice::<f32>().fill(0.0),
            }
            self.buckets[index].add_shard(batch.shard.0, buffer);
            if last {
                self.start_bucket(index)?;
            }
            self.end_span(span, SpanKind::Backward, index as u64);
        }
        Ok(())
    }

    /// Runs backward of the layers of one bucket into its buffer and returns the gradient of their input.
    fn backward_layers(
        &mut self,
        index: usize,
        batch: &MicroBatch,
        output: Activation,
        buffer: &mut [f32],
    ) -> Result<Option<Activation>, EngineError> {
        let bucket = &self.buckets[index].plan;
        let mut gradient = Some(output);
        for layer in bucket.layers.clone().rev() {
            let Some(output) = gradient.take() else { break };
            let ranges = self.state.layer_ranges(layer, bucket.elements.start);
            let (shape, needs_input) = (output.shape().to_vec(), layer > 0);
            gradient = guarded(&mut self.chain, layer, "backward", shape, |layer| {
                layer.backward(batch.shard, output, buffer, &ranges, needs_input)
            })?;
            self.weigh_buffers(layer, batch.samples(), &ranges, buffer);
        }
        Ok(gradient)
    }

    /// Runs forward and backward of one shard.
    fn backward_shard(
        &mut self,
        step: Step,
        mut batch: MicroBatch,
    ) -> Result<ShardReport, ParallelError> {
        let shard = batch.shard;
        let engine = |source| ParallelError::Engine { shard, source };
        let last = shard.0 + 1 == self.run().end;
        let samples = batch.samples();
        let mut report = ShardReport {
            shard,
            samples: samples as u64,
            skipped: 0,
            loss_sum: 0.0,
        };
        let mut gradient = None;
        let begun = self.now();
        let span = self.begin_span();
        if samples > 0 {
            let output = self
                .forward(step, &mut batch, Mode::Train)
                .map_err(engine)?;
            gradient = Some(self.loss_gradient(&output, &batch, &mut report)?);
        }
        self.end_span(span, SpanKind::Forward, shard.0.into());
        let forward_done = self.now();
        self.backward_buckets(&batch, gradient, last)?;
        self.times.forward_s += forward_done - begun;
        self.times.backward_s += self.now() - forward_done;
        Ok(report)
    }

    /// Computes the loss, writes it to the report, and returns its gradient.
    pub(super) fn loss_gradient(
        &mut self,
        output: &Activation,
        batch: &MicroBatch,
        report: &mut ShardReport,
    ) -> Result<Activation, ParallelError> {
        let output = output.clone().on_host();
        let predictions = Predictions::new(output.as_slice(), &batch.labels, batch.samples());
        let loss = predictions.and_then(|predictions| self.config.loss.checked(&predictions));
        let mut loss = loss.map_err(|source| ParallelError::Engine {
            shard: batch.shard,
            source,
        })?;
        self.scale.multiply(&mut loss.gradient);
        report.loss_sum = loss.loss_sum;
        Ok(Activation::from_host(output.shape(), loss.gradient))
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
