//! [`SpanRecorder`]: records the activity of a thread, as spans of time, without a lock and without waiting.
//!
//! One thread records and another one drains: a ring of atomic numbers between them. When the ring is full, spans are dropped
//! and counted. While recording is off, a span costs one load.

use std::sync::OnceLock;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

/// Number of spans that are kept until they are drained; 512 KiB, allocated when recording starts.
const SPANS: usize = 1 << 14;

/// The activity of a thread during a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpanKind {
    /// A step up to the end of the optimizer; the detail is its number.
    Step,
    /// Waiting for the loader.
    Data,
    /// The forward pass and the loss of a shard, the detail; in lock step of all shards.
    Forward,
    /// The backward pass of the layers of a bucket, the detail, and the sum over the rank's shards.
    Backward,
    /// Waiting for the gradient reductions.
    Reduce,
    /// The vote.
    Vote,
    /// The optimizer and the hash of the weights.
    Optimizer,
    /// An evaluation.
    Evaluation,
    /// Copying the state for a checkpoint, and waiting for its end if training waits.
    Checkpoint,
    /// Copying the state from other workers, or waiting for those that do.
    CatchUp,
    /// A collective; the detail is the number of bytes of this rank's buffer.
    Collective,
    /// Waiting for the values or gradients of a shard, the detail, from another stage of a pipeline.
    Border,
    /// The loader reads samples into memory; the detail is their number.
    Fetch,
    /// The loader decodes the batch of a shard, the detail.
    Decode,
    /// Hashing and writing this rank's share of a checkpoint; the detail is the number of steps.
    WriteCheckpoint,
    /// Publishing a checkpoint and removing old ones; the detail is the number of steps.
    PublishCheckpoint,
}

impl SpanKind {
    /// All kinds; the position of each one is its number in recordings.
    pub const ALL: [Self; 16] = [
        Self::Step,
        Self::Data,
        Self::Forward,
        Self::Backward,
        Self::Reduce,
        Self::Vote,
        Self::Optimizer,
        Self::Evaluation,
        Self::Checkpoint,
        Self::CatchUp,
        Self::Collective,
        Self::Border,
        Self::Fetch,
        Self::Decode,
        Self::WriteCheckpoint,
        Self::PublishCheckpoint,
    ];

    /// Returns the number of the kind in recordings.
    #[must_use]
    pub fn number(self) -> u64 {
        self as u64
    }

    /// Returns the kind of a number.
    #[must_use]
    pub fn of_number(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the name that a timeline shows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::Data => "wait for data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Reduce => "wait for reduction",
            Self::Vote => "vote",
            Self::Optimizer => "optimizer",
            Self::Evaluation => "evaluation",
            Self::Checkpoint => "checkpoint",
            Self::CatchUp => "catch up",
            Self::Collective => "collective",
            Self::Border => "wait for another stage",
            Self::Fetch => "fetch",
            Self::Decode => "decode",
            Self::WriteCheckpoint => "write checkpoint",
            Self::PublishCheckpoint => "publish checkpoint",
        }
    }
}

/// A span of time on the monotonic clock of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeSpan {
    /// The activity of the thread.
    pub kind: SpanKind,
    /// The number of the thread among those that do the same, from 0.
    pub thread: u32,
    /// A number whose meaning depends on the kind.
    pub detail: u64,
    /// The begin in nanoseconds.
    pub begun_ns: u64,
    /// The end in nanoseconds.
    pub ended_ns: u64,
}

/// The begin of a span; nothing while recording is off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a span is recorded at its end"]
pub struct SpanStart(Option<u64>);

impl SpanStart {
    pub(crate) fn new(begun_ns: Option<u64>) -> Self {
        Self(begun_ns)
    }

    pub(crate) fn begun_ns(self) -> Option<u64> {
        self.0
    }
}

/// A monotonic clock of the host that returns nanoseconds.
pub type SpanClock = fn() -> u64;

#[derive(Debug, Default)]
struct SpanSlot {
    kind: AtomicU64,
    detail: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
}

/// The recorder of one thread's spans.
#[derive(Debug)]
pub struct SpanRecorder {
    clock: SpanClock,
    is_on: AtomicBool,
    slots: OnceLock<Vec<SpanSlot>>,
    /// Numbers of spans: recorded, drained, dropped.
    recorded: AtomicU64,
    drained: AtomicU64,
    dropped: AtomicU64,
}

