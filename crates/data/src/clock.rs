//! Time measurement and sleeping for this crate; no other module reads the clock.

use std::time::{Duration, Instant, SystemTime};

/// A timer.
#[derive(Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring.
    #[expect(
        clippy::disallowed_methods,
        reason = "the loader measures how long training waits, and the index limits its waits"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Sleeps while waiting for something without notification, such as another process's lock.
#[expect(
    clippy::disallowed_methods,
    reason = "callers limit the number of calls"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Returns the wall-clock time, which orders the pages of a cache by last use.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
