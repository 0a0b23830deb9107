//! [`Layer`]: the seam between a model and every way to train it.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::Shard;
use ronde_core::layout::StateLayout;

use crate::{Activation, EngineError, ForwardContext, LockStep};

/// What a layer makes of one shard, for planning memory and traffic.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LayerCost {
    /// Shape of the output, samples first.
    pub output_shape: Vec<usize>,
    /// Floats kept from forward until backward; an estimate.
    pub kept_floats: usize,
}

/// A part of a model that can be run forward and backward on its own.
///
/// State lives outside, in flat arenas: `ranges[i]` is where tensor `i` of [`Layer::layout`] lies.
/// Ranges must have the lengths of the layout; other lengths are a bug of the caller and panic.
pub trait Layer: Send {
    /// Parameters and buffers by stable names, in an order that every process derives alike.
    fn layout(&self) -> &StateLayout;

    /// Sets parameters and buffers to the given values: the committed state. Shards in flight keep
    /// the values of their own forward. Cost: one copy of the state.
    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]);

    /// The same, and the layer may read the values where they lie: until [`Layer::release_state`] it then holds
    /// them, so who changes the state asks for that first, or changes a copy. Cost: as [`Layer::load`], or
    /// none.
    fn load_shared(&mut self, state: &Arc<Vec<f32>>, ranges: &[Range<usize>]) {
        self.load(state, ranges);
    }

    /// Before the state changes: a layer that holds it holds no values any more. Values are loaded before
    /// anything else is asked of it; shards in flight keep theirs.
    fn release_state(&mut self) {}

    /// Writes parameters and committed buffers. Cost: one copy of the state.
    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]);

    /// Computes the output of one shard.
    ///
    /// In training, what backward needs is kept under the shard's number; several shards may be in
    /// flight, and another forward of the same shard replaces the first. Every forward starts from
    /// the committed buffers. A shard may have no samples.
    ///
    /// # Errors
    /// When the input does not fit.
    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError>;

    /// Ends a shard: turns the gradient of its output into that of its parameters and its input.
    ///
    /// Writes the range of every tensor: a parameter's gradient (zeros if it was not used), a sum
    /// over samples when `grad_output` is one; for a buffer the value after this shard's forward.
    ///
    /// # Errors
    /// When the shard is not in flight, the gradient does not fit, or the layer was built without
    /// an input gradient and it is asked for.
    fn backward(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError>;

    /// Output shape and memory for one shard of the given input shape, samples first.
    fn cost(&self, input_shape: &[usize]) -> LayerCost;

    /// Forgets the shards in flight, as after a step that was given up.
    fn discard(&mut self) {}

    /// The same layer for who runs all shards of a rank together; `None` where a shard needs nothing of
    /// the others.
    fn in_lock_step(&mut self) -> Option<&mut dyn LockStep> {
        None
    }
}
