//! [`PlacedModel`]: the layers of a model on a rank, with the parts of them that it computes there.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ronde_core::layout::Role;
use ronde_core::seed::SeedTree;
use ronde_core::{Shard, Step};
use ronde_engine::{
    Activation, Chain, EngineError, EvaluationSize, ForwardContext, Layer, LayerExt, LayerSetting,
    Loss, LossOutput, Mode, PartPlace, Predictions,
};
use ronde_protocol::transaction::ShardReport;

use super::SynchronousConfig;
use super::mesh::MeshPosition;
use super::parts::GroupParts;
use super::timer::{ComputeClock, StepTimer};
use crate::error::ParallelError;
use crate::loss_scale::LossScale;
use crate::state::ModelState;
use crate::step_method::MicroBatch;

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

/// The layers of a rank.
pub(super) struct PlacedModel {
    pub(super) chain: Chain,
    pub(super) seeds: SeedTree,
    pub(super) evaluation: EvaluationSize,
    loss: Arc<dyn Loss>,
    /// The parts that this rank computes.
    parts: PartPlace,
    /// The exchange with the ranks that compute other parts of the same layers.
    exchange: Option<Arc<GroupParts>>,
    /// The lengths of the parts of the outputs, if the loss is computed from them.
    output_parts: Option<Vec<usize>>,
}

impl PlacedModel {
    /// Returns the layers of a model; [`PlacedModel::place`] follows.
    pub(super) fn new(chain: Chain, seeds: SeedTree, config: &SynchronousConfig) -> Self {
        Self {
            evaluation: match config.sample_shape.is_empty() {
                true => EvaluationSize::default(),
                false => EvaluationSize::of(&chain, &config.sample_shape),
            },
            chain,
            seeds,
            loss: config.loss.clone(),
            parts: PartPlace::all(1),
            exchange: None,
            output_parts: None,
        }
    }

    /// Sets the parts that this rank computes, and their exchange.
    pub(super) fn place(&mut self, mesh: &MeshPosition, clock: Option<ComputeClock>) {
        let (parts, own) = (self.chain.parts(), mesh.own_parts());
        let group = mesh.parts.clone();
        self.exchange = group
            .and_then(|group| GroupParts::new(group, &mesh.layout, parts, clock))
            .map(Arc::new);
        let place = match &self.exchange {
            Some(exchange) => PartPlace::shared(own, parts, exchange.clone()),
            // All parts, or the ranks are not connected yet.
            None => PartPlace::planned(own, parts),
        };
        self.chain.set_parts(&place);
        self.parts = place;
        // Outputs that different ranks have are not joined if the loss does not need that.
        let has_loss_in_parts = self.loss.in_parts().is_some();
        self.output_parts = None;
        if let Some(last) = self.chain.layers_mut().last_mut() {
            let parts = last.facts().output_parts.clone();
            self.output_parts = parts.filter(|_| has_loss_in_parts);
            let is_apart = self.output_parts.is_some() && self.exchange.is_some();
            last.set(LayerSetting::OutputApart(is_apart));
        }
    }

    /// Loads the weights of the layers that this rank computes, and drops the weights of the remaining ones.
    pub(super) fn load(&mut self, state: &ModelState, mesh: &MeshPosition) {
        let computed = mesh.computed_layers();
        for layer in 0..self.chain.len() {
            if computed.iter().any(|layers| layers.contains(&layer)) {
                state.load_into(&mut self.chain, layer);
            } else {
                self.chain.layers_mut()[layer].release_state();
            }
        }
    }

    /// Returns the error behind a failed pass of a shard.
    pub(super) fn pass_error(&self, shard: Shard, source: EngineError) -> ParallelError {
        let exchange = self.exchange.as_ref();
        match (source, exchange.and_then(|exchange| exchange.take_failed())) {
            (EngineError::NotSummed { layer }, Some(source)) => {
                ParallelError::LayerSum { layer, source }
            }
            (source, _) => ParallelError::Engine { shard, source },
        }
    }

    /// Adds the time of exchanges to that in which this rank waited.
    pub(super) fn count_exchanges(&self, timer: &mut StepTimer) {
        if let Some(exchange) = &self.exchange {
            timer.times.waited_s += exchange.take_waited_s();
        }
    }

