//! Limits of the waits for a lock and for a service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ronde_clock::Stopwatch;

/// A wait with a time limit.
pub(crate) struct Deadline {
    start: Stopwatch,
    limit: Duration,
    pause: Duration,
}

impl Deadline {
    /// Starts waiting now, for at most `limit`.
    pub(crate) fn after(limit: Duration) -> Self {
        Self {
            start: Stopwatch::start(),
            limit,
            pause: Duration::from_micros(200),
        }
    }

    /// Returns the seconds waited so far.
    pub(crate) fn waited_s(&self) -> f64 {
        self.start.elapsed_s()
    }

    /// Pauses, longer each time up to 20 ms; returns false when the limit has passed.
    pub(crate) fn pause(&mut self) -> bool {
        if self.start.elapsed() >= self.limit {
            return false;
        }
        ronde_clock::pause(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_millis(20));
        true
    }
}

/// The time that an operation may take without progress, over all its attempts.
pub(crate) struct RetryLimit {
    /// The start of the operation, or the last time that something was received or sent.
    since: Stopwatch,
    limit: Duration,
    pause: Duration,
    /// The number of chunks or entries received or sent by the current requests.
    received: Arc<AtomicU64>,
    received_before: u64,
    /// The number of pauses so far.
    pub(crate) pauses: u32,
}

impl RetryLimit {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    /// Starts an operation that may take `limit` without progress, which increments the counter.
    pub(crate) fn new(limit: Duration, progress: Arc<AtomicU64>) -> Self {
        Self {
            since: Stopwatch::start(),
            limit,
            pause: Self::FIRST,
            received_before: progress.load(Ordering::Relaxed),
            received: progress,
            pauses: 0,
        }
    }

    /// Returns the counter that a request increments when it receives something.
    #[cfg(feature = "full")]
    pub(crate) fn received(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }

    /// Restarts the limit if something was received since the last call; returns the seconds
    /// without anything received.
    pub(crate) fn silent_s(&mut self) -> f64 {
        let received = self.received.load(Ordering::Relaxed);
        if received != self.received_before {
            self.received_before = received;
            self.since = Stopwatch::start();
            self.pause = Self::FIRST;
        }
        self.since.elapsed_s()
    }

    /// Pauses, twice as long each time up to 5 s, but no longer than the remaining time; returns
    /// false when no time is left. `share` (0 to 1) shortens the pause by up to a half, so that
    /// waiting readers do not all retry at once.
    pub(crate) fn pause(&mut self, share: f64) -> bool {
        let silent = Duration::from_secs_f64(self.silent_s());
        let left = self.limit.saturating_sub(silent);
        if left.is_zero() {
            return false;
        }
        let pause = self.pause.mul_f64(1.0 - share.clamp(0.0, 1.0) / 2.0);
        ronde_clock::pause(pause.min(left));
        self.pause = (self.pause * 2).min(Self::LONGEST);
        self.pauses += 1;
        true
    }
}
