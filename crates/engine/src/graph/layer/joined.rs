//! Shards that run together: their samples are joined at the ends of a layer, which costs nothing if they are parts of one value.

use std::ops::Range;

use ronde_core::Shard;

use super::{GraphLayer, OpenShards};
use crate::activation::Activation;
use crate::error::EngineError;
use crate::graph::JoinedShards;
use crate::layer::ShardPasses;
use crate::lock_step::{ShardGradient, ShardInput};
use crate::precision::Precision;

/// The place for the sum of the gradients of consecutive shards, in the order of the exact sum.
pub(super) struct SumOfShards<'a> {
    /// The shards, by their number in the pass.
    pub(super) shards: Range<usize>,
    pub(super) gradients: &'a mut [f32],
}

impl SumOfShards<'_> {
    /// Writes the gradients of tensors that no sample used.
    pub(super) fn clear(&mut self, ranges: &[Range<usize>]) {
        for range in ranges {
            self.gradients[range.clone()].fill(0.0);
        }
    }
}

/// Returns the shards of a backward pass with the gradients of their outputs, and the places for their gradients.
pub(super) fn sums_of(
    shards: Vec<ShardGradient<'_>>,
) -> (Vec<(Shard, Activation)>, Vec<SumOfShards<'_>>) {
    let (mut given, mut sums) = (Vec::with_capacity(shards.len()), Vec::new());
    for of_sum in shards {
        let start = given.len();
        given.push((of_sum.shard, of_sum.grad_output));
        given.extend(of_sum.added);
        sums.push(SumOfShards {
            shards: start..given.len(),
            gradients: of_sum.gradients,
        });
    }
    (given, sums)
}

/// Returns the places of each of the open shards: all of them for joined ones, and one for each shard that runs alone.
pub(super) fn sums_each<'s, 'a>(
    open: &[OpenShards],
    sums: &'s mut [SumOfShards<'a>],
) -> impl Iterator<Item = &'s mut [SumOfShards<'a>]> {
    let each = match open {
        [_] => sums.len(),
        _ => 1,
    };
    sums.chunks_mut(each.max(1))
}

/// Returns the values of each shard. Cost: none.
pub(super) fn apart(values: Vec<Activation>, joined: &[JoinedShards]) -> Vec<Activation> {
    let each = values.into_iter().zip(joined);
    let each = each.flat_map(|(value, joined)| match joined.shards() {
        [_] => vec![value],
        _ => value.divided(joined.samples()),
    });
    each.collect()
}

/// Returns the gradients of the inputs of each shard. Cost: none.
pub(super) fn gradients_apart(
    open: &[OpenShards],
    of_inputs: Vec<Option<Activation>>,
) -> Vec<Option<Activation>> {
    let each = of_inputs.into_iter().zip(open);
    let each = each.flat_map(|(of_input, of)| match (of.joined.shards(), of_input) {
        ([_], of_input) => vec![of_input],
        (shards, None) => vec![None; shards.len()],
        (_, Some(of_input)) => {
            let parts = of_input.divided(of.joined.samples());
            parts.into_iter().map(Some).collect()
        }
    });
    each.collect()
}

impl GraphLayer {
    /// Finds out whether shards run together: they do if all operations and the device let them, in f32 and with all parts.
    pub(super) fn find_joining(&mut self) {
        if self.facts.needs_all_shards() {
            return;
        }
        let mut nodes = self.outline.nodes.iter();
        let is_joining = nodes.all(|node| node.node.joins_shards())
            && self.outline.parts < 2
            && self.precision == Precision::F32
            && self.device.has_independent_rows();
        self.facts.shard_passes = match is_joining {
            true => ShardPasses::Together,
            false => ShardPasses::Apart,
        };
    }

    /// Checks that shards whose gradients are added ran together.
    pub(super) fn check_sums(
        &self,
        open: &[OpenShards],
        sums: &[SumOfShards<'_>],
    ) -> Result<(), EngineError> {
        let added = sums.iter().find(|sum| sum.shards.len() > 1);
        match (open, added) {
            ([_, second, ..], Some(_)) => Err(self.pending.not_pending(second.shard)),
            _ => Ok(()),
        }
    }

    /// Returns the inputs of a forward pass: one of all shards if they run together. The context is that of the first one.
    pub(super) fn joined_inputs(
        &self,
        shards: Vec<ShardInput>,
    ) -> Result<Vec<(ShardInput, JoinedShards)>, EngineError> {
        for ShardInput { input, context } in &shards {
            self.check_input(input.shape(), context.mode)?;
        }
        let alone = |of: &ShardInput| (of.context.shard, of.input.samples());
        if !self.facts.joins_shards() || shards.len() < 2 {
            let each = shards.into_iter().map(|of| {
                let joined = JoinedShards::new([alone(&of)]);
                (of, joined)
            });
            return Ok(each.collect());
        }
        let joined = JoinedShards::new(shards.iter().map(alone));
        let context = shards[0].context;
        let device = self.device.as_ref();
        let inputs = shards.into_iter().map(|of| of.input.on_device(device));
        let input = Activation::together(device, inputs.collect());
        Ok(vec![(ShardInput { input, context }, joined)])
    }

    /// Returns the gradients of the outputs in a backward pass: one of all shards if they ran together.
    pub(super) fn joined_gradients(
        &self,
        shards: Vec<(Shard, Activation)>,
    ) -> Result<Vec<(Shard, Activation)>, EngineError> {
        let Some(first) = shards.first().map(|(shard, _)| *shard) else {
            return Ok(shards);
        };
        if !self.facts.joins_shards() {
            return Ok(shards);
        }
        let pending = self.pending.get(first)?;
        if pending.joined.shards().len() < 2 {
            return Ok(shards);
        }
        let numbers: Vec<Shard> = shards.iter().map(|(shard, _)| *shard).collect();
        if let Some(other) = pending.joined.first_other(&numbers) {
            return Err(self.pending.not_pending(other));
        }
        let device = self.device.as_ref();
        let gradients = shards.into_iter();
        let gradients = gradients.map(|(_, gradient)| gradient.on_device(device));
        let gradients: Vec<Activation> = gradients.collect();
        for (gradient, of) in gradients.iter().zip(pending.joined.shards()) {
            let mut expected = pending.output_shape.clone();
            expected[0] = of.samples.len();
            self.pending.check_gradient(gradient.shape(), &expected)?;
        }
        Ok(vec![(first, Activation::together(device, gradients))])
    }
}
