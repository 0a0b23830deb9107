//! The one place of this crate that asks for the time: where a step's time goes is measured here.

use std::sync::OnceLock;
use std::time::{Instant, SystemTime};

/// Measures one stretch of time after another.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Self {
        Self(now())
    }

    /// Seconds since the start or the last lap.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        (now() - self.0).as_secs_f64()
    }

    /// Seconds since the start or the last lap; starts the next lap.
    pub fn lap_s(&mut self) -> f64 {
        let now = now();
        let seconds = (now - self.0).as_secs_f64();
        self.0 = now;
        seconds
    }
}

/// Seconds on a clock that only goes forward; only differences mean something.
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

/// The time of day, in milliseconds since 1970; 0 for a clock that is set before that.
pub(crate) fn unix_ms() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_millis() as u64)
}
