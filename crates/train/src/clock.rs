//! The only module of this crate that reads the clock.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

/// Measures consecutive periods of time.
#[derive(Debug, Clone, Copy)]
pub struct LapTimer(Instant);

impl LapTimer {
    /// Starts a stopwatch.
    #[must_use]
    pub fn start() -> Self {
        Self(now())
    }

    /// Returns the seconds since the start or the last lap.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        (now() - self.0).as_secs_f64()
    }

    /// Returns the seconds since the start or the last lap, and starts the next lap.
    pub fn lap_s(&mut self) -> f64 {
        let now = now();
        let seconds = (now - self.0).as_secs_f64();
        self.0 = now;
        seconds
    }
}

/// Returns the seconds of a monotonic clock; only differences are meaningful.
pub(crate) fn seconds() -> f64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    let now = now();
    (now - *BEGUN.get_or_init(|| now)).as_secs_f64()
}

#[expect(
    clippy::disallowed_methods,
    reason = "this module owns the time of a step"
)]
fn now() -> Instant {
    Instant::now()
}

/// Returns the Unix time in milliseconds; 0 if the clock is set before 1970.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
