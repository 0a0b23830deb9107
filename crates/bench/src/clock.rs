//! Reading of the clocks: measured times, deadlines of starting processes, and the date. No other
//! file of this crate reads them.

use std::time::{Duration, Instant, SystemTime};

/// Returns the current instant.
#[expect(clippy::disallowed_methods, reason = "this crate measures time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the date, for certificates and reports.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Sleeps between two polls of a process.
#[expect(
    clippy::disallowed_methods,
    reason = "a starting process is polled until its deadline"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
