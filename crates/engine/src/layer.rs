//! [`Layer`]: the interface between a model and every training strategy.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::StateLayout;
use ronde_core::{PartTransfers, Shard};

use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::Device;
use crate::error::EngineError;
use crate::graph::{BatchNormValues, KeptText, PartPlace, PassEnds, TokenShares};
use crate::lock_step::{LockStep, ShardGradient, ShardInput, ShardSums};
use crate::precision::Precision;
use crate::shared_state::SharedState;

/// The output and memory of a layer for one shard, for planning.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LayerCost {
    /// The shape of the output, samples first.
    pub output_shape: Vec<usize>,
    /// The memory kept from forward until backward, in floats of 4 bytes. Two values of a short format count as one.
    pub kept_floats: usize,
}

/// An element of a model's chain, which runs forward and backward on its own.
///
/// State is stored outside, in flat arenas: `ranges[i]` is the range of tensor `i` of
/// [`Layer::layout`]. Ranges must have the lengths of the layout; other lengths are a bug of the
/// caller and panic.
pub trait Layer: Send {
    /// Returns parameters and buffers by stable names, in an order that is the same in every
    /// process.
    fn layout(&self) -> &StateLayout;

    /// Returns the name of the layer: the part of the names of its tensors before the first dot, or another one that the model
    /// gives. Empty for a layer without both.
    fn name(&self) -> &str {
        let first = self.layout().tensors.first();
        first.map_or("", |tensor| {
            tensor.name.split('.').next().unwrap_or_default()
        })
    }

