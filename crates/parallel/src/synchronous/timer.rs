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

/// Measures how long a rank waits for others in a round.
pub(crate) struct WaitTimer {
    clock: ComputeClock,
    waited_s: f64,
}

impl WaitTimer {
    pub(crate) fn new(clock: ComputeClock) -> Self {
        let waited_s = 0.0;
        Self { clock, waited_s }
    }

    pub(crate) fn clock(&self) -> ComputeClock {
        self.clock
    }

    pub(crate) fn now_s(&self) -> f64 {
        (self.clock)()
    }

    /// Waits, and adds the time.
    pub(crate) fn time<T>(&mut self, wait: impl FnOnce() -> T) -> T {
        let begun = self.now_s();
        let ended = wait();
        self.waited_s += self.now_s() - begun;
        ended
    }

    /// Returns the seconds since the last call.
    pub(crate) fn take_s(&mut self) -> f64 {
        std::mem::take(&mut self.waited_s)
    }
}

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
