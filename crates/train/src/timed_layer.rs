//! [`TimedLayer`]: a layer that measures its passes.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ronde_core::layout::StateLayout;
use ronde_core::{PartTransfers, Shard};
use ronde_engine::{
    Activation, BatchNormValues, Device, EngineError, ForwardContext, KeptText, Layer, LayerCost,
    LockStep, PartPlace, PassEnds, Precision, ShardGradient, ShardInput, ShardSums, SharedState,
    TokenShares,
};

use crate::first_part::FirstPart;

/// The kind of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PassKind {
    Forward,
    Backward,
    BackwardInput,
    BackwardWeights,
}

/// The seconds of the passes of a layer, one value for each shard, by kind.
#[derive(Debug, Default)]
pub(crate) struct PassTimes([Mutex<Vec<f64>>; 4]);

impl PassTimes {
    fn record(&self, kind: PassKind, seconds: f64) {
        let mut times = self.0[kind as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        times.push(seconds);
    }

    /// Returns the times of the passes of a kind, and forgets them.
    pub(crate) fn take(&self, kind: PassKind) -> Vec<f64> {
        let mut times = self.0[kind as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut times)
    }
}

/// A layer that measures its passes; everything else is that of the inner layer.
pub(crate) struct TimedLayer {
    inner: Box<dyn Layer>,
    times: Arc<PassTimes>,
    /// If only the first part is computed.
    part: Option<FirstPart>,
}

impl TimedLayer {
    /// Wraps a layer, and returns where its times are written.
    pub(crate) fn new(inner: Box<dyn Layer>) -> (Self, Arc<PassTimes>) {
        let times = Arc::<PassTimes>::default();
        let layer = Self {
            inner,
            times: times.clone(),
            part: None,
        };
        (layer, times)
    }

    /// Computes the first part only, as if the others had zeros.
    pub(crate) fn with_first_part(mut self, part: FirstPart) -> Self {
        part.place(&mut *self.inner);
        self.part = Some(part);
        self
    }

    fn timed<T>(&mut self, kind: PassKind, pass: impl FnOnce(&mut dyn Layer) -> T) -> T {
        let begun = ronde_clock::seconds();
        let result = pass(&mut *self.inner);
        let exchanged_s = self.part.as_ref().map_or(0.0, FirstPart::take_exchanged_s);
        self.times
            .record(kind, ronde_clock::seconds() - begun - exchanged_s);
        result
    }

    /// Returns the gradient of the output that the inner layer has.
    fn own_gradient(&self, grad_output: Activation) -> Activation {
        match &self.part {
            Some(part) => part.own_output(grad_output),
            None => grad_output,
        }
    }

    /// Returns the places of the tensors that the inner layer computes with, and sets the gradients of other ones to zeros.
    fn own_ranges(&self, ranges: &[Range<usize>], gradients: &mut [f32]) -> Vec<Range<usize>> {
        match &self.part {
            Some(part) => part.own_ranges(self.inner.layout(), ranges, gradients),
            None => ranges.to_vec(),
        }
    }
}

impl Layer for TimedLayer {
    fn layout(&self) -> &StateLayout {
        self.inner.layout()
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn load(&mut self, state: &[f32], ranges: &[Range<usize>]) {
        self.inner.load(state, ranges);
    }

    fn load_shared(&mut self, state: &SharedState, ranges: &[Range<usize>]) {
        self.inner.load_shared(state, ranges);
    }

    fn release_state(&mut self) {
        self.inner.release_state();
    }

    fn is_suspendable(&self) -> bool {
        self.inner.is_suspendable()
    }

    fn suspend_state(&mut self) {
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
        let output = self.timed(PassKind::Forward, |layer| layer.forward(input, context))?;
        Ok(match &self.part {
            Some(part) => part.whole_output(output, context),
            None => output,
        })
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
        let grad_output = self.own_gradient(grad_output);
        let ranges = self.own_ranges(ranges, gradients);
        self.timed(PassKind::Backward, |layer| {
            layer.backward(shard, grad_output, gradients, &ranges, needs_input_gradient)
        })
    }

    fn backward_input(
        &mut self,
        shard: Shard,
        grad_output: Activation,
        needs_input_gradient: bool,
    ) -> Result<Option<Activation>, EngineError> {
        let grad_output = self.own_gradient(grad_output);
        self.timed(PassKind::BackwardInput, |layer| {
            layer.backward_input(shard, grad_output, needs_input_gradient)
        })
    }

    fn backward_weights(
        &mut self,
        shard: Shard,
        gradients: &mut [f32],
        ranges: &[Range<usize>],
    ) -> Result<(), EngineError> {
        let ranges = self.own_ranges(ranges, gradients);
        self.timed(PassKind::BackwardWeights, |layer| {
            layer.backward_weights(shard, gradients, &ranges)
        })
    }

    fn set_device(&mut self, device: &Arc<dyn Device>) {
        self.inner.set_device(device);
    }

    fn set_precision(&mut self, precision: Precision) -> Result<(), EngineError> {
        self.inner.set_precision(precision)
    }

    fn parts(&self) -> u32 {
        self.inner.parts()
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

    fn part_transfers(&self, input_shape: &[usize], ends: PassEnds) -> PartTransfers {
        self.inner.part_transfers(input_shape, ends)
    }

    fn set_output_apart(&mut self, is_apart: bool) {
        if self.part.is_none() {
            self.inner.set_output_apart(is_apart);
        }
    }

    fn set_parts(&mut self, place: &PartPlace) {
        match &self.part {
            Some(part) => part.place(&mut *self.inner),
            None => self.inner.set_parts(place),
        }
    }

    fn engine(&self) -> String {
        self.inner.engine()
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        self.inner.cost(input_shape)
    }

    fn work(&mut self, input_shape: &[usize], needs_input_gradient: bool) -> Option<f64> {
        self.inner.work(input_shape, needs_input_gradient)
    }

    fn has_tables(&self) -> bool {
        self.inner.has_tables()
    }

    fn discard(&mut self) {
        self.inner.discard();
    }

    fn discard_shard(&mut self, shard: Shard) {
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

impl LockStep for TimedLayer {
    fn forward_shards(
        &mut self,
        shards: Vec<ShardInput>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Activation>, EngineError> {
        let (count, begun) = (shards.len().max(1), ronde_clock::seconds());
        let outputs = self.inner.forward_shards(shards, sums);
        let each = (ronde_clock::seconds() - begun) / count as f64;
        self.times.record(PassKind::Forward, each);
        outputs
    }

    fn backward_shards(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        ranges: &[Range<usize>],
        needs_input_gradient: bool,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let (count, begun) = (shards.len().max(1), ronde_clock::seconds());
        let found = self
            .inner
            .backward_shards(shards, ranges, needs_input_gradient, sums);
        let each = (ronde_clock::seconds() - begun) / count as f64;
        self.times.record(PassKind::Backward, each);
        found
    }
}
