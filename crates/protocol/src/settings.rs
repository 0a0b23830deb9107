//! [`Settings`]: limits and intervals, validated once.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::assignment::MembershipPolicy;
use crate::error::ElasticError;

/// The rule that decides which workers may continue when members of a generation are unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuccessionPolicy {
    /// The workers that the lease holder can reach: half of the workers may disappear at once.
    #[default]
    Lease,
    /// More than half of the members that are not known to have ended. Safe even with a store that
    /// loses its contents, but two halves that cannot reach each other both wait.
    Majority,
}

/// Limits on restarting the worker of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestartLimits {
    /// Restarts of one slot within the window; after one more failure the slot is no longer used.
    pub restarts_max: u32,
    /// Failures older than this are ignored.
    pub window: Duration,
    /// Pause before the first restart; it doubles with each further restart within the window.
    pub pause_first: Duration,
    /// Longest pause.
    pub pause_max: Duration,
}

impl Default for RestartLimits {
    fn default() -> Self {
        Self {
            restarts_max: 5,
            window: Duration::from_secs(600),
            pause_first: Duration::from_millis(500),
            pause_max: Duration::from_secs(60),
        }
    }
}

/// A time that no job reaches, and that the arithmetic of [`crate::Time`] holds a few times: ten years.
const NEVER: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Settings that keep a job running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Whether another generation may follow the first one.
    #[serde(default)]
    pub policy: MembershipPolicy,
    /// Target number of workers; [`crate::CoordinatorEvent::Scale`] changes it.
    pub workers: u32,
    /// Minimum number of workers; fewer keep their state and wait for more.
    pub workers_min: u32,
    /// Maximum number of workers in a generation; at most the number of logical shards.
    pub workers_max: u32,
    /// Interval between a worker's reports.
    pub heartbeat: Duration,
    /// A worker without a report for this long is considered lost.
    pub silence: Duration,
    /// Losses within this time lead to one new generation.
    pub settle: Duration,
    /// Time for which an unresponsive coordinator blocks others from leading.
    pub lease: Duration,
    /// Time after which an unanswered request to the store is followed by a new read.
    pub store_timeout: Duration,
    /// Time that the first generation waits for all target workers, and that a started worker whose process makes
    /// progress may take to send its first report.
    pub rendezvous: Duration,
    /// Time that a started worker may take to send its first report while its process makes no progress, because it is
    /// stopped or hung. It is then replaced, and the first generation does not wait for it.
    #[serde(default = "default_first_report")]
    pub first_report: Duration,
    /// A worker without an answer from any coordinator for this long ends itself. Until then, a
    /// group without failures continues to train.
    pub orphan_limit: Duration,
    /// The job fails when no generation could be formed for this long.
    pub wait_limit: Duration,
    /// Members that lack parts of the state wait this long for silent workers that may have them.
    pub state_wait: Duration,
    /// Whether workers may have different parts of the state, so that one alone cannot save it.
    #[serde(default)]
    pub is_divided: bool,
    /// Whether hosts can join later, and with them more workers than the slots that are known.
    #[serde(default = "hosts_may_join")]
    pub hosts_may_join: bool,
    /// The rule that decides which workers may continue.
    pub succession: SuccessionPolicy,
    /// Limits on restarting failed workers.
    pub restart: RestartLimits,
}

/// Returns the default of [`Settings::first_report`], also for jobs that were started without this setting.
fn default_first_report() -> Duration {
    Duration::from_secs(10)
}

/// Returns the default of [`Settings::hosts_may_join`].
fn hosts_may_join() -> bool {
    true
}

impl Settings {
    /// Returns the default intervals for `workers` workers, if all but one may be lost.
    #[must_use]
    pub fn new(workers: u32) -> Self {
        Self {
            policy: MembershipPolicy::Elastic,
            workers,
            workers_min: 1,
            workers_max: workers,
            heartbeat: Duration::from_millis(500),
            silence: Duration::from_secs(1),
            settle: Duration::from_millis(20),
            lease: Duration::from_secs(3),
            store_timeout: Duration::from_secs(1),
            rendezvous: Duration::from_secs(60),
            first_report: default_first_report(),
            orphan_limit: Duration::from_secs(600),
            wait_limit: Duration::from_secs(600),
            state_wait: Duration::from_secs(30),
            is_divided: false,
            hosts_may_join: hosts_may_join(),
            succession: SuccessionPolicy::Lease,
            restart: RestartLimits::default(),
        }
    }

