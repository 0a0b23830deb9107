//! [`Layer`]: the interface between a model and every training strategy.
//!
//! A layer runs all shards of a rank in one call. Questions about it are data, [`LayerFacts`], so that a layer around another one
//! passes them on as they are. [`LayerExt`] has the same calls for one shard, and one method for each fact.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::StateLayout;
use ronde_core::{PartTransfers, Shard};

use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::device::Device;
use crate::error::EngineError;
use crate::graph::{BatchNormValues, KeptText, PartPlace, PassEnds, TokenShares};
use crate::lock_step::{ShardGradient, ShardInput, ShardSums, SingleRankSums};
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

/// A layer that has only f32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnlyF32 {
    /// Its name.
    pub layer: String,
    /// The engine that computes it.
    pub engine: String,
}

/// The form of the gradients of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GradientForm {
    /// Any value may be another one than zero.
    Dense,
    /// Most are zeros, because samples select rows of a table.
    Sparse,
}

/// How the shards of one call pass through a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardPasses {
    /// One after the other.
    Apart,
    /// Together, with the bits of each shard alone, and their gradients can be added: [`ShardGradient::added`]. Such a layer has no
    /// buffers.
    Together,
    /// A pass needs values of all shards of the global batch, so that all ranks run it together with all of their shards.
    OfAllRanks,
}

impl ShardPasses {
    /// Returns how shards pass through two layers, one after the other.
    pub(crate) fn of_both(self, next: Self) -> Self {
        match (self, next) {
            (Self::OfAllRanks, _) | (_, Self::OfAllRanks) => Self::OfAllRanks,
            (Self::Together, Self::Together) => Self::Together,
            _ => Self::Apart,
        }
    }
}

/// The properties of a layer, which do not depend on values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerFacts {
    /// Parameters and buffers by stable names, in an order that is the same in every process.
    pub layout: StateLayout,
    /// The name of the layer: the part of the names of its tensors before the first dot, or another one that the model gives.
    /// Empty for a layer without both.
    pub name: String,
    /// The name and version of the engine that computes the layer: a condition of equal bits.
    pub engine: String,
    /// The number of parts into which the layer is divided, which different processes may compute.
    pub parts: u32,
    /// The number of tokens of the input on processes that compute different parts, in training; `None` if the input is whole on
    /// all of them.
    pub input_tokens: Option<TokenShares>,
    /// The same for the output.
    pub output_tokens: Option<TokenShares>,
    /// The length of the last dimension of each part of the output, if the output joins parts.
    pub output_parts: Option<Vec<usize>>,
    /// The form of the gradients of weights.
    pub weight_gradients: GradientForm,
    /// The batch normalisations of the layer, as far as it knows them.
    pub batch_norms: Vec<BatchNormValues>,
    /// Whether the state can be dropped and loaded again while shards are pending: see [`StateChange::Suspend`].
    pub is_suspendable: bool,
    /// How the shards of one call pass through the layer.
    pub shard_passes: ShardPasses,
    /// The first part of the layer that has only f32, if there is one.
    pub only_f32: Option<OnlyF32>,
}

impl LayerFacts {
    /// Returns whether all ranks run a pass together: see [`ShardPasses::OfAllRanks`].
    #[must_use]
    pub fn needs_all_shards(&self) -> bool {
        self.shard_passes == ShardPasses::OfAllRanks
    }

    /// Returns whether the shards of a call run together: see [`ShardPasses::Together`].
    #[must_use]
    pub fn joins_shards(&self) -> bool {
        self.shard_passes == ShardPasses::Together
    }

