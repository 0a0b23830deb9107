//! The only module of this crate that reads a clock: event files contain the time of day, and plain
//! progress lines are printed every few seconds.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Returns the current time of the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a display decides when it draws; this is its only clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the seconds since 1970, or 0 when the clock is set to an earlier date.
pub(crate) fn unix_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// Sleeps for a short time within a deadline.
#[expect(
    clippy::disallowed_methods,
    reason = "a bounded pause between two attempts within a deadline"
)]
pub(crate) fn pause(duration: std::time::Duration) {
    std::thread::sleep(duration);
}
