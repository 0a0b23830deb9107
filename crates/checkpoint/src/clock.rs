//! Time measurement for this crate; no other module reads the clock.

use std::time::Instant;

/// A timer for the phases of a save.
pub(crate) struct SaveTimer(Instant);

impl SaveTimer {
    /// Starts measuring.
    #[expect(
        clippy::disallowed_methods,
        reason = "a saver reports how long it blocked training"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the seconds since the start.
    pub(crate) fn elapsed_s(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
