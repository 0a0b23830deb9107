//! Reading of the time: limits for waiting for a lock and for a service. No other file of this
//! crate reads it.

use std::time::{Duration, Instant};

/// A wait with a time limit.
pub(crate) struct Deadline {
    start: Instant,
    limit: Duration,
    pause: Duration,
}

impl Deadline {
    /// Starts waiting now, for at most `limit`.
    #[expect(
        clippy::disallowed_methods,
        reason = "this module owns the wait for a lock"
    )]
    pub(crate) fn after(limit: Duration) -> Self {
        Self {
            start: Instant::now(),
            limit,
            pause: Duration::from_micros(200),
        }
    }

    /// Returns the seconds waited so far.
    pub(crate) fn waited_s(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Pauses, longer each time up to 20 ms; returns false when the limit has passed.
    #[expect(
        clippy::disallowed_methods,
        reason = "this module owns the wait for a lock"
    )]
    pub(crate) fn pause(&mut self) -> bool {
        if self.start.elapsed() >= self.limit {
            return false;
        }
        std::thread::sleep(self.pause);
        self.pause = (self.pause * 2).min(Duration::from_millis(20));
        true
    }
}

/// The time for which requests to a service that fails are repeated.
#[cfg(feature = "full")]
pub(crate) struct RetryLimit {
    since: Option<Instant>,
    limit: Duration,
    pause: Duration,
    /// The number of pauses so far.
    pub(crate) pauses: u32,
}

#[cfg(feature = "full")]
impl RetryLimit {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    /// Allows retries for `limit` after the first failure.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            since: None,
            limit,
            pause: Self::FIRST,
            pauses: 0,
        }
    }

    /// Restarts the limit after bytes were received.
    pub(crate) fn renew(&mut self) {
        self.since = None;
        self.pause = Self::FIRST;
    }

    /// Returns the seconds since the first failure.
    pub(crate) fn waited_s(&self) -> f64 {
        self.since
            .map_or(0.0, |since| since.elapsed().as_secs_f64())
    }

    /// Pauses, twice as long each time up to 5 s, but no longer than the remaining time; returns
    /// false when no time is left. `share` (0 to 1) shortens the pause by up to a half, so that
    /// waiting readers do not all retry at once.
    #[expect(
        clippy::disallowed_methods,
        reason = "this module owns the wait for a service"
    )]
    pub(crate) fn pause(&mut self, share: f64) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        let left = self.limit.saturating_sub(since.elapsed());
        if left.is_zero() {
            return false;
        }
        let pause = self.pause.mul_f64(1.0 - share.clamp(0.0, 1.0) / 2.0);
        std::thread::sleep(pause.min(left));
        self.pause = (self.pause * 2).min(Self::LONGEST);
        self.pauses += 1;
        true
    }
}
