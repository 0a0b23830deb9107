//! [`Recomputed`]: a layer that keeps only its input between forward and backward.

use std::ops::Range;
use std::sync::Arc;

use ronde_core::layout::StateLayout;
use ronde_core::{PartTransfers, Shard};

use crate::activation::Activation;
use crate::context::{ForwardContext, Mode};
use crate::device::{Device, HostDevice};
use crate::error::EngineError;
use crate::graph::{BatchNormValues, KeptText, PartPlace, PassEnds, TokenShares};
use crate::layer::{Layer, LayerCost};
use crate::lock_step::{LockStep, ShardGradient, ShardInput, ShardSums};
use crate::precision::Precision;
use crate::shard_map::ShardMap;
use crate::shared_state::SharedState;

/// Activation checkpointing: the values that the inner layer would keep for backward are recomputed
/// from its input, which is kept in the format of the layer before. The bits are the same, because
/// all random numbers are keyed; the cost is a second forward pass.
///
/// [`Layer::load`] drops pending shards, because they could not be recomputed. Source: Chen, Xu,
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
    fn layout(&self) -> &StateLayout {
        self.inner.layout()
    }

    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        self.in_flight.clear();
        self.inner.load(state, ranges);
    }

    fn load_shared(&mut self, state: &SharedState, ranges: &[Range<usize>]) {
        if !std::mem::take(&mut self.is_suspended) {
            self.in_flight.clear();
        }
        self.inner.load_shared(state, ranges);
    }

    fn release_state(&mut self) {
        self.inner.release_state();
    }

    fn is_suspendable(&self) -> bool {
        self.inner.is_suspendable()
    }

    fn suspend_state(&mut self) {
        self.is_suspended = true;
        self.inner.suspend_state();
    }

    fn write_initial(&self, state: &mut [f32], ranges: &[Range<usize>]) -> bool {
        self.inner.write_initial(state, ranges)
    }

    fn is_initial(&self) -> bool {
        self.inner.is_initial()
    }

    fn save(&self, state: &mut [f32], ranges: &[Range<usize>]) {
        self.inner.save(state, ranges);
    }

    fn forward(
        &mut self,
        input: Activation,
        context: &ForwardContext,
    ) -> Result<Activation, EngineError> {
        if context.mode == Mode::Evaluate {
            return self.inner.forward(input, context);
        }
        let mut kept = (input.clone(), *context);
        let output = self.inner.forward(input, context)?;
        // Other shards may be between the halves of their backward pass.
        self.inner.discard_shard(context.shard);
        kept.0.drop_unpacked();
        self.in_flight.insert(context.shard, kept);
        Ok(output)
    }

    fn extend(
        &mut self,
        input: Activation,
        texts: &mut [&mut KeptText],
        layer: u32,
    ) -> Result<Activation, EngineError> {
        self.inner.extend(input, texts, layer)
    }

    fn backward(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        // The inner layer reports a shard that is not pending under its own name.
        if let Some(ShardInput { input, context }) = self.take_input(shard) {
            self.inner.forward(input, &context)?;
        }
        self.inner
            .backward(shard, grad_output, gradients, ranges, needs_input_gradient)
    }

    fn backward_input(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        if let Some(ShardInput { input, context }) = self.take_input(shard) {
            self.inner.forward(input, &context)?;
        }
        self.inner
            .backward_input(shard, grad_output, needs_input_gradient)
    }

    fn backward_weights(
        &mut self,
        shard: Shard,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError> {
        self.inner.backward_weights(shard, gradients, ranges)
    }

    fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.in_flight.clear();
        self.device = device.clone();
        self.inner.set_device(device);
    }

    fn set_precision(&mut self, precision: Precision) -> Result<(), EngineError> {
        self.in_flight.clear();
        self.inner.set_precision(precision)
    }

    fn parts(&self) -> u32 {
        self.inner.parts()
    }

    fn part_transfers(&self, input_shape: &[usize], ends: PassEnds) -> PartTransfers {
        let inner = self.inner.part_transfers(input_shape, ends);
        inner.with_recomputation()
    }

    fn input_tokens(&self) -> Option<TokenShares> {
        self.inner.input_tokens()
    }

    fn output_tokens(&self) -> Option<TokenShares> {
        self.inner.output_tokens()
    }

    fn output_parts(&self) -> Option<Vec<usize>> {
        self.inner.output_parts()
    }

    fn set_output_apart(&mut self, is_apart: bool) {
        self.inner.set_output_apart(is_apart);
    }

    fn set_parts(&mut self, place: &PartPlace) {
        self.in_flight.clear();
        self.own_parts = Some(place.own());
        self.inner.set_parts(place);
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn engine(&self) -> String {
        self.inner.engine()
    }

    /// Returns the cost of the inner layer with only its input kept, at most in f32. While one shard at a time is
    /// recomputed, it needs its full memory.
    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        let elements: usize = input_shape.iter().product();
        let kept_floats = match (self.input_tokens(), &self.own_parts) {
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

    fn has_tables(&self) -> bool {
        self.inner.has_tables()
    }

    fn discard(&mut self) {
        self.is_suspended = false;
        self.in_flight.clear();
        self.inner.discard();
    }

    fn discard_shard(&mut self, shard: Shard) {
        self.in_flight.remove(&shard);
        self.inner.discard_shard(shard);
    }

    fn batch_norms(&self) -> Vec<BatchNormValues> {
        self.inner.batch_norms()
    }

    fn in_lock_step(&mut self) -> Option<&mut dyn LockStep> {
        self.inner.in_lock_step()?;
        Some(self)
    }
}

impl LockStep for Recomputed {
    fn forward_shards(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let kept: Vec<(Activation, ForwardContext)> = shards
            .iter()
            .map(|shard| (shard.input.clone(), shard.context))
            .collect();
        let outputs = self.inner.forward_shards(shards, sums)?;
        self.inner.discard();
        for (mut input, context) in kept {
            input.drop_unpacked();
            self.in_flight.insert(context.shard, (input, context));
        }
        Ok(outputs)
    }

    /// The sums over all shards are computed again as well.
    fn backward_shards(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let kept = shards
            .iter()
            .filter_map(|given| self.take_input(given.shard))
            .collect();
        self.inner.forward_shards(kept, sums)?;
        self.inner
            .backward_shards(shards, ranges, needs_input_gradient, sums)
    }
}
