//! The one place of this crate that reads the time: what a save costs.

use std::time::Instant;

/// A running measurement.
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts measuring.
    #[expect(
        clippy::disallowed_methods,
        reason = "a saver tells what it held training up for"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Seconds since the start.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
