//! [`ShardSums`]: sums over all shards of the global batch in the middle of a pass.
//!
//! A layer that needs them runs all shards of a rank together: it computes each shard up to the values that
//! must be summed, sums these over all shards and ranks, and then continues with each shard.
//!
//! Batch normalisation over the global batch and the centres of clusters need it. The price is memory for the activations of all
//! shards of a rank, and two waits for all ranks per normalisation. The engine still knows no ranks.

use ronde_core::Shard;

use crate::activation::Activation;
use crate::context::ForwardContext;

/// A sum over shards that failed; the implementation of [`ShardSums`] has the cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotSummed;

/// Sums over all logical shards of the global batch, on whichever ranks they are.
pub trait ShardSums {
    /// Returns the sum, element by element, over all shards of all ranks, in an order that depends
    /// only on the shards' numbers. `parts` has `len` values of each shard of this rank, in the
    /// order of the shards. All ranks request the same sums in the same order.
    ///
    /// # Errors
    /// [`NotSummed`]: the pass cannot continue.
    fn sum(&mut self, len: usize, parts: Vec<(Shard, Vec<f64>)>) -> Result<Vec<f64>, NotSummed>;
}

/// The input of one shard in a forward pass.
#[derive(Debug)]
pub struct ShardInput {
    /// The input.
    pub input: Activation,
    /// The shard and the step.
    pub context: ForwardContext,
}

/// The input of one shard in a backward pass.
#[derive(Debug)]
pub struct ShardGradient<'a> {
    /// The shard.
    pub shard: Shard,
    /// The gradient of its output.
    pub grad_output: Activation,
    /// The buffer for the gradients of its parameters.
    pub gradients: &'a mut [f32],
    /// Further shards, and the gradients of their outputs: the gradients of parameters are the sum over all of them in the order of
    /// [`ronde_core::exact`], of which they are one complete subtree. Only for a layer that
    /// [joins shards](crate::LayerFacts::joins_shards).
    pub added: Vec<(Shard, Activation)>,
}

/// Sums over the shards of a single rank, in their order.
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
