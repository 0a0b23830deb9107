//! The only reader of the clocks in this crate: what is measured, deadlines of starting, and the date.

use std::time::{Duration, Instant, SystemTime};

/// This moment.
#[expect(
    clippy::disallowed_methods,
    reason = "measuring is what this crate is for"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The date, for certificates and reports.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Sleeps between two looks at something that cannot be waited for.
#[expect(
    clippy::disallowed_methods,
    reason = "a process that starts is looked at until its deadline"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
