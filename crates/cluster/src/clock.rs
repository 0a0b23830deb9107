//! The only place of this crate that reads the clock or sleeps: supervision owns its deadlines.

use std::time::{Duration, Instant, SystemTime};

/// Now, on the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "supervision owns its deadlines; this is its one clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Waits; only ever in short pieces below a deadline.
#[expect(
    clippy::disallowed_methods,
    reason = "a bounded pause between two attempts below a deadline"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}

/// Seconds since 1970 by the clock on the wall, for what people read and for certificates.
pub(crate) fn today() -> SystemTime {
    SystemTime::now()
}

/// Milliseconds since 1970.
pub(crate) fn unix_ms() -> u64 {
    let since = today().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