impl SpanRecorder {
    /// Creates a recorder that is off.
    #[must_use]
    pub fn new(clock: SpanClock) -> Self {
        Self {
            clock,
            is_on: AtomicBool::new(false),
            slots: OnceLock::new(),
            recorded: AtomicU64::new(0),
            drained: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Starts or stops recording. Called by the thread that drains.
    pub fn switch(&self, is_on: bool) {
        if is_on {
            self.slots
                .get_or_init(|| (0..SPANS).map(|_| SpanSlot::default()).collect());
        }
        self.is_on.store(is_on, Release);
    }

    /// Begins a span.
    pub fn begin(&self) -> SpanStart {
        SpanStart(self.is_on.load(Relaxed).then(|| (self.clock)()))
    }

    /// Ends a span and records it, unless recording was off at its begin. Called by one thread.
    pub fn end(&self, start: SpanStart, kind: SpanKind, detail: u64) {
        let Some(begun_ns) = start.0 else { return };
        // Makes the slots visible.
        if !self.is_on.load(Acquire) {
            return;
        }
        let Some(slots) = self.slots.get() else {
            return;
        };
        let recorded = self.recorded.load(Relaxed);
        if recorded - self.drained.load(Acquire) >= slots.len() as u64 {
            self.dropped.fetch_add(1, Relaxed);
            return;
        }
        let slot = &slots[recorded as usize % slots.len()];
        slot.kind.store(kind.number(), Relaxed);
        slot.detail.store(detail, Relaxed);
        slot.begun.store(begun_ns, Relaxed);
        slot.ended.store((self.clock)(), Relaxed);
        self.recorded.store(recorded + 1, Release);
    }

    /// Moves the recorded spans to `spans`, in the order of their ends. Returns the number of spans that were dropped since
    /// the last call. Called by one thread.
    pub fn drain(&self, spans: &mut Vec<TimeSpan>) -> u64 {
        if let Some(slots) = self.slots.get() {
            let (from, to) = (self.drained.load(Relaxed), self.recorded.load(Acquire));
            for number in from..to {
                let slot = &slots[number as usize % slots.len()];
                spans.extend(
                    SpanKind::of_number(slot.kind.load(Relaxed)).map(|kind| TimeSpan {
                        kind,
                        thread: 0,
                        detail: slot.detail.load(Relaxed),
                        begun_ns: slot.begun.load(Relaxed),
                        ended_ns: slot.ended.load(Relaxed),
                    }),
                );
            }
            self.drained.store(to, Release);
        }
        self.dropped.swap(0, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NOW: AtomicU64 = AtomicU64::new(1);

    fn clock() -> u64 {
        NOW.fetch_add(1, Relaxed)
    }

    #[test]
    fn kinds_have_the_numbers_of_their_positions() {
        for (number, kind) in SpanKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.number(), number as u64);
            assert_eq!(SpanKind::of_number(number as u64), Some(kind));
        }
        assert_eq!(SpanKind::of_number(u64::MAX), None);
    }

    #[test]
    fn nothing_is_recorded_while_off_and_spans_are_kept_in_order_while_on() {
        let recorder = SpanRecorder::new(clock);
        recorder.end(recorder.begin(), SpanKind::Step, 1);
        let mut spans = Vec::new();
        assert_eq!(recorder.drain(&mut spans), 0);
        assert_eq!(spans, []);
        recorder.switch(true);
        let outer = recorder.begin();
        recorder.end(recorder.begin(), SpanKind::Forward, 7);
        recorder.end(outer, SpanKind::Step, 2);
        let begun_while_on = recorder.begin();
        recorder.switch(false);
        recorder.end(begun_while_on, SpanKind::Step, 3);
        assert_eq!(recorder.drain(&mut spans), 0);
        let [inner, outer] = spans[..] else {
            panic!("{spans:?}");
        };
        assert_eq!((inner.kind, inner.detail), (SpanKind::Forward, 7));
        assert!(outer.begun_ns < inner.begun_ns && inner.ended_ns < outer.ended_ns);
    }

    #[test]
    fn a_full_ring_drops_and_counts() {
        let recorder = SpanRecorder::new(clock);
        recorder.switch(true);
        let mut spans = Vec::new();
        for round in 0..3 {
            for number in 0..SPANS as u64 + 10 {
                recorder.end(recorder.begin(), SpanKind::Data, number);
            }
            spans.clear();
            assert_eq!(recorder.drain(&mut spans), 10, "round {round}");
            assert_eq!(spans.len(), SPANS);
            assert!(spans.iter().map(|span| span.detail).eq(0..SPANS as u64));
        }
    }

    #[test]
    fn two_threads_lose_nothing_that_is_not_counted() {
        const ALL: u64 = 200_000;
        let recorder = SpanRecorder::new(clock);
        recorder.switch(true);
        let (mut spans, mut dropped) = (Vec::new(), 0);
        std::thread::scope(|scope| {
            let recording = scope.spawn(|| {
                for number in 0..ALL {
                    recorder.end(recorder.begin(), SpanKind::Data, number);
                }
            });
            while !recording.is_finished() {
                dropped += recorder.drain(&mut spans);
            }
        });
        dropped += recorder.drain(&mut spans);
        assert_eq!(spans.len() as u64 + dropped, ALL);
        assert!(spans.is_sorted_by(|a, b| a.detail < b.detail && a.ended_ns < b.ended_ns));
    }
}
