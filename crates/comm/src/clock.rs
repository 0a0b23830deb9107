//! The only reader of the clocks in this crate: deadlines, and the date for people.

use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// This moment.
#[expect(
    clippy::disallowed_methods,
    reason = "deadlines of connections and operations are owned here"
)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds on the clock that all processes of this host share: never set, at the same moment the
/// same number in each of them. Not across hosts.
pub(crate) fn host_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The date; nothing is computed from it.
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// The moment `limit` from now; far away when that cannot be told.
pub(crate) fn deadline(limit: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    now() + limit.min(FAR)
}

/// Time left until `end`; zero when it has passed.
pub(crate) fn left(end: Instant) -> Duration {
    end.saturating_duration_since(now())
}

/// Sleeps: between two tries of something that cannot be waited for.
#[expect(
    clippy::disallowed_methods,
    reason = "joining tries again until its deadline"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}
