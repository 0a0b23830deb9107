//! The only module of this crate that reads the clock or sleeps: waits for processes and hosts have deadlines.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Returns the current time of the monotonic clock.
#[expect(
    clippy::disallowed_methods,
    reason = "waits for processes and hosts own their deadlines; this is their one clock"
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

/// Returns the milliseconds since 1970, or 0 when the clock is set to an earlier date.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Waits until `is_done` returns true, and returns false if it does not within `limit`.
pub(crate) fn wait_until(limit: Duration, is_done: impl FnMut() -> bool) -> bool {
    wait_until_every(limit, Duration::from_millis(10), is_done)
}

/// Does the same, and looks once in each interval.
pub(crate) fn wait_until_every(
    limit: Duration,
    every: Duration,
    mut is_done: impl FnMut() -> bool,
) -> bool {
    let deadline = now() + limit;
    loop {
        if is_done() {
            return true;
        }
        if now() >= deadline {
            return false;
        }
        pause(every);
    }
}
