//! [`Chain`]: a model as a chain of layers, itself a layer.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::StateLayout;
use ronde_core::{PartTransfers, Shard};

use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::Device;
use crate::error::EngineError;
use crate::graph::{BatchNormValues, KeptText, PartPlace, PassEnds};
use crate::layer::{Layer, LayerCost};
use crate::lock_step::{LockStep, ShardGradient, ShardInput, ShardSums};
use crate::precision::Precision;
use crate::recomputation::Recomputation;
use crate::recomputed::Recomputed;
use crate::shared_state::SharedState;

/// A model, or a contiguous part of one, as layers that run one after the other.
///
/// Tensors keep the names that the layers gave them, and layers keep their numbers in the whole
/// model, wherever it is cut. So cutting never changes a bit.
pub struct Chain {
    layers: Vec<Box<dyn Layer>>,
    first_layer: u32,
    layout: StateLayout,
    /// The parameter that several layers share, if there is one: these layers cannot be separated.
    shared: Option<&'static str>,
}

impl Chain {
    /// Creates a model of the given layers.
    ///
    /// # Errors
    /// When there is no layer, or two tensors have the same name.
    pub fn new(layers: Vec<Box<dyn Layer>>) -> Result<Self, EngineError> {
        let chain = Self::from_layer(layers, 0);
        let problem = if chain.layers.is_empty() {
            Err("a model needs at least one layer".to_owned())
        } else {
            chain.layout.check()
        };
        problem.map_err(|problem| EngineError::Model {
            model: "chain".to_owned(),
            problem,
        })?;
        Ok(chain)
    }

    fn from_layer(layers: Vec<Box<dyn Layer>>, first_layer: u32) -> Self {
        let tensors = layers
            .iter()
            .flat_map(|layer| layer.layout().tensors.clone());
        let layout = StateLayout {
            tensors: tensors.collect(),
        };
        Self {
            layers,
            first_layer,
            layout,
            shared: None,
        }
    }

    /// Declares that the first and the last layer use the same parameter: the chain cannot be cut.
    #[must_use]
    pub fn tied(mut self, parameter: &'static str) -> Self {
        self.shared = Some(parameter);
        self
    }

