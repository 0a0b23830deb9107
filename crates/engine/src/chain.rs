//! [`Chain`]: a model as a chain of layers, itself a layer.

use std::collections::BTreeSet;
use std::ops::Range;

use ronde_core::layout::StateLayout;
use ronde_core::{PartTransfers, Shard};

use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::error::EngineError;
use crate::graph::{KeptText, PassEnds};
use crate::layer::{
    BackwardPart, BackwardPass, DiscardedShards, GradientForm, Layer, LayerCost, LayerExt,
    LayerFacts, LayerSetting, SavedValues, ShardPasses, StateChange,
};
use crate::lock_step::{ShardGradient, ShardInput, ShardSums};
use crate::precision::Precision;
use crate::recomputation::Recomputation;
use crate::recomputed::Recomputed;

/// A model, or a contiguous part of one, as layers that run one after the other.
///
/// Tensors keep the names that the layers gave them, and layers keep their numbers in the whole
/// model, wherever it is cut. So cutting never changes a bit.
pub struct Chain {
    layers: Vec<Box<dyn Layer>>,
    first_layer: u32,
    facts: LayerFacts,
    /// The parameter that several layers share, if there is one: these layers cannot be separated.
    shared: Option<&'static str>,
}

impl Chain {
    /// Creates a model of the given layers.
    ///
    /// # Errors
    /// Without a layer, or when two tensors have the same name.
    pub fn new(layers: Vec<Box<dyn Layer>>) -> Result<Self, EngineError> {
        let chain = Self::from_layer(layers, 0);
        let problem = if chain.layers.is_empty() {
            Err("a model needs at least one layer".to_owned())
        } else {
            chain.layout().check().map_err(|error| error.to_string())
        };
        problem.map_err(|problem| EngineError::Model {
            model: "chain".to_owned(),
            problem,
        })?;
        Ok(chain)
    }

    fn from_layer(layers: Vec<Box<dyn Layer>>, first_layer: u32) -> Self {
        Self {
            facts: joined_facts(&layers),
            layers,
            first_layer,
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
        self.facts = joined_facts(&self.layers);
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

    /// Returns whether it is empty, which never happens.
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
        let output = self.forward_shard(input, &ForwardContext::evaluate())?;
        Ok(output.on_host())
    }

    /// Continues texts: computes the outputs for their next tokens, `[texts, tokens]`, as many for each text, from
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
            gradient =
                self.layers[index].backward_shard(shard, output, gradients, ranges, needed)?;
            done(index, gradients);
        }
        Ok(gradient)
    }
}

/// Returns the facts of layers that run one after the other.
fn joined_facts(layers: &[Box<dyn Layer>]) -> LayerFacts {
    use GradientForm::{Dense, Sparse};
    let facts = || layers.iter().map(|layer| layer.facts());
    let tensors = facts().flat_map(|layer| layer.layout.tensors.clone());
    // Each engine once, in alphabetical order.
    let engines: BTreeSet<&str> = facts().map(|layer| layer.engine.as_str()).collect();
    let engines: Vec<&str> = engines.into_iter().collect();
    let (first, last) = (facts().next(), facts().next_back());
    LayerFacts {
        layout: StateLayout {
            tensors: tensors.collect(),
        },
        name: first.map(|first| first.name.clone()).unwrap_or_default(),
        engine: engines.join(", "),
        parts: facts().map(|layer| layer.parts).max().unwrap_or(1),
        input_tokens: first.and_then(|first| first.input_tokens.clone()),
        output_tokens: last.and_then(|last| last.output_tokens.clone()),
        output_parts: last.and_then(|last| last.output_parts.clone()),
        weight_gradients: match facts().all(|layer| layer.weight_gradients == Dense) {
            true => Dense,
            false => Sparse,
        },
        batch_norms: facts()
            .flat_map(|layer| layer.batch_norms.clone())
            .collect(),
        is_suspendable: facts().all(|layer| layer.is_suspendable),
        shard_passes: facts()
            .map(|layer| layer.shard_passes)
            .reduce(ShardPasses::of_both)
            .unwrap_or(ShardPasses::Apart),
        only_f32: facts().find_map(|layer| layer.only_f32.clone()),
    }
}

impl Layer for Chain {
    fn facts(&self) -> &LayerFacts {
        &self.facts
    }

    /// Changes all layers; of the output, the last one.
    fn set(&mut self, setting: LayerSetting<'_>) {
        let skipped = match setting {
            LayerSetting::OutputApart(_) => self.layers.len().saturating_sub(1),
            _ => 0,
        };
        for layer in &mut self.layers[skipped..] {
            layer.set(setting);
        }
        self.facts = joined_facts(&self.layers);
    }

    fn state(&mut self, change: StateChange<'_>) {
        for index in 0..self.layers.len() {
            let tensors = self.tensors_of(index);
            self.layers[index].state(match change {
                StateChange::Load(state, ranges) => StateChange::Load(state, &ranges[tensors]),
                change => change,
            });
        }
    }

    fn save(&self, which: SavedValues, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        let mut layers = self.layers.iter().enumerate();
        layers.all(|(index, layer)| layer.save(which, state, &ranges[self.tensors_of(index)]))
    }

    fn is_initial(&self) -> bool {
        self.layers.iter().all(|layer| layer.is_initial())
    }

    /// Runs each layer with its number in the whole model as `context.layer`.
    fn forward(
        &mut self,
        mut shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        for (number, layer) in (self.first_layer..).zip(&mut self.layers) {
            let contexts: Vec<ForwardContext> = shards.iter().map(|s| s.context).collect();
            for shard in &mut shards {
                shard.context = shard.context.at_layer(number);
            }
            let outputs = layer.forward(shards, sums)?;
            let next = outputs.into_iter().zip(contexts);
            shards = next
                .map(|(input, context)| ShardInput { input, context })
                .collect();
        }
        Ok(shards.into_iter().map(|shard| shard.input).collect())
    }

    fn backward(
        &mut self,
        mut shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let mut of_inputs: Vec<Option<Activation>> = Vec::new();
        for index in (0..self.layers.len()).rev() {
            let given = shards.iter_mut().map(|given| ShardGradient {
                shard: given.shard,
                grad_output: std::mem::replace(&mut given.grad_output, Activation::nothing()),
                gradients: &mut *given.gradients,
                added: std::mem::take(&mut given.added),
            });
            let given: Vec<ShardGradient<'_>> = given.collect();
            let added = given.iter().map(|given| given.added.iter());
            let added = added.map(|added| added.map(|(shard, _)| *shard).collect());
            let added: Vec<Vec<Shard>> = added.collect();
            let ranges = match pass.part {
                BackwardPart::Input => &[][..],
                BackwardPart::Whole | BackwardPart::Weights => &pass.ranges[self.tensors_of(index)],
            };
            let of_layer = BackwardPass {
                ranges,
                needs_input_gradient: index > 0 || pass.needs_input_gradient,
                ..pass
            };
            of_inputs = self.layers[index].backward(given, of_layer, sums)?;
            if index > 0 {
                let mut next = of_inputs
                    .drain(..)
                    .map(|of_input| of_input.unwrap_or_else(Activation::nothing));
                for (given, added) in shards.iter_mut().zip(added) {
                    given.grad_output = next.next().unwrap_or_else(Activation::nothing);
                    given.added = added.into_iter().zip(&mut next).collect();
                }
            }
        }
        Ok(of_inputs)
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

    fn discard(&mut self, which: DiscardedShards) {
        for layer in &mut self.layers {
            layer.discard(which);
        }
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
}

#[cfg(test)]
mod tests;
