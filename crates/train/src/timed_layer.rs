//! [`TimedLayer`]: a layer that measures its passes.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ronde_core::PartTransfers;
use ronde_engine::{
    Activation, BackwardPart, BackwardPass, DiscardedShards, EngineError, KeptText, Layer,
    LayerCost, LayerExt, LayerFacts, LayerSetting, PassEnds, SavedValues, ShardGradient,
    ShardInput, ShardSums, StateChange,
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

    /// Runs a pass of some shards, and records the time of each.
    fn timed<T>(
        &mut self,
        kind: PassKind,
        shards: usize,
        pass: impl FnOnce(&mut dyn Layer) -> T,
    ) -> T {
        let begun = ronde_clock::seconds();
        let result = pass(&mut *self.inner);
        let exchanged_s = self.part.as_ref().map_or(0.0, FirstPart::take_exchanged_s);
        let took = ronde_clock::seconds() - begun - exchanged_s;
        self.times.record(kind, took / shards.max(1) as f64);
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
    fn facts(&self) -> &LayerFacts {
        self.inner.facts()
    }

    fn set(&mut self, setting: LayerSetting<'_>) {
        match (&self.part, setting) {
            (Some(part), LayerSetting::Parts(_)) => part.place(&mut *self.inner),
            (Some(_), LayerSetting::OutputApart(_)) => {}
            _ => self.inner.set(setting),
        }
    }

    fn state(&mut self, change: StateChange<'_>) {
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
        let contexts: Vec<_> = shards.iter().map(|shard| shard.context).collect();
        let outputs = self.timed(PassKind::Forward, contexts.len(), |layer| {
            layer.forward(shards, sums)
        })?;
        Ok(match &self.part {
            Some(part) => {
                let outputs = outputs.into_iter().zip(&contexts);
                outputs
                    .map(|(output, context)| part.whole_output(output, context))
                    .collect()
            }
            None => outputs,
        })
    }

    fn backward(
        &mut self,
        shards: Vec<ShardGradient<'_>>,
        pass: BackwardPass<'_>,
        sums: &mut dyn ShardSums,
    ) -> Result<Vec<Option<Activation>>, EngineError> {
        let kind = match pass.part {
            BackwardPart::Whole => PassKind::Backward,
            BackwardPart::Input => PassKind::BackwardInput,
            BackwardPart::Weights => PassKind::BackwardWeights,
        };
        let mut ranges = pass.ranges.to_vec();
        let mut given = Vec::with_capacity(shards.len());
        let mut count = 0;
        for mut shard in shards {
            count += 1 + shard.added.len();
            if pass.part != BackwardPart::Weights {
                shard.grad_output = self.own_gradient(shard.grad_output);
                let added = shard.added.into_iter();
                let added = added.map(|(added, gradient)| (added, self.own_gradient(gradient)));
                shard.added = added.collect();
            }
            if pass.part != BackwardPart::Input {
                ranges = self.own_ranges(pass.ranges, shard.gradients);
            }
            given.push(shard);
        }
        let pass = BackwardPass {
            ranges: &ranges,
            ..pass
        };
        self.timed(kind, count, |layer| layer.backward(given, pass, sums))
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
        self.inner.discard(which);
    }

    fn cost(&self, input_shape: &[usize]) -> LayerCost {
        self.inner.cost(input_shape)
    }

    fn work(&mut self, input_shape: &[usize], needs_input_gradient: bool) -> Option<f64> {
        self.inner.work(input_shape, needs_input_gradient)
    }

    fn part_transfers(&self, input_shape: &[usize], ends: PassEnds) -> PartTransfers {
        self.inner.part_transfers(input_shape, ends)
    }
}
