//! The only module of this crate that reads the clock or sleeps: supervision owns its deadlines.

use std::time::{Duration, Instant, SystemTime};

/// Returns the current time of the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "supervision owns its deadlines; this is its one clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Sleeps; used only for short pauses below a deadline.
#[expect(
    clippy::disallowed_methods,
    reason = "a bounded pause between two attempts below a deadline"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Returns the wall-clock time, for display and for certificates.
pub(crate) fn today() -> SystemTime {
    SystemTime::now()
}

/// Returns the milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = today().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
