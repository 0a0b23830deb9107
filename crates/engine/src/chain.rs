//! [`Chain`]: a model as a chain of stages, itself a stage.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::Shard;
use ronde_core::layout::StateLayout;

use crate::{
    Activation, EngineError, ForwardContext, LockStep, Precision, Recomputed, Rounded,
    ShardGradient, ShardInput, ShardSums, Stage, StageCost,
};

/// A model, or a contiguous part of one, as stages that run one after the other.
///
/// Tensors keep the names that the stages gave them, and stages the numbers that they have in the
/// whole model, wherever it is cut: so cutting never changes a bit.
pub struct Chain {
    stages: Vec<Box<dyn Stage>>,
    first_stage: u32,
    layout: StateLayout,
    /// The parameter that several stages use, if there is one: they stay together.
    shared: Option<&'static str>,
}

impl Chain {
    /// A model of the given stages.
    ///
    /// # Errors
    /// When there is no stage, or two tensors have one name.
    pub fn new(stages: Vec<Box<dyn Stage>>) -> Result<Self, EngineError> {
        let chain = Self::from_stage(stages, 0);
        let problem = if chain.stages.is_empty() {
            Err("there is no stage".to_owned())
        } else {
            chain.layout.check()
        };
        problem.map_err(|problem| EngineError::Model {
            model: "chain".to_owned(),
            problem,
        })?;
        Ok(chain)
    }

    fn from_stage(stages: Vec<Box<dyn Stage>>, first_stage: u32) -> Self {
        let tensors = stages
            .iter()
            .flat_map(|stage| stage.layout().tensors.clone());
        let layout = StateLayout {
            tensors: tensors.collect(),
        };
        Self {
            stages,
            first_stage,
            layout,
            shared: None,
        }
    }

    /// From now on it cannot be cut: the first and the last stage use the same parameter.
    pub(crate) fn keep_together(&mut self, parameter: &'static str) {
        self.shared = Some(parameter);
    }

    /// Cuts the chain before each of the given stages, counted from its own first one.
    ///
    /// # Errors
    /// When the cuts are not increasing and inside the chain, or its ends share a parameter.
    pub fn cut(mut self, before: &[usize]) -> Result<Vec<Self>, EngineError> {
        if let Some(parameter) = self.shared.filter(|_| !before.is_empty()) {
            let problem = format!(
                "the first and the last stage share `{parameter}`: a model with a tied output layer cannot be cut before {before:?}"
            );
            return Err(EngineError::Model {
                model: "chain".to_owned(),
                problem,
            });
        }
        let increasing = before.windows(2).all(|pair| pair[0] < pair[1]);
        let inside = before.iter().all(|&at| 0 < at && at < self.stages.len());
        if !(increasing && inside) {
            let stages = self.stages.len();
            return Err(EngineError::Model {
                model: "chain".to_owned(),
                problem: format!("{stages} stages cannot be cut before {before:?}"),
            });
        }
        let mut parts = Vec::new();
        for &at in before.iter().rev() {
            let rest = self.stages.split_off(at);
            parts.push(Self::from_stage(rest, self.first_stage + at as u32));
        }
        parts.push(Self::from_stage(self.stages, self.first_stage));
        parts.reverse();
        Ok(parts)
    }

    /// Wraps each stage, given its index; the wrapped one has the same tensors.
    #[must_use]
    pub fn wrapped(
        mut self,
        mut wrap: impl FnMut(usize, Box<dyn Stage>) -> Box<dyn Stage>,
    ) -> Self {
        let stages = self.stages.into_iter().enumerate();
        self.stages = stages.map(|(index, stage)| wrap(index, stage)).collect();
        self
    }

    /// Computes what backward needs again, stage by stage, in place of keeping it: see
    /// [`Recomputed`]. Not the last stage's: its backward comes at once.
    #[must_use]
    pub fn with_recomputation(self) -> Self {
        let last = self.stages.len() - 1;
        self.wrapped(|index, stage| {
            if index < last {
                Box::new(Recomputed::new(stage))
            } else {
                stage
            }
        })
    }

    /// Rounds weights and activations between stages to a format: see [`Rounded`].
    #[must_use]
    pub fn with_precision(self, precision: Precision) -> Self {
        if precision == Precision::F32 {
            return self;
        }
        self.wrapped(|_, stage| Box::new(Rounded::new(stage, precision)))
    }

