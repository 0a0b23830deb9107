//! [`GatherTokens`], [`SliceTokens`] and [`ConcatenateTokens`]: values that are divided along their tokens in training.

use ronde_core::Shard;

use super::{Concatenate, TakeSlice, only};
use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::device::kernel::FillKernel;
use crate::error::EngineError;
use crate::graph::Computation;
use crate::graph::{
    GraphNode, GraphOperation, KeptPositions, KeptValues, NodeGradient, PartPlace, TensorGradients,
    Tensors, TokenDivision, copy_run,
};
use crate::lock_step::{NotSummed, ShardSums};
use crate::shard_map::ShardMap;

/// All tokens of a divided value, for operations of parts. Its gradient is that of the own tokens already: the layer sums the
/// gradients of the parts so. Keeps the own tokens, and gathers again in the backward pass.
pub(crate) struct GatherTokens {
    pub(crate) layer: String,
    pub(crate) division: TokenDivision,
    pub(crate) place: PartPlace,
    pub(crate) saved: ShardMap<Activation>,
}

impl GatherTokens {
    fn gathered(&self, own: Activation, tensors: Tensors<'_>) -> Result<Activation, EngineError> {
        let device = tensors.device();
        let found = self.place.with_all_tokens(device, own, &self.division);
        found.map_err(|NotSummed| EngineError::NotSummed {
            layer: self.layer.clone(),
        })
    }
}

impl GraphNode for GatherTokens {
    /// In evaluation, the input has all tokens.
    fn computation(&self) -> Computation {
        Computation::Identity
    }

    fn kept(&self) -> KeptValues {
        KeptValues::input()
    }

    fn kept_for_output(&self) -> Option<KeptValues> {
        Some(KeptValues::input())
    }

    fn output_again(
        &mut self,
        shard: Shard,
        tensors: Tensors<'_>,
    ) -> Result<Option<Activation>, EngineError> {
        let own = self.saved.get(&shard).cloned();
        own.map(|own| self.gathered(own, tensors)).transpose()
    }

    fn reads_values_again(&self) -> bool {
        true
    }

    fn gathers_tokens(&self) -> Option<&TokenDivision> {
        Some(&self.division)
    }

    fn each_saved(&mut self, shard: Shard, visit: &mut dyn FnMut(&mut Activation)) {
        if let Some(saved) = self.saved.get_mut(&shard) {
            visit(saved);
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
            let own = only(inputs);
            outputs.push(match context.mode {
                Mode::Evaluate => own,
                Mode::Train => {
                    self.saved.insert(context.shard, own.clone());
                    self.gathered(own, tensors)?
                }
            });
        }
        Ok(outputs)
    }

    fn extend(
        &self,
        inputs: Vec<Activation>,
        _tensors: Tensors<'_>,
        _kept: &mut KeptPositions<'_, '_>,
    ) -> Result<Option<Activation>, EngineError> {
        Ok(Some(only(inputs)))
    }

    fn backward_input(
        &mut self,
        shards: Vec<NodeGradient<'_>>,
        _wanted: &[bool],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Vec<Option<Activation>>>, EngineError> {
        let gradients = shards.into_iter().map(|given| vec![Some(given.gradient)]);
        Ok(gradients.collect())
    }

    fn backward_weights(
        &mut self,
        _given: &NodeGradient<'_>,
        _to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        Ok(())
    }

    fn end(&mut self, shard: Shard) {
        self.saved.remove(&shard);
    }

    fn discard(&mut self) {
        self.saved.clear();
    }

    fn set_parts(&mut self, place: &PartPlace) {
        self.place = place.clone();
    }
}

/// A run of tokens that a value has on a process: its first token, and that of the same run in another value.
struct CopiedTokens {
    from: usize,
    to: usize,
    tokens: usize,
}

/// Copies runs of tokens, each with all samples.
fn copy_tokens(
    tensors: Tensors<'_>,
    from: &Activation,
    to: &mut Activation,
    runs: impl IntoIterator<Item = CopiedTokens>,
) {
    let each: usize = from.shape().iter().skip(2).product::<usize>() * from.samples();
    for run in runs {
        let (start, to_start) = (run.from * each, run.to * each);
        copy_run(
            tensors.device(),
            (from, start),
            (to, to_start),
            run.tokens * each,
        );
    }
}

/// Returns the runs of a block: where they are in the value of all blocks, and in that of this block alone.
fn runs_of_block(
    division: &TokenDivision,
    block: usize,
    place: &PartPlace,
) -> (usize, Vec<CopiedTokens>) {
    let mut end = 0;
    let pieces = division.pieces(&place.own()).into_iter();
    let of_block = pieces.filter(|piece| piece.block == block);
    let runs = of_block.map(|piece| {
        let to = end;
        end += piece.tokens.len();
        CopiedTokens {
            from: piece.before,
            to,
            tokens: piece.tokens.len(),
        }
    });
    let runs = runs.collect();
    (end, runs)
}

fn with_tokens(shape: &[usize], tokens: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    shape[1] = tokens;
    shape
}

/// A block of tokens of a divided value, or the tokens that every process has.
pub(crate) struct SliceTokens {
    pub(crate) slice: TakeSlice,
    pub(crate) division: TokenDivision,
    pub(crate) block: usize,
    pub(crate) place: PartPlace,
}

impl GraphNode for SliceTokens {
    fn computation(&self) -> Computation {
        self.slice.computation()
    }

    fn kept(&self) -> KeptValues {
        KeptValues::default()
    }

    fn each_saved(&mut self, _shard: Shard, _visit: &mut dyn FnMut(&mut Activation)) {}

