//! [`LockStep`]: layers that need values of all shards of the global batch in the middle of a pass.
//!
//! Such a layer runs the shards of a rank together: each as far as the values that are wanted of all, then
//! the sum of those, then each further. Who holds a shard, and how the sum comes about, is the business of
//! the [`ShardSums`] that it is handed.

use std::ops::Range;

use ronde_core::Shard;

use crate::{Activation, EngineError, ForwardContext, Layer};

/// A sum over shards that did not come about; who summed holds the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSummed;

/// Adds values up over all logical shards of the global batch, whoever holds them.
pub trait ShardSums {
    /// The sum, element by element, over all shards of all ranks, in an order that depends on the shards'
    /// numbers alone. `parts` has `len` values of each shard that this rank holds, in the order of the
    /// shards. All ranks ask for the same sums in the same order.
    ///
    /// # Errors
    /// [`NotSummed`]: the pass cannot go on.
    fn sum(&mut self, len: usize, parts: Vec<(Shard, Vec<f64>)>) -> Result<Vec<f64>, NotSummed>;
}

/// A shard on its way forward.
#[derive(Debug)]
pub struct ShardInput {
    /// What goes in.
    pub input: Activation,
    /// Which shard of which step.
    pub context: ForwardContext,
}

/// A shard on its way back.
#[derive(Debug)]
pub struct ShardGradient<'a> {
    /// Which one.
    pub shard: Shard,
    /// Gradient of its output.
    pub grad_output: Activation,
    /// Where the gradients of its parameters go.
    pub gradients: &'a mut [f32],
}

/// A layer that runs all shards of a rank together. A rank that holds none calls it all the same, with no
/// shard: the sums need every rank.
pub trait LockStep {
    /// [`Layer::forward`] of all shards of this rank, in their order: their outputs.
    ///
    /// # Errors
    /// As [`Layer::forward`], and [`EngineError::NotSummed`].
    fn forward_shards(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError>;

    /// [`Layer::backward`] of all shards of this rank, in their order: the gradients of their inputs.
    ///
    /// # Errors
    /// As [`Layer::backward`], and [`EngineError::NotSummed`].
    fn backward_shards(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError>;
}

/// Any layer for all shards of a rank: in lock step where it asks for it, else one after the other.
impl LockStep for dyn Layer + '_ {
    fn forward_shards(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        if let Some(layer) = self.in_lock_step() {
            return layer.forward_shards(shards, sums);
        }
        shards
            .into_iter()
            .map(|shard| self.forward(shard.input, &shard.context))
            .collect()
    }

    fn backward_shards(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        if let Some(layer) = self.in_lock_step() {
            return layer.backward_shards(shards, ranges, needs_input_gradient, sums);
        }
        let back = |ShardGradient {
                        shard,
                        grad_output,
                        gradients,
                    }| {
            self.backward(shard, grad_output, gradients, ranges, needs_input_gradient)
        };
        shards.into_iter().map(back).collect()
    }
}

/// The shards at hand are the whole batch: added in their order.
pub(crate) struct SingleRankSums;

impl ShardSums for SingleRankSums {
    fn sum(&mut self, len: usize, parts: Vec<(Shard, Vec<f64>)>) -> Result<Vec<f64>, NotSummed> {
        let mut total = vec![0.0; len];
        for (_, part) in parts {
            for (total, value) in total.iter_mut().zip(part) {
                *total += value;
            }
        }
        Ok(total)
    }
}