    /// Returns the facts of a layer that is not divided, whose samples need nothing of each other, and which has only f32: what a
    /// layer can do beyond this is set in the fields.
    #[must_use]
    pub fn new(layout: StateLayout, engine: String) -> Self {
        let first = layout.tensors.first();
        let name = first.and_then(|tensor| tensor.name.split('.').next());
        let name = name.unwrap_or_default().to_owned();
        let shown = first.map_or_else(|| "without tensors".to_owned(), |first| first.name.clone());
        Self {
            layout,
            name,
            only_f32: Some(OnlyF32 {
                layer: shown,
                engine: engine.clone(),
            }),
            engine,
            parts: 1,
            input_tokens: None,
            output_tokens: None,
            output_parts: None,
            weight_gradients: GradientForm::Dense,
            batch_norms: Vec::new(),
            is_suspendable: false,
            shard_passes: ShardPasses::Apart,
        }
    }
}

/// How a layer computes.
#[derive(Clone, Copy)]
pub enum LayerSetting<'a> {
    /// Computes on another device from now on, and drops all pending shards. A layer of another engine stays where it is.
    Device(&'a Arc<dyn Device>),
    /// Rounds values and keeps them in a format from now on, and drops all pending shards: see [`Precision`]. Not for a layer with
    /// [`LayerFacts::only_f32`].
    Precision(Precision),
    /// Computes the given parts from now on, and drops all pending shards. The tensors of other parts need not be loaded: their
    /// ranges may be empty. Without effect on a layer that is not divided.
    Parts(&'a PartPlace),
    /// Whether the output in training is that of the own parts alone, side by side, instead of all. Only for a layer with
    /// [`LayerFacts::output_parts`].
    OutputApart(bool),
}

/// A change of the state that a layer computes with.
#[derive(Clone, Copy)]
pub enum StateChange<'a> {
    /// Sets parameters and buffers to these values: the committed state. Pending shards keep the values of their own forward. The
    /// layer may hold the state and read it in place until the next change. Cost: a copy of the state, or none.
    Load(&'a SharedState, &'a [Range<usize>]),
    /// Drops a state that is held in place, before it changes. Values must be loaded before any pass; pending shards keep theirs.
    Release,
    /// Drops a state that is held in place, and those of pending shards, which are the same. Before any other pass, the same values
    /// are loaded again, and pending shards then use them. Only for a layer with [`LayerFacts::is_suspendable`]. The state does not
    /// change between the forward and the backward pass of a shard.
    Suspend,
}

/// Values of parameters and buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedValues {
    /// The parameters and the committed buffers.
    Current,
    /// Those before any others were loaded.
    Initial,
}

/// The part of a backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackwardPart {
    /// The gradients of the parameters and of the input; ends the shard.
    Whole,
    /// The gradient of the input only. Keeps what [`BackwardPart::Weights`] of the shard needs. The two together do the same as
    /// [`BackwardPart::Whole`], with the same bits.
    Input,
    /// The gradients of the parameters, after [`BackwardPart::Input`]; ends the shard. The gradients of the outputs are not used, and
    /// those of the inputs are not returned.
    Weights,
}

/// A backward pass.
#[derive(Debug, Clone, Copy)]
pub struct BackwardPass<'a> {
    /// The part to compute.
    pub part: BackwardPart,
    /// The ranges of the tensors in the buffers of gradients.
    pub ranges: &'a [Range<usize>],
    /// Whether the gradients of the inputs are needed.
    pub needs_input_gradient: bool,
}

/// The shards that a layer drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiscardedShards {
    /// All pending ones, as after an aborted step.
    All,
    /// One of them.
    One(Shard),
}

/// An element of a model's chain, which runs forward and backward on its own.
///
/// State is stored outside, in flat arenas: `ranges[i]` is the range of tensor `i` of
/// [`LayerFacts::layout`]. Ranges must have the lengths of the layout; other lengths are a bug of the
/// caller and panic.
pub trait Layer: Send {
    /// Returns the properties of the layer.
    fn facts(&self) -> &LayerFacts;

