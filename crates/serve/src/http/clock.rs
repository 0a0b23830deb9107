//! The only module of the server that reads a clock or sleeps: batches and requests have limits of time.

use std::time::{Duration, Instant};

/// Returns the current time of the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a server has limits of time; this is its only clock"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Waits between two looks for a newer model.
#[expect(
    clippy::disallowed_methods,
    reason = "a thread of its own polls for newer models and for the end"
)]
pub(super) fn sleep(time: Duration) {
    std::thread::sleep(time);
}