    /// Returns the parameter that the first and the last layer share, if there is one.
    #[must_use]
    pub fn shared_parameter(&self) -> Option<&'static str> {
        self.shared
    }

    /// Cuts the chain before each of the given layers, counted from its own first one.
    ///
    /// # Errors
    /// When the cuts are not increasing and inside the chain, or its ends share a parameter.
    pub fn cut(mut self, before: &[usize]) -> Result<Vec<Self>, EngineError> {
        if let Some(parameter) = self.shared.filter(|_| !before.is_empty()) {
            let problem = format!(
                "cannot cut the model before layers {before:?}: the first and the last layer share `{parameter}`"
            );
            return Err(EngineError::Model {
                model: "chain".to_owned(),
                problem,
            });
        }
        let increasing = before.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = before.iter().all(|&at| 0 < at && at < self.layers.len());
        if !(increasing && inside) {
            let layers = self.layers.len();
            return Err(EngineError::Model {
                model: "chain".to_owned(),
                problem: format!("cannot cut a chain of {layers} layers before layers {before:?}"),
            });
        }
        let mut parts = Vec::new();
        for &at in before.iter().rev() {
            let rest = self.layers.split_off(at);
            parts.push(Self::from_layer(rest, self.first_layer + at as u32));
        }
        parts.push(Self::from_layer(self.layers, self.first_layer));
        parts.reverse();
        Ok(parts)
    }

    /// Wraps each layer, given its index; the wrapped layer has the same tensors.
    #[must_use]
    pub fn wrapped(
        mut self,
        mut wrap: impl FnMut(usize, Box<dyn Layer>) -> Box<dyn Layer>,
    ) -> Self {
        let layers = self.layers.into_iter().enumerate();
        self.layers = layers.map(|(index, layer)| wrap(index, layer)).collect();
        self
    }

    /// Recomputes the values that the backward pass of some layers needs instead of keeping them: see [`Recomputed`].
    ///
    /// # Errors
    /// A name that no layer has.
    pub fn recomputing(self, recomputation: &Recomputation) -> Result<Self, EngineError> {
        let names: Vec<&str> = self.layers.iter().map(|layer| layer.name()).collect();
        let chosen = recomputation.chosen(&names)?;
        Ok(self.wrapped(|index, layer| match chosen[index] {
            true => Box::new(Recomputed::new(layer)),
            false => layer,
        }))
    }

    /// Rounds values and keeps them in a format: see [`Precision`].
    ///
    /// # Errors
    /// When a layer has only f32.
    pub fn with_precision(mut self, precision: Precision) -> Result<Self, EngineError> {
        self.set_precision(precision)?;
        Ok(self)
    }

    /// Returns the number of layers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Returns whether there are no layers, which never happens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Returns the number of the first layer in the whole model.
    #[must_use]
    pub fn first_layer(&self) -> u32 {
        self.first_layer
    }

    /// Returns the layers in order.
    #[must_use]
    pub fn layers(&self) -> &[Box<dyn Layer>] {
        &self.layers
    }

    /// Returns the layers in order. A caller that runs one of them directly sets
    /// [`ForwardContext::layer`] to [`Chain::first_layer`] plus its index.
    pub fn layers_mut(&mut self) -> &mut [Box<dyn Layer>] {
        &mut self.layers
    }

    /// Returns the range of the tensors of layer `index` in the layout.
    #[must_use]
    pub fn tensors_of(&self, index: usize) -> Range<usize> {
        let counts = self.layers.iter().map(|layer| layer.layout().tensors.len());
        let start = counts.take(index).sum();
        start..start + self.layers[index].layout().tensors.len()
    }

    /// Returns the output in evaluation mode: running statistics, no dropout, nothing kept.
    ///
    /// # Errors
    /// When the input does not fit.
    pub fn evaluate(&mut self, input: Activation) -> Result<Activation, EngineError> {
        let output = self.forward(input, &ForwardContext::evaluate())?;
        Ok(output.on_host())
    }

    /// Continues texts: computes the outputs for their next tokens, `[texts, tokens]`, of which each text has as many, from
    /// the kept values of the earlier ones. The result `[texts, tokens, ..]` has the bits that [`Chain::evaluate`] of the
    /// whole texts has there, if the model has at most 256 positions; otherwise attention adds in another order. Cost: that
    /// of the new tokens alone.
    ///
    /// After an error, the texts cannot be continued.
    ///
    /// # Errors
    /// When a text gets too long, or an output of the model depends on later tokens.
    pub fn extend_texts(
        &mut self,
        tokens: Activation,
        texts: &mut [&mut KeptText],
    ) -> Result<Activation, EngineError> {
        let more = tokens.shape().get(1).copied().unwrap_or(0);
        let first = self.first_layer;
        let output = self.extend(tokens, texts, first)?;
        texts.iter_mut().for_each(|text| text.add(more));
        Ok(output.on_host())
    }

    /// Runs backward and reports after each layer, last first, that its gradients are complete:
    /// `done` gets the layer's index and the arena. A layer's gradients can thus be reduced while
    /// the layers before it still compute.
    ///
    /// # Errors
    /// As [`Layer::backward`].
    pub fn backward_each(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
        mut done: impl FnMut(usize, &[f32]),
    ) -> Result<Option<Activation>, EngineError> {
        let mut gradient = Some(grad_output);
        for index in (0..self.layers.len()).rev() {
            let Some(output) = gradient.take() else {
                break;
            };
            let ranges = &ranges[self.tensors_of(index)];
            let needed = index > 0 || needs_input_gradient;
            gradient = self.layers[index].backward(shard, output, gradients, ranges, needed)?;
            done(index, gradients);
        }
        Ok(gradient)
    }
}