    /// Sets parameters and buffers to the given values: the committed state. Pending shards keep
    /// the values of their own forward. Cost: one copy of the state.
    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]);

    /// Does the same, and the layer may hold the state and read it in place until
    /// [`Layer::release_state`], which must be called before the state is changed in place. Cost:
    /// as [`Layer::load`], or none.
    fn load_shared(&mut self, state: &SharedState, ranges: &[Range<usize>]) {
        self.load(state.values(), ranges);
    }

    /// Drops a state that is held in place, before it changes. Values must be loaded before any
    /// other call; pending shards keep theirs.
    fn release_state(&mut self) {}

    /// Returns whether the layer has [`Layer::suspend_state`]; by default not.
    fn is_suspendable(&self) -> bool {
        false
    }

    /// Drops a state that is held in place, and those of pending shards, which are the same. Before any other pass,
    /// [`Layer::load_shared`] loads the same values again, and pending shards then use them. Only for a layer that
    /// [`Layer::is_suspendable`]. The state does not change between the forward and the backward pass of a shard.
    fn suspend_state(&mut self) {}

    /// Writes the values that parameters and buffers had before any others were loaded, and returns true; false if the layer
    /// does not know them any more, as by default. Cost: drawing the values.
    fn write_initial(&self, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        let _ = (state, ranges);
        false
    }

    /// Returns whether the layer still has the values that [`Layer::write_initial`] writes; by default not.
    fn is_initial(&self) -> bool {
        false
    }

    /// Writes parameters and committed buffers. Cost: one copy of the state.
    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]);

    /// Computes the output of one shard.
    ///
    /// In training, the values that backward needs are kept under the shard's number; several
    /// shards may be pending, and another forward of the same shard replaces the first. Every
    /// forward starts from the committed buffers. A shard may have no samples.
    ///
    /// # Errors
    /// When the input does not fit.
    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError>;

    /// Computes the outputs at the next positions of texts, `[texts, positions, ..]`, as
    /// [`Layer::forward`] in evaluation does, and keeps what later positions need: see
    /// [`Chain::extend_texts`](crate::Chain::extend_texts). `layer` is the layer's number in the model.
    ///
    /// # Errors
    /// When the input does not fit, or an output depends on later positions, as by default.
    fn extend(
        &mut self,
        input: Activation,
        texts: &mut [&mut KeptText],
        layer: u32,
    ) -> Result<Activation, EngineError> {
        let _ = (input, texts, layer);
        let tensor = self.layout().tensors.first();
        Err(EngineError::NoExtension {
            layer: tensor.map_or_else(|| "without tensors".to_owned(), |first| first.name.clone()),
        })
    }

    /// Ends a shard: computes the gradients of its parameters and its input from that of its
    /// output.
    ///
    /// Writes the range of every tensor: a parameter's gradient (zeros if it was not used), which
    /// is a sum over samples when `grad_output` is one; for a buffer the value after this shard's
    /// forward.
    ///
    /// # Errors
    /// When the shard is not pending, the gradient does not fit, or the input gradient is requested
    /// of a layer whose input has none.
    fn backward(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError>;

    /// Computes the gradient of the input only, and keeps what [`Layer::backward_weights`] of the
    /// shard needs. The two together do the same as [`Layer::backward`], with the same bits.
    ///
    /// # Errors
    /// As [`Layer::backward`].
    fn backward_input(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError>;

    /// Computes the gradients of the parameters of a shard, after [`Layer::backward_input`], and
    /// ends the shard. Writes the same as [`Layer::backward`].
    ///
    /// # Errors
    /// When [`Layer::backward_input`] of the shard did not run before.
    fn backward_weights(
        &mut self,
        shard: Shard,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError>;

    /// Returns the number of parts into which the layer is divided, which different processes may compute; by default 1.
    fn parts(&self) -> u32 {
        1
    }

    /// Computes the given parts from now on, and drops all pending shards. The tensors of other parts need not be loaded: their
    /// ranges may be empty. Without effect on a layer that is not divided.
    fn set_parts(&mut self, _place: &PartPlace) {}

    /// Returns what processes that compute different parts exchange for one shard of the given input shape, samples first; by
    /// default nothing.
    fn part_transfers(&self, input_shape: &[usize], ends: PassEnds) -> PartTransfers {
        let _ = (input_shape, ends);
        PartTransfers::default()
    }

    /// Returns the number of tokens of the input on processes that compute different parts, in training; `None` if the input is
    /// whole on all of them, as by default.
    fn input_tokens(&self) -> Option<TokenShares> {
        None
    }

    /// Returns the same for the output.
    fn output_tokens(&self) -> Option<TokenShares> {
        None
    }

    /// Returns the length of the last dimension of each part of the output, if the output joins parts; by default `None`.
    fn output_parts(&self) -> Option<Vec<usize>> {
        None
    }

    /// Sets whether the output in training is that of the own parts alone, side by side, instead of all. Only for a layer with
    /// [`Layer::output_parts`].
    fn set_output_apart(&mut self, _is_apart: bool) {}

    /// Computes on another device from now on, and drops all pending shards. A layer of another engine stays where it
    /// is.
    fn set_device(&mut self, _device: &Arc<dyn Device>) {}

    /// Rounds values and keeps them in a format from now on, and drops all pending shards: see [`Precision`].
    ///
    /// # Errors
    /// When the layer has only f32, as by default those that are not made of operations.
    fn set_precision(&mut self, precision: Precision) -> Result<(), EngineError> {
        if precision == Precision::F32 {
            return Ok(());
        }
        let tensor = self.layout().tensors.first();
        Err(EngineError::NoShortFormat {
            layer: tensor.map_or_else(|| "without tensors".to_owned(), |first| first.name.clone()),
            engine: self.engine(),
            precision,
        })
    }

    /// Returns the name and version of the engine that computes the layer: a condition of equal
    /// bits.
    fn engine(&self) -> String {
        crate::engine_name()
    }

    /// Returns output shape and memory for one shard of the given input shape, samples first. Shapes are those of whole values,
    /// also where a process has some of the tokens in training: see [`Layer::input_tokens`].
    fn cost(&self, input_shape: &[usize]) -> LayerCost;

    /// Returns the work of forward and backward of a shard of the given input shape, samples first, as multiply-adds of matrix
    /// products that take as long on a usual processor; `None` if the layer does not know it, as by default. Drops pending
    /// shards. Cost: microseconds per operation.
    fn work(&mut self, input_shape: &[usize], needs_input_gradient: bool) -> Option<f64> {
        let _ = (input_shape, needs_input_gradient);
        None
    }

    /// Returns whether most gradients of weights are zeros, because samples select rows of a table.
    fn has_tables(&self) -> bool {
        false
    }

    /// Returns the batch normalisations of the layer, as far as it knows them; by default none.
    fn batch_norms(&self) -> Vec<BatchNormValues> {
        Vec::new()
    }

    /// Drops all pending shards, as after an aborted step. By default nothing, which suits a layer that keeps nothing.
    fn discard(&mut self) {}

    /// Drops one pending shard.
    fn discard_shard(&mut self, shard: Shard) {
        let _ = shard;
    }

    /// Returns the layer as one that runs all shards of a rank together; `None` when a shard needs
    /// nothing of the remaining ones.
    fn in_lock_step(&mut self) -> Option<&mut dyn LockStep> {
        None
    }
}

/// Runs any layer on all shards of a rank: in lock step if it requires it, otherwise one after the
/// other.
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