    pub(super) fn context(
        &self,
        (step, shard): (Step, Shard),
        layer: usize,
        mode: Mode,
    ) -> ForwardContext {
        ForwardContext {
            seeds: self.seeds,
            step,
            shard,
            layer: layer as u32,
            mode,
        }
    }

    /// Passes values through layers of the model.
    pub(super) fn forward(
        &mut self,
        layers: Range<usize>,
        (step, shard, mode): (Step, Shard, Mode),
        values: Activation,
    ) -> Result<Activation, EngineError> {
        let mut activation = values;
        for layer in layers {
            let context = self.context((step, shard), layer, mode);
            let shape = activation.shape().to_vec();
            activation = self.pass(layer, "forward", shape, |layer| {
                layer.forward_shard(activation, &context)
            })?;
        }
        Ok(activation)
    }

    /// Runs backward of a layer for one shard.
    pub(super) fn backward(
        &mut self,
        layer: usize,
        shard: Shard,
        output: Activation,
        to: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Result<Option<Activation>, EngineError> {
        let (shape, needs_input) = (output.shape().to_vec(), layer > 0);
        self.pass(layer, "backward", shape, |layer| {
            layer.backward_shard(shard, output, to, ranges, needs_input)
        })
    }

    /// Runs a pass of a layer with values of this shape; `run` returns its result.
    pub(super) fn pass<T>(
        &mut self,
        layer: usize,
        name: &'static str,
        shape: Vec<usize>,
        run: impl FnOnce(&mut dyn Layer) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        guarded(&mut self.chain, layer, name, shape, run)
    }

    /// Passes a batch through layers in evaluation mode, some of its samples at a time.
    pub(super) fn evaluate(
        &mut self,
        layers: Range<usize>,
        shard: Shard,
        values: Activation,
    ) -> Result<Activation, ParallelError> {
        let of = (Step(0), shard, Mode::Evaluate);
        let size = self.evaluation;
        let outputs = size.forward(values, |part| self.forward(layers.clone(), of, part));
        outputs.map_err(|source| self.pass_error(shard, source))
    }

    /// Returns the report of a shard before its loss is computed.
    pub(super) fn report_of(&self, batch: &MicroBatch) -> ShardReport {
        let samples = batch.samples();
        ShardReport {
            samples: samples as u64,
            targets: self.loss.counted_targets(&batch.labels, samples),
            ..ShardReport::empty(batch.shard)
        }
    }

    /// Computes the loss, writes it to the report, and returns its gradient.
    pub(super) fn loss_gradient(
        &self,
        output: Activation,
        (batch, report): (&MicroBatch, &mut ShardReport),
        scale: &LossScale,
    ) -> Result<Activation, ParallelError> {
        let (shape, samples) = (output.shape().to_vec(), batch.samples());
        if let (Some(widths), Some(loss)) = (&self.output_parts, self.loss.in_parts()) {
            let outputs = output.on_host().into_host();
            let loss = loss.loss_of_parts(outputs, widths, &batch.labels, samples, &self.parts);
            let loss = loss.map_err(|source| self.pass_error(batch.shard, source))?;
            return Ok(scaled_gradient(&shape, loss, report, scale));
        }
        let mut output = output.on_host();
        if let Some(values) = output.host_mut() {
            let (loss, labels) = (&self.loss, &batch.labels);
            let found = loss.loss_and_gradient_in_place(values, labels, samples);
            report.loss_sum = found.map_err(|source| self.pass_error(batch.shard, source))?;
            scale.multiply(values);
            return Ok(output);
        }
        let loss = Predictions::new(output.as_slice(), &batch.labels, samples)
            .and_then(|predictions| self.loss.checked(&predictions));
        let loss = loss.map_err(|source| self.pass_error(batch.shard, source))?;
        Ok(scaled_gradient(&shape, loss, report, scale))
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

/// Writes a loss to the report, and returns its gradient, scaled for short formats.
fn scaled_gradient(
    shape: &[usize],
    mut loss: LossOutput,
    report: &mut ShardReport,
    scale: &LossScale,
) -> Activation {
    scale.multiply(&mut loss.gradient);
    report.loss_sum = loss.loss_sum;
    Activation::from_host(shape, loss.gradient)
}
