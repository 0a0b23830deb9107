//! [`Recomputed`]: a layer that keeps only its input between forward and backward.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::{PartTransfers, Shard};

use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::device::{Device, HostDevice};
use crate::error::EngineError;
use crate::graph::{KeptText, PassEnds};
use crate::layer::{
    BackwardPart, BackwardPass, DiscardedShards, Layer, LayerCost, LayerExt, LayerFacts,
    LayerSetting, SavedValues, StateChange,
};
use crate::lock_step::{ShardGradient, ShardInput, ShardSums};
use crate::shard_map::ShardMap;

/// Activation checkpointing: the values that the inner layer would keep for backward are recomputed
/// from its input, which is kept in the format of the layer before. The bits are the same, because
/// all random numbers are keyed; the cost is a second forward pass.
///
/// Loading another state drops pending shards, because they could not be recomputed. Source: Chen, Xu,
/// Zhang, Guestrin, arXiv:1604.06174, section 3.
pub struct Recomputed {
    inner: Box<dyn Layer>,
    device: Arc<dyn Device>,
    in_flight: ShardMap<(Activation, ForwardContext)>,
    /// The parts that this process computes; `None` for all.
    own_parts: Option<Range<u32>>,
    /// Whether the next state is the same as the one before.
    is_suspended: bool,
}

impl Recomputed {
    /// Wraps a layer.
    #[must_use]
    pub fn new(inner: Box<dyn Layer>) -> Self {
        Self::on_device(inner, Arc::new(HostDevice::new()))
    }

    /// Wraps a layer that computes on a device.
    pub(crate) fn on_device(inner: Box<dyn Layer>, device: Arc<dyn Device>) -> Self {
        Self {
            inner,
            device,
            in_flight: ShardMap::new(),
            own_parts: None,
            is_suspended: false,
        }
    }

    /// Removes and returns the input of a pending shard, as the inner layer got it.
    fn take_input(&mut self, shard: Shard) -> Option<ShardInput> {
        let (mut input, context) = self.in_flight.remove(&shard)?;
        input.unpack(self.device.as_ref());
        Some(ShardInput { input, context })
    }
}

impl Layer for Recomputed {
    fn facts(&self) -> &LayerFacts {
        self.inner.facts()
    }

    fn set(&mut self, setting: LayerSetting<'_>) {
        match setting {
            LayerSetting::Device(device) => self.device = device.clone(),
            LayerSetting::Parts(place) => self.own_parts = Some(place.own()),
            LayerSetting::Precision(_) | LayerSetting::OutputApart(_) => {}
        }
        if !matches!(setting, LayerSetting::OutputApart(_)) {
            self.in_flight.clear();
        }
        self.inner.set(setting);
    }

    fn state(&mut self, change: StateChange<'_>) {
        match change {
            StateChange::Load(..) if !std::mem::take(&mut self.is_suspended) => {
                self.in_flight.clear();
            }
            StateChange::Suspend => self.is_suspended = true,
            StateChange::Load(..) | StateChange::Release => {}
        }
        self.inner.state(change);
    }

    fn save(&self, which: SavedValues, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        self.inner.save(which, state, ranges)
    }

    fn is_initial(&self) -> bool {
        self.inner.is_initial()
    }

    fn forward(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let trains = |shard: &&ShardInput| shard.context.mode == Mode::Train;
        let kept = shards.iter().filter(trains);
        let kept: Vec<(Activation, ForwardContext)> = kept
            .map(|shard| (shard.input.clone(), shard.context))
            .collect();
        let outputs = self.inner.forward(shards, sums)?;
        for (mut input, context) in kept {
            // Other shards may be between the halves of their backward pass.
            self.inner.discard_shard(context.shard);
            input.drop_unpacked();
            self.in_flight.insert(context.shard, (input, context));
        }
        Ok(outputs)
    }

    /// The sums over all shards are computed again as well.
    fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        if pass.part == BackwardPart::Weights {
            return self.inner.backward(shards, pass, sums);
        }
        let again = |layer: &mut Self, given: &[ShardGradient<'_>], sums: &mut dyn ShardSums| {
            // The inner layer reports a shard that is not pending under its own name.
            let shards = given.iter().flat_map(|given| {
                let added = given.added.iter().map(|(shard, _)| *shard);
                std::iter::once(given.shard).chain(added)
            });
            let inputs = shards.filter_map(|shard| layer.take_input(shard));
            let inputs = inputs.collect();
            layer.inner.forward(inputs, sums)
        };
        if self.facts().needs_all_shards() || self.facts().joins_shards() {
            again(self, &shards, sums)?;
            return self.inner.backward(shards, pass, sums);
        }
        // One after the other, so that the values of one shard are in memory.
        let mut found = Vec::with_capacity(shards.len());
        for given in shards {
            let given = vec![given];
            again(self, &given, sums)?;
            found.extend(self.inner.backward(given, pass, sums)?);
        }
        Ok(found)
    }

    fn extend(
        &mut self,
        input: Activation,
        texts: &mut [&mut KeptText],
        layer: u32,
    ) -> Result<Activation, EngineError> {
        self.inner.extend(input, texts, layer)
    }

    fn discard(&mut self, which: DiscardedShards) {
        match which {
            DiscardedShards::All => {
                self.is_suspended = false;
                self.in_flight.clear();
            }
            DiscardedShards::One(shard) => drop(self.in_flight.remove(&shard)),
        }
        self.inner.discard(which);
    }

    /// Returns the cost of the inner layer with only its input kept, at most in f32. While one shard at a time is
    /// recomputed, it needs its full memory.
    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        let elements: usize = input_shape.iter().product();
        let kept_floats = match (&self.facts().input_tokens, &self.own_parts) {
            (Some(tokens), Some(own)) => elements / tokens.all().max(1) * tokens.of(own),
            _ => elements,
        };
        LayerCost {
            kept_floats,
            ..self.inner.cost(input_shape)
        }
    }

    fn work(&mut self, input_shape: &[usize], needs_input_gradient: bool) -> Option<f64> {
        self.inner.work(input_shape, needs_input_gradient)
    }

    fn part_transfers(&self, input_shape: &[usize], ends: PassEnds) -> PartTransfers {
        let inner = self.inner.part_transfers(input_shape, ends);
        inner.with_recomputation()
    }
}