impl Layer for Chain {
    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        for index in 0..self.layers.len() {
            let tensors = self.tensors_of(index);
            self.layers[index].load(state, &ranges[tensors]);
        }
    }

    fn load_shared(&mut self, state: &SharedState, ranges: &[Range<usize>]) {
        for index in 0..self.layers.len() {
            let tensors = self.tensors_of(index);
            self.layers[index].load_shared(state, &ranges[tensors]);
        }
    }

    fn release_state(&mut self) {
        self.layers
            .iter_mut()
            .for_each(|layer| layer.release_state());
    }

    fn is_suspendable(&self) -> bool {
        self.layers.iter().all(|layer| layer.is_suspendable())
    }

    fn suspend_state(&mut self) {
        self.layers
            .iter_mut()
            .for_each(|layer| layer.suspend_state());
    }

    /// Returns the number of parts of its layers that are divided.
    fn parts(&self) -> u32 {
        let each = self.layers.iter().map(|layer| layer.parts());
        each.max().unwrap_or(1)
    }

    fn set_parts(&mut self, place: &PartPlace) {
        let layers = self.layers.iter_mut();
        layers.for_each(|layer| layer.set_parts(place));
    }

    /// Returns the exchanges of all layers, those of the backward pass in its order.
    fn part_transfers(&self, input_shape: &[usize], ends: PassEnds) -> PartTransfers {
        let mut shape = input_shape.to_vec();
        let last = self.layers.len().saturating_sub(1);
        let mut found = PartTransfers::default();
        for (index, layer) in self.layers.iter().enumerate() {
            let ends = PassEnds {
                needs_input_gradient: index > 0 || ends.needs_input_gradient,
                has_output_apart: index == last && ends.has_output_apart,
            };
            let of_layer = layer.part_transfers(&shape, ends);
            found.forward.extend(of_layer.forward);
            found.backward.splice(0..0, of_layer.backward);
            found.weights.splice(0..0, of_layer.weights);
            shape = layer.cost(&shape).output_shape;
        }
        found
    }

    fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.layers
            .iter_mut()
            .for_each(|layer| layer.set_device(device));
    }

    fn set_precision(&mut self, precision: Precision) -> Result<(), EngineError> {
        let mut layers = self.layers.iter_mut();
        layers.try_for_each(|layer| layer.set_precision(precision))
    }

    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        for (index, layer) in self.layers.iter().enumerate() {
            layer.save(state, &ranges[self.tensors_of(index)]);
        }
    }

    /// Runs each layer with its number in the whole model as `context.layer`.
    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        let numbered = (self.first_layer..).zip(&mut self.layers);
        numbered
            .into_iter()
            .try_fold(input, |value, (number, layer)| {
                layer.forward(value, &context.at_layer(number))
            })
    }

    fn extend(
        &mut self,
        input: Activation,
        texts: &mut [&mut KeptText],
        layer: u32,
    ) -> Result<Activation, EngineError> {
        let mut numbered = (layer..).zip(&mut self.layers);
        numbered.try_fold(input, |value, (number, layer)| {
            layer.extend(value, texts, number)
        })
    }

    fn backward(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        self.backward_each(
            shard,
            grad_output,
            gradients,
            ranges,
            needs_input_gradient,
            |_, _| {},
        )
    }

    fn backward_input(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        let mut gradient = Some(grad_output);
        for (index, layer) in self.layers.iter_mut().enumerate().rev() {
            let Some(output) = gradient.take() else {
                break;
            };
            gradient = layer.backward_input(shard, output, index > 0 || needs_input_gradient)?;
        }
        Ok(gradient)
    }

    fn backward_weights(
        &mut self,
        shard: Shard,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError> {
        for index in (0..self.layers.len()).rev() {
            let ranges = &ranges[self.tensors_of(index)];
            self.layers[index].backward_weights(shard, gradients, ranges)?;
        }
        Ok(())
    }

    /// Names the engines of all layers, each once and in alphabetical order.
    fn engine(&self) -> String {
        let engines: BTreeSet<String> = self.layers.iter().map(|layer| layer.engine()).collect();
        engines.into_iter().collect::<Vec<_>>().join(", ")
    }

    fn has_tables(&self) -> bool {
        self.layers.iter().any(|layer| layer.has_tables())
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        let mut total = LayerCost {
            output_shape: input_shape.to_vec(),
            kept_floats: 0,
        };
        for layer in &self.layers {
            let cost = layer.cost(&total.output_shape);
            total = LayerCost {
                output_shape: cost.output_shape,
                kept_floats: total.kept_floats + cost.kept_floats,
            };
        }
        total
    }

    fn discard(&mut self) {
        for layer in &mut self.layers {
            layer.discard();
        }
    }

    fn discard_shard(&mut self, shard: Shard) {
        for layer in &mut self.layers {
            layer.discard_shard(shard);
        }
    }

    fn batch_norms(&self) -> Vec<BatchNormValues> {
        let layers = self.layers.iter();
        layers.flat_map(|layer| layer.batch_norms()).collect()
    }

    fn in_lock_step(&mut self) -> Option<&mut dyn LockStep> {
        let mut layers = self.layers.iter_mut();
        layers.find_map(|layer| layer.in_lock_step().map(drop))?;
        Some(self)
    }
}

impl LockStep for Chain {
    fn forward_shards(
        &mut self,
        mut shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        for (number, layer) in (self.first_layer..).zip(&mut self.layers) {
            let contexts: Vec<ForwardContext> = shards.iter().map(|s| s.context).collect();
            for shard in &mut shards {
                shard.context = shard.context.at_layer(number);
            }
            let outputs = layer.forward_shards(shards, sums)?;
            let next = outputs.into_iter().zip(contexts);
            shards = next
                .map(|(input, context)| ShardInput { input, context })
                .collect();
        }
        Ok(shards.into_iter().map(|shard| shard.input).collect())
    }

    fn backward_shards(
        &mut self,
        mut shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let mut of_inputs: Vec<Option<Activation>> = Vec::new();
        for index in (0..self.layers.len()).rev() {
            let given = shards.iter_mut().map(|given| ShardGradient {
                shard: given.shard,
                grad_output: std::mem::replace(&mut given.grad_output, Activation::nothing()),
                gradients: &mut *given.gradients,
            });
            let given = given.collect();
            let tensors = self.tensors_of(index);
            let needed = index > 0 || needs_input_gradient;
            let layer = &mut self.layers[index];
            of_inputs = layer.backward_shards(given, &ranges[tensors], needed, sums)?;
            if index > 0 {
                for (given, of_input) in shards.iter_mut().zip(of_inputs.drain(..)) {
                    given.grad_output = of_input.unwrap_or_else(Activation::nothing);
                }
            }
        }
        Ok(of_inputs)
    }
}

#[cfg(test)]
mod tests;
