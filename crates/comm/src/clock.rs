//! The only module of this crate that reads clocks: deadlines, and the date for people.

use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Returns the current time.
#[expect(
    clippy::disallowed_methods,
    reason = "deadlines of connections and operations are owned here"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns nanoseconds on the monotonic clock of this host: all its processes read the same
/// value at the same time. Not comparable across hosts.
pub(crate) fn host_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns the date, which is only shown to people.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Returns the time `limit` from now, or one year from now if that cannot be represented.
pub(crate) fn deadline(limit: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    now() + limit.min(FAR)
}

/// Returns the time left until `end`; zero after it.
pub(crate) fn left(end: Instant) -> Duration {
    end.saturating_duration_since(now())
}

/// Sleeps between two attempts of an operation that cannot be waited for.
#[expect(
    clippy::disallowed_methods,
    reason = "joining tries again until its deadline"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
