//! The only place of this crate that reads a clock: event files carry the time of day, plain
//! progress lines appear every few seconds.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Now, on the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a display owns the moments at which it draws; this is its one clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970; 0 when the clock stands before that.
pub(crate) fn unix_s() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// A short pause below a deadline.
#[expect(
    clippy::disallowed_methods,
    reason = "a bounded pause between two attempts below a deadline"
)]
pub(crate) fn pause(duration: std::time::Duration) {
    std::thread::sleep(duration);
}
