//! The only module of this crate that reads a clock: pages are updated every half second.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the current time of the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "a display decides when it draws; this is its only clock"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the seconds since 1970 of a file's time.
pub(crate) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

/// The time between two looks at the files.
pub(crate) const POLL: Duration = Duration::from_millis(500);

/// Sleeps until the next look at the files.
#[expect(
    clippy::disallowed_methods,
    reason = "a bounded pause between two looks at files"
)]
pub(crate) fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