    fn forward(
        &mut self,
        inputs: Vec<Vec<Activation>>,
        tensors: Tensors<'_>,
        contexts: &[ForwardContext],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let of_shard = |(inputs, context): (Vec<Activation>, &ForwardContext)| {
            if context.mode == Mode::Evaluate {
                let (output, ()) = self.slice.forward(inputs, tensors, context)?;
                return Ok(output);
            }
            let x = only(inputs);
            let (tokens, runs) = runs_of_block(&self.division, self.block, &self.place);
            let mut found = tensors.unwritten(&with_tokens(x.shape(), tokens));
            copy_tokens(tensors, &x, &mut found, runs);
            Ok(found)
        };
        inputs.into_iter().zip(contexts).map(of_shard).collect()
    }

    fn backward_input(
        &mut self,
        shards: Vec<NodeGradient<'_>>,
        _wanted: &[bool],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Vec<Option<Activation>>>, EngineError> {
        let of_shard = |given: NodeGradient<'_>| {
            let tensors = given.tensors;
            let device = tensors.device();
            let shape = self
                .division
                .own_shape(given.gradient.shape(), &self.place.own());
            let mut found = tensors.unwritten(&shape);
            FillKernel {
                to: found.values_mut(device),
                value: 0.0,
            }
            .run_on(device);
            let (_, runs) = runs_of_block(&self.division, self.block, &self.place);
            let back = runs.into_iter().map(|run| CopiedTokens {
                from: run.to,
                to: run.from,
                ..run
            });
            copy_tokens(tensors, &given.gradient, &mut found, back);
            vec![Some(found)]
        };
        Ok(shards.into_iter().map(of_shard).collect())
    }

    fn backward_weights(
        &mut self,
        _given: &NodeGradient<'_>,
        _to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        Ok(())
    }

    fn end(&mut self, _shard: Shard) {}

    fn discard(&mut self) {}

    fn set_parts(&mut self, place: &PartPlace) {
        self.place = place.clone();
    }
}

/// Divided values one after the other along their tokens, and at the end the tokens that every process has, if there are any.
pub(crate) struct ConcatenateTokens {
    pub(crate) concatenate: Concatenate,
    /// The division of the output.
    pub(crate) division: TokenDivision,
    /// The blocks of each divided input.
    pub(crate) blocks: Vec<usize>,
    pub(crate) place: PartPlace,
}

impl ConcatenateTokens {
    /// Returns the number of tokens of each input on this process, and the runs of each of them with their ranges in the
    /// output.
    fn runs(&self) -> Vec<(usize, Vec<CopiedTokens>)> {
        let pieces = self.division.pieces(&self.place.own());
        let mut first = 0;
        let mut inputs: Vec<(usize, Vec<CopiedTokens>)> = Vec::new();
        let shared = usize::from(self.division.shared() > 0);
        for &blocks in self.blocks.iter().chain(Some(&1).filter(|_| shared > 0)) {
            let mut end = 0;
            let own = first..first + blocks;
            let of_input = pieces.iter().filter(|piece| own.contains(&piece.block));
            let runs = of_input.map(|piece| {
                let from = end;
                end += piece.tokens.len();
                CopiedTokens {
                    from,
                    to: piece.before,
                    tokens: piece.tokens.len(),
                }
            });
            let runs = runs.collect();
            inputs.push((end, runs));
            first += blocks;
        }
        inputs
    }
}

impl GraphNode for ConcatenateTokens {
    fn computation(&self) -> Computation {
        self.concatenate.computation()
    }

    fn kept(&self) -> KeptValues {
        KeptValues::default()
    }

    fn each_saved(&mut self, _shard: Shard, _visit: &mut dyn FnMut(&mut Activation)) {}

    fn forward(
        &mut self,
        inputs: Vec<Vec<Activation>>,
        tensors: Tensors<'_>,
        contexts: &[ForwardContext],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let of_shard = |(inputs, context): (Vec<Activation>, &ForwardContext)| {
            if context.mode == Mode::Evaluate {
                let (output, ()) = self.concatenate.forward(inputs, tensors, context)?;
                return Ok(output);
            }
            let runs = self.runs();
            let tokens = runs.iter().map(|(tokens, _)| tokens).sum();
            let mut found = tensors.unwritten(&with_tokens(inputs[0].shape(), tokens));
            for (input, (_, runs)) in inputs.iter().zip(runs) {
                copy_tokens(tensors, input, &mut found, runs);
            }
            Ok(found)
        };
        inputs.into_iter().zip(contexts).map(of_shard).collect()
    }

    fn backward_input(
        &mut self,
        shards: Vec<NodeGradient<'_>>,
        wanted: &[bool],
        _sums: &mut dyn ShardSums,
    ) -> Result<Vec<Vec<Option<Activation>>>, EngineError> {
        let of_shard = |given: NodeGradient<'_>| {
            let inputs = self.runs().into_iter().zip(wanted);
            let of_input = inputs.map(|((tokens, runs), wanted)| {
                wanted.then(|| {
                    let shape = with_tokens(given.gradient.shape(), tokens);
                    let mut found = given.tensors.unwritten(&shape);
                    let back = runs.into_iter().map(|run| CopiedTokens {
                        from: run.to,
                        to: run.from,
                        ..run
                    });
                    copy_tokens(given.tensors, &given.gradient, &mut found, back);
                    found
                })
            });
            of_input.collect()
        };
        Ok(shards.into_iter().map(of_shard).collect())
    }

    fn backward_weights(
        &mut self,
        _given: &NodeGradient<'_>,
        _to: &mut TensorGradients<'_>,
    ) -> Result<(), EngineError> {
        Ok(())
    }

    fn end(&mut self, _shard: Shard) {}

    fn discard(&mut self) {}

    fn set_parts(&mut self, place: &PartPlace) {
        self.place = place.clone();
    }
}