    /// Changes how the layer computes.
    fn set(&mut self, setting: LayerSetting<'_>);

    /// Changes the state that the layer computes with.
    fn state(&mut self, change: StateChange<'_>);

    /// Writes values of parameters and buffers, and returns true; false if the layer does not know them any more. Cost: one copy of
    /// the state, or drawing the values.
    fn save(&self, which: SavedValues, state: &mut [f32], ranges: &[Range<usize>]) -> bool;

    /// Returns whether the layer computes with the initial values, which [`SavedValues::Initial`] writes; by default not.
    fn is_initial(&self) -> bool {
        false
    }

    /// Computes the outputs of shards, in order. A rank without shards calls it with none if the layer
    /// [needs all shards](LayerFacts::needs_all_shards), because the sums need every rank.
    ///
    /// In training, the values that backward needs are kept under the shard's number; several
    /// shards may be pending, and another forward of the same shard replaces the first. Every
    /// forward starts from the committed buffers. A shard may have no samples.
    ///
    /// # Errors
    /// When an input does not fit, and [`EngineError::NotSummed`].
    fn forward(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError>;

    /// Computes gradients of shards from those of their outputs, and returns those of their inputs, in order. If the layer
    /// [joins shards](LayerFacts::joins_shards), the shards are those of one forward pass.
    ///
    /// Writes the range of every tensor: a parameter's gradient (zeros if it was not used), which
    /// is a sum over samples when the gradient of the output is one; for a buffer the value after this shard's
    /// forward.
    ///
    /// # Errors
    /// When a shard is not pending, a gradient does not fit, or the input gradient is requested
    /// of a layer whose input has none.
    fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError>;

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
        let tensor = self.facts().layout.tensors.first();
        Err(EngineError::NoExtension {
            layer: tensor.map_or_else(|| "without tensors".to_owned(), |first| first.name.clone()),
        })
    }

    /// Drops pending shards. By default nothing, which suits a layer that keeps nothing.
    fn discard(&mut self, which: DiscardedShards) {
        let _ = which;
    }

    /// Returns output shape and memory for one shard of the given input shape, samples first. Shapes are those of whole values,
    /// also where a process has some of the tokens in training: see [`LayerFacts::input_tokens`].
    fn cost(&self, input_shape: &[usize]) -> LayerCost;

    /// Returns the work of forward and backward of a shard of the given input shape, samples first, as multiply-adds of matrix
    /// products that take as long on a usual processor; `None` if the layer does not know it, as by default. Drops pending
    /// shards. Cost: microseconds per operation.
    fn work(&mut self, input_shape: &[usize], needs_input_gradient: bool) -> Option<f64> {
        let _ = (input_shape, needs_input_gradient);
        None
    }

    /// Returns what processes that compute different parts exchange for one shard of the given input shape, samples first; by
    /// default nothing.
    fn part_transfers(&self, input_shape: &[usize], ends: PassEnds) -> PartTransfers {
        let _ = (input_shape, ends);
        PartTransfers::default()
    }
}

/// Calls of a layer in other forms.
pub trait LayerExt: Layer {
    /// Returns [`LayerFacts::layout`].
    fn layout(&self) -> &StateLayout {
        &self.facts().layout
    }

    /// Returns [`LayerFacts::name`].
    fn name(&self) -> &str {
        &self.facts().name
    }

    /// Returns [`LayerFacts::engine`].
    fn engine(&self) -> &str {
        &self.facts().engine
    }

    /// Returns [`LayerFacts::parts`].
    fn parts(&self) -> u32 {
        self.facts().parts
    }

    /// Computes on another device from now on: see [`LayerSetting::Device`].
    fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.set(LayerSetting::Device(device));
    }

    /// Rounds values and keeps them in a format from now on: see [`LayerSetting::Precision`].
    ///
    /// # Errors
    /// When the layer has only f32.
    fn set_precision(&mut self, precision: Precision) -> Result<(), EngineError> {
        let only_f32 = self.facts().only_f32.as_ref();
        if let Some(OnlyF32 { layer, engine }) = only_f32.filter(|_| precision != Precision::F32) {
            return Err(EngineError::NoShortFormat {
                layer: layer.clone(),
                engine: engine.clone(),
                precision,
            });
        }
        self.set(LayerSetting::Precision(precision));
        Ok(())
    }

    /// Computes the given parts from now on: see [`LayerSetting::Parts`].
    fn set_parts(&mut self, place: &PartPlace) {
        self.set(LayerSetting::Parts(place));
    }

    /// Loads values of a state, which the layer copies.
    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        let mut own = Vec::with_capacity(ranges.iter().map(ExactSizeIterator::len).sum());
        let mut places = Vec::with_capacity(ranges.len());
        for range in ranges {
            let start = own.len();
            own.extend_from_slice(&state[range.clone()]);
            places.push(start..own.len());
        }
        let own: SharedState = Arc::new(own);
        self.state(StateChange::Load(&own, &places));
    }

