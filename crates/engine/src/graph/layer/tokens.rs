//! Layers whose values are divided along their tokens: the gradients of tensors as sums over the tokens of each part, then
//! along the tree over the parts.

use std::ops::Range;

use ronde_core::Shard;

use super::GraphLayer;
use crate::activation::Activation;
use crate::context::Mode;
use crate::error::EngineError;
use crate::graph::{LoadedState, NodeGradient, TensorGradients, Tensors};
use crate::lock_step::NotSummed;
use crate::shard_map::ShardMap;

/// The operations of a shard in the order of its backward pass, each with the sums of the complete subtrees of the own parts:
/// vectors of the elements of its tensors.
pub(super) type TokenSums = ShardMap<Vec<(usize, Vec<Vec<f32>>)>>;

/// Returns places of the same lengths one after the other, and their sum.
fn one_after_another(ranges: &[Range<usize>]) -> (Vec<Range<usize>>, usize) {
    let mut end = 0;
    let places = ranges.iter().map(|range| {
        let start = end;
        end += range.len();
        start..end
    });
    (places.collect(), end)
}

impl GraphLayer {
    /// Checks the shape of an input.
    pub(super) fn check_input(&self, input: &[usize], mode: Mode) -> Result<(), EngineError> {
        let sample = &self.outline.shapes[0];
        match &self.outline.divisions[0] {
            Some(division) if mode == Mode::Train => {
                let whole = [&[1], &sample[..]].concat();
                let own = division.own_shape(&whole, &self.place.own());
                self.pending.check_samples(input, &own[1..])
            }
            _ => self.pending.check_samples(input, sample),
        }
    }

    /// Computes the gradients of the tensors of an operation for the tokens of each own part.
    pub(super) fn add_token_sums(
        &mut self,
        index: usize,
        (shard, state): (Shard, &LoadedState),
        gradient: Option<&Activation>,
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError> {
        let own = self.place.own();
        let device = self.device.clone();
        let (places, elements) = one_after_another(ranges);
        let (node, tokens) = self.outline.node_and_tokens(index, &own);
        let mut failed = Ok(());
        let of_part = |part: u32| {
            let mut found = vec![0.0; elements];
            if let Some(gradient) = gradient {
                let tensors = Tensors::new(device.as_ref(), state, node.tensors.start);
                let given = NodeGradient {
                    shard,
                    gradient: gradient.clone(),
                    tensors: tensors.with_tokens(tokens).of_part(part),
                };
                let mut to = TensorGradients::new(device.as_ref(), &mut found, &places);
                let written = node.node.backward_weights(&given, &mut to);
                for (read, place) in to.foreign().iter().zip(&places) {
                    read.read(&mut found[place.clone()]);
                }
                if written.is_err() {
                    failed = written;
                }
            }
            found
        };
        let subtrees = self.place.vector_subtrees(own.clone().map(of_part));
        failed?;
        self.token_sums
            .get_or_default(shard)
            .push((index, subtrees));
        Ok(())
    }

    /// Sums the gradients of a shard over all tokens, in one exchange, and writes them.
    pub(super) fn sum_tokens(
        &mut self,
        shard: Shard,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError> {
        let Some(sums) = self.token_sums.remove(&shard) else {
            return Ok(());
        };
        let count = sums.first().map_or(0, |(_, subtrees)| subtrees.len());
        let joined = (0..count).map(|subtree| {
            let of_subtree = sums.iter().map(|(_, subtrees)| &subtrees[subtree][..]);
            of_subtree.collect::<Vec<_>>().concat()
        });
        let sum = self.place.sum_vectors(joined.collect());
        let sum = sum.map_err(|NotSummed| EngineError::NotSummed {
            layer: self.outline.name.clone(),
        })?;
        let mut rest = &sum[..];
        for (index, _) in &sums {
            for range in &ranges[self.outline.nodes[*index].tensors.clone()] {
                let (own, after) = rest.split_at(range.len());
                gradients[range.clone()].copy_from_slice(own);
                rest = after;
            }
        }
        Ok(())
    }
}
