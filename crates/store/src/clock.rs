//! The one place of this crate that reads the time: how long to wait for a lock, and for a service.

use std::time::{Duration, Instant};

/// A wait with a limit.
pub(crate) struct Deadline {
    start: Instant,
    limit: Duration,
    pause: Duration,
}

impl Deadline {
    /// Starts waiting now, for `limit` at most.
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

    /// Seconds waited so far.
    pub(crate) fn waited_s(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Pauses a little, longer each time up to 20 ms; false when the limit has passed.
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

/// How long to go on asking a service that does not answer.
#[cfg(feature = "full")]
pub(crate) struct Patience {
    since: Option<Instant>,
    limit: Duration,
    pause: Duration,
    /// Pauses so far.
    pub(crate) pauses: u32,
}

#[cfg(feature = "full")]
impl Patience {
    const FIRST: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    /// Goes on for `limit` after the first failure.
    pub(crate) fn new(limit: Duration) -> Self {
        Self {
            since: None,
            limit,
            pause: Self::FIRST,
            pauses: 0,
        }
    }

    /// Something came: the wait is over.
    pub(crate) fn renew(&mut self) {
        self.since = None;
        self.pause = Self::FIRST;
    }

    /// Seconds since the first failure.
    pub(crate) fn waited_s(&self) -> f64 {
        self.since
            .map_or(0.0, |since| since.elapsed().as_secs_f64())
    }

    /// Pauses, twice as long each time up to 5 s and not longer than is left; false when nothing is left. `share`, of 0
    /// to 1, shortens the pause by up to a half, so that not all who wait come back at once.
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
