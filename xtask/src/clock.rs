//! Reads the time and waits, for all of this tool.

use std::time::{Duration, Instant, SystemTime};

/// A moment that only grows.
#[expect(clippy::disallowed_methods, reason = "the owner of time in this tool")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970, the time that events carry.
pub(crate) fn unix_s() -> f64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

#[expect(clippy::disallowed_methods, reason = "the owner of time in this tool")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
