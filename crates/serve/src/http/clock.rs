//! The only module of the server that reads a clock: batches and requests have limits of time.

use std::time::Instant;

/// Returns the current time of the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a server has limits of time; this is its only clock"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}
