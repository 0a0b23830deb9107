//! The one place of this crate that reads the time and waits: how long others waited for data, or for a lock.

use std::time::{Duration, Instant, SystemTime};

/// A running measurement.
#[derive(Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring.
    #[expect(
        clippy::disallowed_methods,
        reason = "the loader owns the time that it makes others wait, and the index its patience"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Waits for something that tells nothing when it comes, as another process's lock.
#[expect(
    clippy::disallowed_methods,
    reason = "callers wait so a bounded count of times"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// The time of day, by which pages of a cache that were used lately are known.
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
