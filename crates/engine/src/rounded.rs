//! [`Rounded`]: a layer whose weights and activations are rounded to a shorter floating-point
//! format.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use ronde_core::Shard;
use ronde_core::layout::{Role, StateLayout};
use serde::{Deserialize, Serialize};

use crate::{
    Activation, Device, EngineError, ForwardContext, Layer, LayerCost, LockStep, ShardGradient,
    ShardInput, ShardSums,
};

/// A floating-point format of weights and activations. Master weights are always `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 24 bits of precision: nothing is rounded.
    #[default]
    F32,
    /// 8 bits of precision, the range of `f32`.
    Bf16,
    /// 11 bits of precision, 6e-8 to 65,504: gradients need a loss scale.
    F16,
}

impl Precision {
    /// Rounds to the nearest value of the format, ties to even. Values beyond its range become
    /// infinite.
    pub fn round(self, values: &mut [f32]) {
        match self {
            Self::F32 => {}
            Self::Bf16 => {
                for value in values {
                    *value = bf16::from_f32(*value).to_f32();
                }
            }
            Self::F16 => {
                for value in values {
                    *value = f16::from_f32(*value).to_f32();
                }
            }
        }
    }

    fn rounded(self, activation: Activation) -> Activation {
        if self == Self::F32 {
            return activation;
        }
        let shape = activation.shape().to_vec();
        let mut values = activation.into_host();
        self.round(&mut values);
        Activation::from_host(&shape, values)
    }
}

/// Mixed precision: weights, inputs and output gradients are rounded to a format before the inner
/// layer gets them, and its outputs and gradients are rounded. The inner layer computes in `f32`,
/// as accelerators accumulate; no CPU kernel here is faster for the short formats.
///
/// Tensors of fewer than two dimensions (biases, normalisations) and buffers stay `f32`.
/// [`Layer::save`] writes the rounded weights: the caller keeps the master weights.
pub struct Rounded {
    inner: Box<dyn Layer>,
    precision: Precision,
}

impl Rounded {
    /// Wraps a layer.
    #[must_use]
    pub fn new(inner: Box<dyn Layer>, precision: Precision) -> Self {
        Self { inner, precision }
    }

    /// Rounds the matrices among the tensors at `ranges`.
    fn round_matrices(&self, values: &mut [f32], ranges: &[Range<usize>]) {
        for (tensor, range) in self.inner.layout().tensors.iter().zip(ranges) {
            if tensor.role == Role::Parameter && tensor.shape.len() >= 2 {
                self.precision.round(&mut values[range.clone()]);
            }
        }
    }
}

impl Layer for Rounded {
    fn layout(&self) -> &StateLayout {
        self.inner.layout()
    }

    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        let start = ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let end = ranges.iter().map(|range| range.end).max().unwrap_or(0);
        let mut part = state[start..end].to_vec();
        let ranges: Vec<Range<usize>> = ranges
            .iter()
            .map(|range| range.start - start..range.end - start)
            .collect();
        self.round_matrices(&mut part, &ranges);
        self.inner.load(&part, &ranges);
    }

    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        self.inner.save(state, ranges);
    }

    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        let output = self.inner.forward(self.precision.rounded(input), context)?;
        Ok(self.precision.rounded(output))
    }

    fn backward(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        let given = self.precision.rounded(grad_output);
        let input = self
            .inner
            .backward(shard, given, gradients, ranges, needs_input_gradient)?;
        self.round_matrices(gradients, ranges);
        Ok(input.map(|input| self.precision.rounded(input)))
    }

    fn backward_input(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        let given = self.precision.rounded(grad_output);
        let input = self
            .inner
            .backward_input(shard, given, needs_input_gradient)?;
        Ok(input.map(|input| self.precision.rounded(input)))
    }

    fn backward_weights(
        &mut self,
        shard: Shard,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError> {
        self.inner.backward_weights(shard, gradients, ranges)?;
        self.round_matrices(gradients, ranges);
        Ok(())
    }

    fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.inner.set_device(device);
    }

    fn engine(&self) -> String {
        self.inner.engine()
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        self.inner.cost(input_shape)
    }

    fn discard(&mut self) {
        self.inner.discard();
    }

    fn in_lock_step(&mut self) -> Option<&mut dyn LockStep> {
        self.inner.in_lock_step()?;
        Some(self)
    }
}

impl LockStep for Rounded {
    fn forward_shards(
        &mut self,
        mut shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        for shard in &mut shards {
            let input = std::mem::replace(&mut shard.input, Activation::nothing());
            shard.input = self.precision.rounded(input);
        }
        let outputs = self.inner.forward_shards(shards, sums)?.into_iter();
        Ok(outputs
            .map(|output| self.precision.rounded(output))
            .collect())
    }

    fn backward_shards(
        &mut self,
        mut shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let borrowed = shards.iter_mut().map(|given| {
            let output = std::mem::replace(&mut given.grad_output, Activation::nothing());
            ShardGradient {
                shard: given.shard,
                grad_output: self.precision.rounded(output),
                gradients: &mut *given.gradients,
            }
        });
        let borrowed = borrowed.collect();
        let inputs = self
            .inner
            .backward_shards(borrowed, ranges, needs_input_gradient, sums)?;
        for given in shards {
            self.round_matrices(given.gradients, ranges);
        }
        let rounded = |input: Option<Activation>| input.map(|input| self.precision.rounded(input));
        Ok(inputs.into_iter().map(rounded).collect())
    }
}
