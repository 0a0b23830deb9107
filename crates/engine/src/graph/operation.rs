//! [`GraphOperation`]: one explicit step of a layer's computation, with its backward passes.

use ronde_core::layout::TensorEntry;

use super::Computation;
use super::{KeptPositions, TensorGradients, Tensors};
use crate::activation::Activation;
use crate::context::ForwardContext;
use crate::error::EngineError;
use crate::initial::Initial;

/// A tensor of an operation, and its initial values.
pub(crate) struct OwnTensor {
    /// The name within the layer, the shape and the role.
    pub(crate) entry: TensorEntry,
    /// The distribution of the initial values.
    pub(crate) initial: Initial,
}

/// The values that an operation keeps for its backward pass, for planning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KeptValues {
    /// Whether each input is kept.
    pub(crate) inputs: Vec<bool>,
    /// Whether the output is kept.
    pub(crate) output: bool,
    /// The number of further values per sample, which a short format stores in 2 bytes.
    pub(crate) more: usize,
    /// The number of further floats per sample, which stay f32 in every format.
    pub(crate) always_f32: usize,
}

impl KeptValues {
    /// The only input.
    pub(crate) fn input() -> Self {
        Self {
            inputs: vec![true],
            ..Self::default()
        }
    }
}

/// One explicit step of a layer's computation: a forward pass, and separate backward passes for the
/// inputs and for the tensors. All of a shard's values arrive as arguments, so an operation has no
/// state of its own.
///
/// Bits depend only on the arguments.
pub(crate) trait GraphOperation: Send + 'static {
    /// The values kept from forward to backward of one shard.
    type Saved: Send;

    /// Returns the computation as data.
    fn computation(&self) -> Computation;

    /// Returns the values kept for one sample; none by default.
    fn kept(&self) -> KeptValues {
        KeptValues::default()
    }

    /// Returns the values kept for one sample instead of [`GraphOperation::kept`] if [`GraphOperation::output_again`] computes the
    /// output again; `None` if it cannot, as by default. Only for an operation whose cost is small next to that of a product.
    fn kept_for_output(&self) -> Option<KeptValues> {
        None
    }

    /// Computes the output of a shard again, with the same bits, from what is kept for the backward pass. Called before the
    /// backward passes of the operations that read the output.
    fn output_again(&self, _saved: &mut Self::Saved, _tensors: Tensors<'_>) -> Option<Activation> {
        None
    }

    /// Returns whether the inputs are numbers that select rows of a table, which must not be rounded.
    fn reads_numbers(&self) -> bool {
        false
    }

    /// Returns whether gradients of tensors are zero except in the rows that samples have selected.
    fn selects_rows(&self) -> bool {
        false
    }

    /// Returns whether it takes packed values, computes in [`Blocks`](crate::blocks::Blocks) and packs its results: see
    /// [`Tensors::result`]. Otherwise its inputs and kept values are unpacked before, and its results packed afterwards.
    fn takes_packed(&self) -> bool {
        false
    }

    /// Returns whether the output of each sample depends on this sample only, and gradients of tensors are added shard by shard, so
    /// that shards run together: see [`JoinedShards`](super::JoinedShards). By default not.
    fn joins_shards(&self) -> bool {
        false
    }

    /// Visits the kept values that a short format stores in 2 bytes, among them all inputs and outputs; none by default.
    fn each_saved(&self, _saved: &mut Self::Saved, _visit: &mut dyn FnMut(&mut Activation)) {}

    /// Computes the output. Evaluation drops the saved values at once.
    ///
    /// # Errors
    /// When a layer that shares a tensor has not run before.
    fn forward(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        context: &ForwardContext,
    ) -> Result<(Activation, Self::Saved), EngineError>;

    /// Returns whether the output at each position of a text depends on the inputs at this position only.
    fn is_per_position(&self) -> bool {
        false
    }

    /// Returns whether it can compute the own tokens of values that are divided along them: see [`Tensors::tokens`].
    fn computes_own_tokens(&self) -> bool {
        false
    }

    /// Computes the output at the next positions of texts, with the bits of [`GraphOperation::forward`] in evaluation;
    /// `None` if it needs later positions. By default an operation for single positions runs forward.
    ///
    /// # Errors
    /// As [`GraphOperation::forward`].
    fn extend(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        kept: &mut KeptPositions<'_, '_>,
    ) -> Result<Option<Activation>, EngineError> {
        let _ = kept;
        if !self.is_per_position() {
            return Ok(None);
        }
        let (output, _) = self.forward(inputs, tensors, &ForwardContext::evaluate())?;
        Ok(Some(output))
    }

    /// Computes the gradients of the requested inputs from that of the output; `None` for an input
    /// that is not requested or has no gradient. May store what [`GraphOperation::backward_weights`] needs,
    /// which runs afterwards.
    fn backward_input(
        &self,
        saved: &mut Self::Saved,
        gradient: Activation,
        tensors: Tensors<'_>,
        wanted: &[bool],
    ) -> Vec<Option<Activation>>;

    /// Computes the gradients of all tensors, as sums over samples; a buffer's is its value after
    /// the shard's forward. An operation that computes own tokens is called for each own part, and adds the tokens of this part
    /// only: see [`Tensors::tokens_of_part`].
    ///
    /// # Errors
    /// When a layer that shares a tensor has not run before.
    fn backward_weights(
        &self,
        _saved: &Self::Saved,
        _gradient: &Activation,
        _tensors: Tensors<'_>,
        _to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        Ok(())
    }

    /// Drops values that are not kept per shard, as after an aborted step.
    fn discard(&self) {}
}