    /// Count of stages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stages.len()
    }

    /// Whether there is no stage; never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stages.is_empty()
    }

    /// Number, in the whole model, of the first stage.
    #[must_use]
    pub fn first_stage(&self) -> u32 {
        self.first_stage
    }

    /// The stages in order.
    #[must_use]
    pub fn stages(&self) -> &[Box<dyn Stage>] {
        &self.stages
    }

    /// The stages in order. Whoever runs one alone sets
    /// [`ForwardContext::stage`] to [`Chain::first_stage`] plus its index.
    pub fn stages_mut(&mut self) -> &mut [Box<dyn Stage>] {
        &mut self.stages
    }

    /// Where in the layout the tensors of stage `index` are.
    #[must_use]
    pub fn tensors_of(&self, index: usize) -> Range<usize> {
        let counts = self.stages.iter().map(|stage| stage.layout().tensors.len());
        let start = counts.take(index).sum();
        start..start + self.stages[index].layout().tensors.len()
    }

    /// The output in evaluation: running statistics, no dropout, nothing kept.
    ///
    /// # Errors
    /// When the input does not fit.
    pub fn evaluate(&mut self, input: Activation) -> Result<Activation, EngineError> {
        self.forward(input, &ForwardContext::evaluate())
    }

    /// Backward, telling after each stage, last first, that its gradients are complete: `done`
    /// gets the stage's index and the arena. With it a stage's gradients can be reduced while
    /// the stages before it still compute.
    ///
    /// # Errors
    /// As [`Stage::backward`].
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
        for index in (0..self.stages.len()).rev() {
            let Some(output) = gradient.take() else {
                break;
            };
            let ranges = &ranges[self.tensors_of(index)];
            let needed = index > 0 || needs_input_gradient;
            gradient = self.stages[index].backward(shard, output, gradients, ranges, needed)?;
            done(index, gradients);
        }
        Ok(gradient)
    }
}

impl Stage for Chain {
    fn layout(&self) -> &StateLayout {
        &self.layout
    }

    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        for index in 0..self.stages.len() {
            let tensors = self.tensors_of(index);
            self.stages[index].load(state, &ranges[tensors]);
        }
    }

    fn load_shared(&mut self, state: &Arc<Vec<f32>>, ranges: &[Range<usize>]) {
        for index in 0..self.stages.len() {
            let tensors = self.tensors_of(index);
            self.stages[index].load_shared(state, &ranges[tensors]);
        }
    }

    fn let_go(&mut self) {
        self.stages.iter_mut().for_each(|stage| stage.let_go());
    }

    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        for (index, stage) in self.stages.iter().enumerate() {
            stage.save(state, &ranges[self.tensors_of(index)]);
        }
    }

    /// As of any stage; each stage gets its number in the whole model as `context.stage`.
    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        let numbered = (self.first_stage..).zip(&mut self.stages);
        numbered
            .into_iter()
            .try_fold(input, |value, (number, stage)| {
                stage.forward(value, &context.at_stage(number))
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

    fn cost(&self, input_shape: &[usize]) -> StageCost {
        let mut total = StageCost {
            output_shape: input_shape.to_vec(),
            kept_floats: 0,
        };
        for stage in &self.stages {
            let cost = stage.cost(&total.output_shape);
            total = StageCost {
                output_shape: cost.output_shape,
                kept_floats: total.kept_floats + cost.kept_floats,
            };
        }
        total
    }

    fn discard(&mut self) {
        for stage in &mut self.stages {
            stage.discard();
        }
    }

    fn in_lock_step(&mut self) -> Option<&mut dyn LockStep> {
        let mut stages = self.stages.iter_mut();
        stages.find_map(|stage| stage.in_lock_step().map(drop))?;
        Some(self)
    }
}

impl LockStep for Chain {
    fn forward_shards(
        &mut self,
        mut shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        for (number, stage) in (self.first_stage..).zip(&mut self.stages) {
            let contexts: Vec<ForwardContext> = shards.iter().map(|s| s.context).collect();
            for shard in &mut shards {
                shard.context = shard.context.at_stage(number);
            }
            let outputs = stage.forward_shards(shards, sums)?;
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
        for index in (0..self.stages.len()).rev() {
            let given = shards.iter_mut().map(|given| ShardGradient {
                shard: given.shard,
                grad_output: std::mem::replace(&mut given.grad_output, Activation::nothing()),
                gradients: &mut *given.gradients,
            });
            let given = given.collect();
            let tensors = self.tensors_of(index);
            let needed = index > 0 || needs_input_gradient;
            let stage = &mut self.stages[index];
            of_inputs = stage.backward_shards(given, &ranges[tensors], needed, sums)?;
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
