//! [`StepTimer`]: the times and the spans of the thread that computes.

use std::sync::Arc;

use ronde_core::spans::{SpanKind, SpanRecorder, SpanStart};

/// The computing times of a step so far.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ComputeTimes {
    /// The seconds of the forward pass and the loss.
    pub forward_s: f64,
    /// The seconds of the backward pass, including adding shards and starting reductions.
    pub backward_s: f64,
    /// The part of both in which this rank waited for sums over all ranks.
    pub waited_s: f64,
}

/// A monotonic clock that returns seconds.
pub type ComputeClock = fn() -> f64;

/// Measures and records the work of the computing thread.
#[derive(Default)]
pub(crate) struct StepTimer {
    pub(super) clock: Option<ComputeClock>,
    pub(super) recorder: Option<Arc<SpanRecorder>>,
    pub(crate) times: ComputeTimes,
}

impl StepTimer {
    pub(super) fn now(&self) -> f64 {
        self.clock.map_or(0.0, |clock| clock())
    }

    /// Adds the time since `start_s` to the time in which this rank waited.
    pub(super) fn waited_since(&mut self, start_s: f64) {
        self.times.waited_s += self.now() - start_s;
    }

    pub(super) fn begin_span(&self) -> Option<SpanStart> {
        self.recorder.as_ref().map(|recorder| recorder.begin())
    }

    pub(super) fn end_span(&self, start: Option<SpanStart>, kind: SpanKind, detail: u64) {
        if let (Some(recorder), Some(start)) = (&self.recorder, start) {
            recorder.end(start, kind, detail);
        }
    }
}
