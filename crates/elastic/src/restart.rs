//! [`Restarts`]: how soon a worker that died is started again at its place, and when no more.

use std::time::Duration;

use crate::{RestartLimits, Time};

/// What to do about a worker that died.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Start another one after this pause.
    Again {
        /// How long to wait.
        pause: Duration,
    },
    /// Workers die at this place again and again.
    GiveUp,
}

/// The failures at one place.
#[derive(Debug, Clone, Default)]
pub struct Restarts {
    failures: Vec<Time>,
}

impl Restarts {
    /// A worker died here.
    pub fn failed(&mut self, limits: &RestartLimits, now: Time) -> Verdict {
        self.failures.retain(|at| now.since(*at) <= limits.window);
        self.failures.push(now);
        let restarts = self.failures.len() as u32;
        if restarts > limits.restarts_max {
            return Verdict::GiveUp;
        }
        let factor = 1_u32.checked_shl(restarts - 1).unwrap_or(u32::MAX);
        let pause = limits
            .pause_first
            .saturating_mul(factor)
            .min(limits.pause_max);
        Verdict::Again { pause }
    }

    /// Failures that another coordinator has seen, so long ago.
    pub fn remember(&mut self, ages: &[Duration], now: Time) {
        let at = |age: &Duration| Time(now.0.saturating_sub(age.as_nanos() as u64));
        self.failures.extend(ages.iter().map(at));
        self.failures.sort_unstable();
    }

    /// Failures within the window, as of the last one.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.failures.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_the_place_is_given_up_and_old_failures_are_forgotten() {
        let limits = RestartLimits {
            restarts_max: 4,
            window: Duration::from_secs(100),
            pause_first: Duration::from_secs(1),
            pause_max: Duration::from_secs(5),
        };
        let second = |s: u64| Time(s * 1_000_000_000);
        let again = |s| Verdict::Again {
            pause: Duration::from_secs(s),
        };
        let mut place = Restarts::default();
        for (at, verdict) in [(0, again(1)), (1, again(2)), (2, again(4)), (3, again(5))] {
            assert_eq!(place.failed(&limits, second(at)), verdict);
        }
        assert_eq!(place.failed(&limits, second(4)), Verdict::GiveUp);
        assert_eq!(place.failed(&limits, second(200)), again(1));
        assert_eq!(place.count(), 1);
        // Known from another coordinator: one is too old, three are not.
        let mut place = Restarts::default();
        let ages = [150, 50, 20, 10].map(Duration::from_secs);
        place.remember(&ages, second(300));
        assert_eq!(place.failed(&limits, second(300)), again(5));
        assert_eq!(place.failed(&limits, second(301)), Verdict::GiveUp);
    }
}
