//! The clock that only moves forward, for limits and measurements.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Returns the current time of the monotonic clock.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the owner of the clocks")]
pub fn now() -> Instant {
    Instant::now()
}

/// Returns the time `limit` from now, or one year from now if that cannot be represented.
#[must_use]
pub fn deadline(limit: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    now() + limit.min(FAR)
}

/// Returns the time left until `end`; zero after it.
#[must_use]
pub fn left(end: Instant) -> Duration {
    end.saturating_duration_since(now())
}

/// Returns nanoseconds on the monotonic clock of this host: all its processes read the same value at the same time. Not
/// comparable across hosts.
#[must_use]
pub fn host_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Returns the seconds of the monotonic clock of this host; only differences are meaningful.
#[must_use]
pub fn seconds() -> f64 {
    host_ns() as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_cannot_be_represented_is_far() {
        assert!(left(deadline(Duration::MAX)) > Duration::from_secs(60 * 60 * 24 * 364));
        assert_eq!(left(now()), Duration::ZERO);
    }
}
