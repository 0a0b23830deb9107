//! The only module of this crate that reads the clock; state machines receive the time as an argument.

use std::time::{Duration, Instant};

/// The clock of one node: time since its start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeClock(Instant);

impl NodeClock {
    /// Starts at zero.
    #[expect(
        clippy::disallowed_methods,
        reason = "deadlines of calls and leases are owned here"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start.
    pub(crate) fn now(self) -> Duration {
        self.0.elapsed()
    }
}
