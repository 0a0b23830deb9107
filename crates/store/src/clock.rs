//! The one place of this crate that reads the time: how long to wait for a lock.

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