    /// Returns the settings of a job whose only generation has all `workers` workers, however long they take
    /// to report. None is restarted or counts as lost while it is silent: the supervisor ends the job when a
    /// process fails.
    #[must_use]
    pub fn fixed(workers: u32) -> Self {
        Self {
            policy: MembershipPolicy::Fixed,
            workers_min: workers,
            silence: NEVER,
            lease: NEVER,
            orphan_limit: NEVER * 2,
            ..Self::new(workers)
        }
    }

    /// Returns these settings if they are consistent.
    ///
    /// # Errors
    /// Returns [`ElasticError::Settings`] for the first inconsistent setting.
    pub fn checked(self) -> Result<Self, ElasticError> {
        let refuse = |setting, problem| Err(ElasticError::Settings { setting, problem });
        if self.workers_min == 0 || self.workers_min > self.workers_max {
            let problem = format!(
                "at least {} and at most {} workers",
                self.workers_min, self.workers_max
            );
            return refuse("workers_min", problem);
        }
        if !(self.workers_min..=self.workers_max).contains(&self.workers) {
            let problem = format!(
                "{} workers; expected between {} and {}",
                self.workers, self.workers_min, self.workers_max
            );
            return refuse("workers", problem);
        }
        for (setting, value) in [
            ("heartbeat", self.heartbeat),
            ("lease", self.lease),
            ("store_timeout", self.store_timeout),
        ] {
            if value.is_zero() {
                return refuse(setting, "expected a duration above zero".to_owned());
            }
        }
        if self.silence < self.heartbeat * 2 {
            let problem = format!(
                "{:?}; expected at least two heartbeats of {:?}",
                self.silence, self.heartbeat
            );
            return refuse("silence", problem);
        }
        if self.orphan_limit < self.silence + self.lease {
            let problem = format!(
                "{:?} leaves no time for another coordinator: silence is {:?}, lease is {:?}",
                self.orphan_limit, self.silence, self.lease
            );
            return refuse("orphan_limit", problem);
        }
        Ok(self)
    }

    /// Returns the time that a new worker waits for its first generation. In an elastic job it exceeds every time that
    /// the coordinator itself waits, which tells the worker when it gives up; a worker that no coordinator answers ends
    /// itself after [`orphan_limit`](Self::orphan_limit).
    #[must_use]
    pub fn first_generation_max(&self) -> Duration {
        match self.policy {
            MembershipPolicy::Fixed => self.rendezvous,
            MembershipPolicy::Elastic => self.rendezvous + self.wait_limit + self.certain_end(),
        }
    }

    /// Returns the silence after which a worker has certainly ended itself: the orphan limit plus a
    /// quarter for differences in clock rate.
    #[must_use]
    pub fn certain_end(&self) -> Duration {
        self.orphan_limit + self.orphan_limit / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_contradictions_are_reported() {
        let usual = Settings::new(4);
        assert_eq!(usual.checked(), Ok(usual));
        let fixed = Settings::fixed(4);
        assert_eq!(fixed.checked(), Ok(fixed));
        let refused = |settings: Settings| settings.checked().unwrap_err().to_string();
        let cases = [
            (
                Settings {
                    workers_min: 5,
                    ..usual
                },
                "invalid setting `workers_min`: at least 5 and at most 4",
            ),
            (
                Settings {
                    workers_min: 0,
                    ..usual
                },
                "invalid setting `workers_min`: at least 0",
            ),
            (
                Settings {
                    workers: 9,
                    ..usual
                },
                "invalid setting `workers`: 9 workers; expected between 1 and 4",
            ),
            (
                Settings {
                    silence: usual.heartbeat,
                    ..usual
                },
                "invalid setting `silence`",
            ),
            (
                Settings {
                    orphan_limit: usual.lease,
                    ..usual
                },
                "invalid setting `orphan_limit`",
            ),
            (
                Settings {
                    lease: Duration::ZERO,
                    ..usual
                },
                "invalid setting `lease`",
            ),
        ];
        for (settings, expected) in cases {
            let message = refused(settings);
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
