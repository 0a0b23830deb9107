//! Reading of the time: limits for waiting for a lock and for a service. No other file of this
//! crate reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A wait with a time limit.
pub(crate) struct Deadline {
    start: Instant,
    limit: Duration,
    pause: Duration,
}

impl Deadline {
    /// Starts waiting now, for at most `limit`.
    #[expect(
        clippy::disallowed_methods,
        reason = "this module owns the wait for a lock"
    )]
    pub(crate) fn after(limit: Duration) -> Self {
        Self {
            start: Instant::now(),
            limit,
            pause: Duration::from_micros(200),
        }
    }

    /// Returns the seconds waited so far.
    pub(crate) fn waited_s(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Pauses, longer each time up to 20 ms; returns false when the limit has passed.
    #[expect(
        clippy::disallowed_methods,
        reason = "this module owns the wait for a lock"
    )]
    pub(crate) fn pause(&mut self) -> bool {
        if self.start.elapsed() >= self.limit {
            return false;
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_millis(20));
        true
    }
}

/// The time that an operation may take without progress, over all its attempts.
pub(crate) struct RetryLimit {
    /// The start of the operation, or the last time that something was received or sent.
    since: Instant,
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
    #[expect(
        clippy::disallowed_methods,
        reason = "this module owns the wait for a service"
    )]
    pub(crate) fn new(limit: Duration, progress: Arc<AtomicU64>) -> Self {
        Self {
            since: Instant::now(),
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
    #[expect(
        clippy::disallowed_methods,
        reason = "this module owns the wait for a service"
    )]
    pub(crate) fn silent_s(&mut self) -> f64 {
        let received = self.received.load(Ordering::Relaxed);
        if received != self.received_before {
            self.received_before = received;
            self.since = Instant::now();
            self.pause = Self::FIRST;
        }
        self.since.elapsed().as_secs_f64()
    }

    /// Pauses, twice as long each time up to 5 s, but no longer than the remaining time; returns
    /// false when no time is left. `share` (0 to 1) shortens the pause by up to a half, so that
    /// waiting readers do not all retry at once.
    #[expect(
        clippy::disallowed_methods,
        reason = "this module owns the wait for a service"
    )]
    pub(crate) fn pause(&mut self, share: f64) -> bool {
        let silent = Duration::from_secs_f64(self.silent_s());
        let left = self.limit.saturating_sub(silent);
        if left.is_zero() {
            return false;
        }
        let pause = self.pause.mul_f64(1.0 - share.clamp(0.0, 1.0) / 2.0);
        std::thread::sleep(pause.min(left));
        self.pause = (self.pause * 2).min(Self::LONGEST);
        self.pauses += 1;
        true
    }
}
