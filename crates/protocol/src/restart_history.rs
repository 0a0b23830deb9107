//! [`RestartHistory`]: when a failed worker's slot is restarted, and when it is no longer used.

use std::time::Duration;

use crate::settings::RestartLimits;
use crate::time::Time;

/// The decision about a failed worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartDecision {
    /// Start a new worker after this pause.
    Again {
        /// The time to wait.
        pause: Duration,
    },
    /// Do not use the slot any more: its workers fail repeatedly.
    GiveUp,
}

/// The failures in one slot.
#[derive(Debug, Clone, Default)]
pub struct RestartHistory {
    failures: Vec<Time>,
}

impl RestartHistory {
    /// Records a failure and returns the decision about a restart.
    pub fn failed(&mut self, limits: &RestartLimits, now: Time) -> RestartDecision {
        self.failures.retain(|at| now.since(*at) <= limits.window);
        self.failures.push(now);
        let restarts = self.failures.len() as u32;
        if restarts > limits.restarts_max {
            return RestartDecision::GiveUp;
        }
        let factor = 1_u32.checked_shl(restarts - 1).unwrap_or(u32::MAX);
        let pause = limits
            .pause_first
            .saturating_mul(factor)
            .min(limits.pause_max);
        RestartDecision::Again { pause }
    }

    /// Adds failures that another coordinator observed, given as their ages.
    pub fn remember(&mut self, ages: &[Duration], now: Time) {
        let at = |age: &Duration| Time(now.0.saturating_sub(age.as_nanos() as u64));
        self.failures.extend(ages.iter().map(at));
        self.failures.sort_unstable();
    }

    /// Returns the number of failures within the window before the last failure.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.failures.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_the_slot_is_given_up_and_old_failures_are_ignored() {
        let limits = RestartLimits {
            restarts_max: 4,
            window: Duration::from_secs(100),
            pause_first: Duration::from_secs(1),
            pause_max: Duration::from_secs(5),
        };
        let second = |s: u64| Time(s * 1_000_000_000);
        let again = |s| RestartDecision::Again {
            pause: Duration::from_secs(s),
        };
        let mut slot = RestartHistory::default();
        for (at, verdict) in [(0, again(1)), (1, again(2)), (2, again(4)), (3, again(5))] {
            assert_eq!(slot.failed(&limits, second(at)), verdict);
        }
        assert_eq!(slot.failed(&limits, second(4)), RestartDecision::GiveUp);
        assert_eq!(slot.failed(&limits, second(200)), again(1));
        assert_eq!(slot.count(), 1);
        // Known from another coordinator: one is too old, three are recent enough.
        let mut slot = RestartHistory::default();
        let ages = [150, 50, 20, 10].map(Duration::from_secs);
        slot.remember(&ages, second(300));
        assert_eq!(slot.failed(&limits, second(300)), again(5));
        assert_eq!(slot.failed(&limits, second(301)), RestartDecision::GiveUp);
    }
}