    /// Loads a state that the layer may hold: see [`StateChange::Load`].
    fn load_shared(&mut self, state: &SharedState, ranges: &[Range<usize>]) {
        self.state(StateChange::Load(state, ranges));
    }

    /// Drops a state that is held in place: see [`StateChange::Release`].
    fn release_state(&mut self) {
        self.state(StateChange::Release);
    }

    /// Writes the current values: see [`SavedValues::Current`].
    fn save_state(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        self.save(SavedValues::Current, state, ranges);
    }

    /// Computes the output of one shard. A layer that needs all shards takes it for the whole batch.
    ///
    /// # Errors
    /// As [`Layer::forward`].
    fn forward_shard(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        let context = *context;
        let outputs = self.forward(vec![ShardInput { input, context }], &mut SingleRankSums)?;
        Ok(first_of(outputs).unwrap_or_else(Activation::nothing))
    }

    /// Ends a shard: see [`BackwardPart::Whole`].
    ///
    /// # Errors
    /// As [`Layer::backward`].
    fn backward_shard(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        let pass = BackwardPass {
            part: BackwardPart::Whole,
            ranges,
            needs_input_gradient,
        };
        let given = ShardGradient {
            shard,
            grad_output,
            gradients,
            added: Vec::new(),
        };
        let found = self.backward(vec![given], pass, &mut SingleRankSums)?;
        Ok(first_of(found).flatten())
    }

    /// Computes the gradient of the input of one shard: see [`BackwardPart::Input`].
    ///
    /// # Errors
    /// As [`Layer::backward`].
    fn backward_input(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        let pass = BackwardPass {
            part: BackwardPart::Input,
            ranges: &[],
            needs_input_gradient,
        };
        let given = ShardGradient {
            shard,
            grad_output,
            gradients: &mut [],
            added: Vec::new(),
        };
        let found = self.backward(vec![given], pass, &mut SingleRankSums)?;
        Ok(first_of(found).flatten())
    }

    /// Computes the gradients of the parameters of one shard: see [`BackwardPart::Weights`].
    ///
    /// # Errors
    /// When [`LayerExt::backward_input`] of the shard did not run before.
    fn backward_weights(
        &mut self,
        shard: Shard,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError> {
        let pass = BackwardPass {
            part: BackwardPart::Weights,
            ranges,
            needs_input_gradient: false,
        };
        let given = ShardGradient {
            shard,
            grad_output: Activation::nothing(),
            gradients,
            added: Vec::new(),
        };
        self.backward(vec![given], pass, &mut SingleRankSums)?;
        Ok(())
    }

    /// Drops all pending shards.
    fn discard_all(&mut self) {
        self.discard(DiscardedShards::All);
    }

    /// Drops one pending shard.
    fn discard_shard(&mut self, shard: Shard) {
        self.discard(DiscardedShards::One(shard));
    }
}

impl<L: Layer + ?Sized> LayerExt for L {}

fn first_of<T>(values: Vec<T>) -> Option<T> {
    values.into_iter().next()
}
