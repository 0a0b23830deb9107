//! [`Stopwatch`]: measures the time since its start.

use std::time::{Duration, Instant};

use crate::monotonic::now;

/// Measures the time since its start.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts at zero.
    #[must_use]
    pub fn start() -> Self {
        Self(now())
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Returns the seconds since the start.
    #[must_use]
    pub fn elapsed_s(&self) -> f64 {
        self.elapsed().as_secs_f64()
    }

    /// Returns the seconds since the start, and starts again.
    pub fn lap_s(&mut self) -> f64 {
        let now = now();
        let lap = now.duration_since(self.0);
        self.0 = now;
        lap.as_secs_f64()
    }
}
