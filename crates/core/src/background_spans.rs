//! [`BackgroundSpans`]: records the activity of the threads beside the computing one, as spans.
//!
//! These threads work for much longer than a lock takes, so they share one bounded list behind a lock. The computing thread has a
//! [`SpanRecorder`](crate::spans::SpanRecorder) of its own, which never waits.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::spans::{SpanClock, SpanKind, SpanStart, TimeSpan};

/// The largest number of spans that are kept until they are drained; 640 KiB.
const SPANS_MAX: usize = 1 << 14;

/// The recorder of the spans of the threads beside the computing one. While recording is off, a span costs one load.
#[derive(Debug)]
pub struct BackgroundSpans {
    clock: SpanClock,
    is_on: AtomicBool,
    recorded: Mutex<RecordedSpans>,
}

/// Recorded spans that are not drained.
#[derive(Debug, Default)]
struct RecordedSpans {
    spans: Vec<TimeSpan>,
    dropped: u64,
}

impl BackgroundSpans {
    /// The number of the first thread that loads samples of an evaluation; those for training have lower numbers.
    pub const EVALUATION_THREADS: u32 = 1 << 16;

    /// Creates a recorder that is off.
    #[must_use]
    pub fn new(clock: SpanClock) -> Self {
        Self {
            clock,
            is_on: AtomicBool::new(false),
            recorded: Mutex::default(),
        }
    }

    /// Returns a recorder for programs that record nothing.
    #[must_use]
    pub fn off() -> Self {
        Self::new(|| 0)
    }

    /// Starts or stops recording.
    pub fn switch(&self, is_on: bool) {
        self.is_on.store(is_on, Relaxed);
    }

    /// Begins a span.
    pub fn begin(&self) -> SpanStart {
        SpanStart::new(self.is_on.load(Relaxed).then(|| (self.clock)()))
    }

    /// Ends a span of a thread, by its number among those that do the same, and records it, unless recording was off at its
    /// begin.
    pub fn end(&self, start: SpanStart, kind: SpanKind, thread: u32, detail: u64) {
        let Some(begun_ns) = start.begun_ns() else {
            return;
        };
        let ended_ns = (self.clock)();
        let mut recorded = self.lock();
        if recorded.spans.len() >= SPANS_MAX {
            recorded.dropped += 1;
            return;
        }
        recorded.spans.push(TimeSpan {
            kind,
            thread,
            detail,
            begun_ns,
            ended_ns,
        });
    }

    /// Moves the recorded spans to `spans`, in the order of their ends. Returns the number of spans that were dropped since
    /// the last call.
    pub fn drain(&self, spans: &mut Vec<TimeSpan>) -> u64 {
        let mut recorded = self.lock();
        spans.append(&mut recorded.spans);
        std::mem::take(&mut recorded.dropped)
    }

    fn lock(&self) -> MutexGuard<'_, RecordedSpans> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    static NOW: AtomicU64 = AtomicU64::new(1);

    fn clock() -> u64 {
        NOW.fetch_add(1, Relaxed)
    }

    #[test]
    fn spans_of_all_threads_are_recorded_while_on() {
        let recorder = BackgroundSpans::new(clock);
        recorder.end(recorder.begin(), SpanKind::Fetch, 0, 1);
        recorder.switch(true);
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for detail in 0..100 {
                        recorder.end(recorder.begin(), SpanKind::Decode, thread, detail);
                    }
                });
            }
        });
        let mut spans = Vec::new();
        assert_eq!(recorder.drain(&mut spans), 0);
        assert_eq!(spans.len(), 400);
        assert!(spans.iter().all(|span| span.begun_ns < span.ended_ns));
        for thread in 0..4 {
            let of_thread = spans.iter().filter(|span| span.thread == thread);
            assert!(of_thread.map(|span| span.detail).eq(0..100));
        }
        recorder.switch(false);
        recorder.end(recorder.begin(), SpanKind::Fetch, 0, 1);
        spans.clear();
        assert_eq!((recorder.drain(&mut spans), spans.len()), (0, 0));
    }

    #[test]
    fn a_full_list_drops_and_counts() {
        let recorder = BackgroundSpans::new(clock);
        recorder.switch(true);
        for number in 0..SPANS_MAX as u64 + 7 {
            recorder.end(recorder.begin(), SpanKind::Decode, 0, number);
        }
        let mut spans = Vec::new();
        assert_eq!(recorder.drain(&mut spans), 7);
        assert_eq!(spans.len(), SPANS_MAX);
    }
}
