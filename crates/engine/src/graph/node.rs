//! [`GraphNode`]: an operation in a graph, with the values that it keeps of each shard.

use ronde_core::Shard;

use super::Computation;
use super::operation::{GraphOperation, KeptValues};
use super::{KeptPositions, PartPlace, TensorGradients, Tensors, TokenDivision};
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::error::EngineError;
use crate::lock_step::ShardSums;
use crate::shard_map::ShardMap;

/// The gradient of a node's output for one shard.
pub(crate) struct NodeGradient<'a> {
    /// The shard.
    pub(crate) shard: Shard,
    /// The gradient.
    pub(crate) gradient: Activation,
    /// The state of the shard's forward.
    pub(crate) tensors: Tensors<'a>,
}

/// An operation in a graph, which runs all shards of a rank together. One that needs nothing of the
/// other shards runs them one after the other: see [`PerShard`].
pub(crate) trait GraphNode: Send {
    /// Returns the computation as data.
    fn computation(&self) -> Computation;

    /// Returns the kept memory of one sample.
    fn kept(&self) -> KeptValues;

    /// Returns what is kept for one sample if [`GraphNode::output_again`] computes the output again; `None` if it cannot.
    fn kept_for_output(&self) -> Option<KeptValues> {
        None
    }

    /// Computes the output of a shard again, with the same bits.
    ///
    /// # Errors
    /// When an exchange with other processes fails.
    fn output_again(
        &mut self,
        _shard: Shard,
        _tensors: Tensors<'_>,
    ) -> Result<Option<Activation>, EngineError> {
        Ok(None)
    }

    /// Returns whether the output may be computed again from a value that is computed again itself.
    fn reads_values_again(&self) -> bool {
        false
    }

    /// Returns the form in which it gets all tokens of a divided value, if it does.
    fn gathers_tokens(&self) -> Option<&TokenDivision> {
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

    /// Returns whether it takes packed values: see [`GraphOperation::takes_packed`].
    fn takes_packed(&self) -> bool {
        false
    }

    /// Returns whether it takes joined shards: see [`GraphOperation::joins_shards`]. They have the number of the first one.
    fn joins_shards(&self) -> bool {
        false
    }

    /// Visits the values kept of a shard that a short format stores in 2 bytes.
    fn each_saved(&mut self, shard: Shard, visit: &mut dyn FnMut(&mut Activation));

    /// Returns the output of each shard; `inputs` has the inputs of each shard.
    fn forward(
        &mut self,
        inputs: Vec<Vec<Activation>>,
        tensors: Tensors<'_>,
        contexts: &[ForwardContext],
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError>;

    /// Returns the output at the next positions of texts; `None` if it needs more than the earlier ones.
    fn extend(
        &self,
        _inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        _kept: &mut KeptPositions<'_, '_>,
    ) -> Result<Option<Activation>, EngineError> {
        Ok(None)
    }

    /// Returns the gradients of the requested inputs of each shard. The values kept of the shards
    /// remain until [`GraphNode::end`].
    fn backward_input(
        &mut self,
        shards: Vec<NodeGradient<'_>>,
        wanted: &[bool],
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Vec<Option<Activation>>>, EngineError>;

    /// Writes the gradients of the tensors for one shard, after [`GraphNode::backward_input`].
    fn backward_weights(
        &mut self,
        given: &NodeGradient<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError>;

    /// Drops the values kept of a shard.
    fn end(&mut self, shard: Shard);

    /// Drops the values kept of all shards.
    fn discard(&mut self);

    /// Sets the parts that this process computes; without effect on an operation that combines none.
    fn set_parts(&mut self, _place: &PartPlace) {}

    /// Returns the length of the last dimension of each part of the output, if the output joins parts.
    fn output_parts(&self) -> Option<&[usize]> {
        None
    }

    /// Sets whether the output in training is that of the own parts alone.
    fn set_apart(&mut self, _is_apart: bool) {}

    /// Returns whether it needs sums over all shards.
    fn needs_all_shards(&self) -> bool {
        false
    }
}

/// An operation that runs each shard on its own.
pub(crate) struct PerShard<O: GraphOperation> {
    operation: O,
    saved: ShardMap<O::Saved>,
}

impl<O: GraphOperation> PerShard<O> {
    pub(crate) fn new(operation: O) -> Self {
        Self {
            operation,
            saved: ShardMap::new(),
        }
    }
}

impl<O: GraphOperation> GraphNode for PerShard<O> {
    fn computation(&self) -> Computation {
        self.operation.computation()
    }

    fn kept(&self) -> KeptValues {
        self.operation.kept()
    }

    fn kept_for_output(&self) -> Option<KeptValues> {
        self.operation.kept_for_output()
    }

    fn output_again(
        &mut self,
        shard: Shard,
        tensors: Tensors<'_>,
    ) -> Result<Option<Activation>, EngineError> {
        let saved = self.saved.get_mut(&shard);
        Ok(saved.and_then(|saved| self.operation.output_again(saved, tensors)))
    }

    fn reads_numbers(&self) -> bool {
        self.operation.reads_numbers()
    }

    fn selects_rows(&self) -> bool {
        self.operation.selects_rows()
    }

    fn takes_packed(&self) -> bool {
        self.operation.takes_packed()
    }

    fn joins_shards(&self) -> bool {
        self.operation.joins_shards()
    }

    fn each_saved(&mut self, shard: Shard, visit: &mut dyn FnMut(&mut Activation)) {
        if let Some(saved) = self.saved.get_mut(&shard) {
            self.operation.each_saved(saved, visit);
        }
    }

    fn forward(
        &mut self,
        inputs: Vec<Vec<Activation>>,
        tensors: Tensors<'_>,
        contexts: &[ForwardContext],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let mut outputs = Vec::with_capacity(inputs.len());
        for (inputs, context) in inputs.into_iter().zip(contexts) {
            let (output, saved) = self.operation.forward(inputs, tensors, context)?;
            if context.mode == Mode::Train {
                self.saved.insert(context.shard, saved);
            }
            outputs.push(output);
        }
        Ok(outputs)
    }

    fn extend(
        &self,
        inputs: Vec<Activation>,
        tensors: Tensors<'_>,
        kept: &mut KeptPositions<'_, '_>,
    ) -> Result<Option<Activation>, EngineError> {
        self.operation.extend(inputs, tensors, kept)
    }

    fn backward_input(
        &mut self,
        shards: Vec<NodeGradient<'_>>,
        wanted: &[bool],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Vec<Option<Activation>>>, EngineError> {
        let of_shard = |given: NodeGradient<'_>| match self.saved.get_mut(&given.shard) {
            Some(saved) => {
                self.operation
                    .backward_input(saved, given.gradient, given.tensors, wanted)
            }
            None => Vec::new(),
        };
        Ok(shards.into_iter().map(of_shard).collect())
    }

    fn backward_weights(
        &mut self,
        given: &NodeGradient<'_>,
        to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        match self.saved.get(&given.shard) {
            Some(saved) => {
                self.operation
                    .backward_weights(saved, &given.gradient, given.tensors, to)
            }
            None => Ok(()),
        }
    }

    fn end(&mut self, shard: Shard) {
        self.saved.remove(&shard);
    }

    fn discard(&mut self) {
        self.saved.clear();
        self.operation.discard();
    }
}
