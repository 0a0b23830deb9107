//! [`Settings`]: limits and intervals, checked once.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ElasticError;

/// Who may go on when members of a generation cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Succession {
    /// Whoever the holder of the lease can reach: half of the workers may vanish at once.
    Lease,
    /// More than half of the members that are not known to have ended. Safe even with a store that
    /// loses its contents, but two halves that cannot see each other both wait.
    Majority,
}

/// How often a worker is started again at one place, and how soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestartLimits {
    /// Restarts at one place within the window; one more failure and the place is given up.
    pub restarts_max: u32,
    /// Failures older than this are forgotten.
    pub window: Duration,
    /// Pause before the first restart; each further one within the window waits twice as long.
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

/// How a job is kept alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Workers that the job should have; [`crate::Event::Scale`] changes it.
    pub workers: u32,
    /// Fewer do not train: they keep their state and wait for more.
    pub workers_min: u32,
    /// More never train together; at most the count of logical shards.
    pub workers_max: u32,
    /// A worker says how it is this often.
    pub heartbeat: Duration,
    /// A worker that was not heard for this long is lost.
    pub silence: Duration,
    /// Losses that come within this time make one new generation.
    pub settle: Duration,
    /// How long a coordinator that vanished keeps others from taking its place.
    pub lease: Duration,
    /// A request to the store that was not answered for this long is asked about again.
    pub store_timeout: Duration,
    /// How long the first generation waits for all workers that are wanted, and a worker that was
    /// started may take until its first report.
    pub rendezvous: Duration,
    /// A worker ends itself when no coordinator has answered it for this long. Until then a group that
    /// is whole goes on training.
    pub orphan_limit: Duration,
    /// The job ends when no generation could be formed for this long.
    pub wait_limit: Duration,
    /// Who may go on.
    pub succession: Succession,
    /// Restarts of workers that died.
    pub restart: RestartLimits,
}

impl Settings {
    /// The usual intervals for `workers` workers, all of which may be lost but one.
    #[must_use]
    pub fn new(workers: u32) -> Self {
        Self {
            workers,
            workers_min: 1,
            workers_max: workers,
            heartbeat: Duration::from_millis(500),
            silence: Duration::from_secs(1),
            settle: Duration::from_millis(20),
            lease: Duration::from_secs(3),
            store_timeout: Duration::from_secs(1),
            rendezvous: Duration::from_secs(60),
            orphan_limit: Duration::from_secs(600),
            wait_limit: Duration::from_secs(600),
            succession: Succession::Lease,
            restart: RestartLimits::default(),
        }
    }

    /// These settings, when they make sense.
    ///
    /// # Errors
    /// [`ElasticError::Settings`] with the first that does not.
    pub fn checked(self) -> Result<Self, ElasticError> {
        let refuse = |setting, problem| Err(ElasticError::Settings { setting, problem });
        if self.workers_min == 0 || self.workers_min > self.workers_max {
            let problem = format!(
                "{} of at most {} workers",
                self.workers_min, self.workers_max
            );
            return refuse("workers_min", problem);
        }
        if !(self.workers_min..=self.workers_max).contains(&self.workers) {
            let problem = format!(
                "{} is not between {} and {}",
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
                return refuse(setting, "must be longer than nothing".to_owned());
            }
        }
        if self.silence < self.heartbeat * 2 {
            let problem = format!(
                "{:?} is less than two heartbeats of {:?}",
                self.silence, self.heartbeat
            );
            return refuse("silence", problem);
        }
        if self.orphan_limit < self.silence + self.lease {
            let problem = format!(
                "{:?} leaves no time for another coordinator: silence is {:?}, lease {:?}",
                self.orphan_limit, self.silence, self.lease
            );
            return refuse("orphan_limit", problem);
        }
        Ok(self)
    }

    /// After this long without a word a worker has ended itself, whatever became of it: its own limit
    /// and a quarter for clocks that do not run equally fast.
    #[must_use]
    pub fn certain_end(&self) -> Duration {
        self.orphan_limit + self.orphan_limit / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_ones_pass_and_contradictions_are_named() {
        let usual = Settings::new(4);
        assert_eq!(usual.checked(), Ok(usual));
        let refused = |settings: Settings| settings.checked().unwrap_err().to_string();
        let cases = [
            (
                Settings {
                    workers_min: 5,
                    ..usual
                },
                "workers_min: 5 of at most 4",
            ),
            (
                Settings {
                    workers_min: 0,
                    ..usual
                },
                "workers_min: 0",
            ),
            (
                Settings {
                    workers: 9,
                    ..usual
                },
                "workers: 9 is not between 1 and 4",
            ),
            (
                Settings {
                    silence: usual.heartbeat,
                    ..usual
                },
                "silence",
            ),
            (
                Settings {
                    orphan_limit: usual.lease,
                    ..usual
                },
                "orphan_limit",
            ),
            (
                Settings {
                    lease: Duration::ZERO,
                    ..usual
                },
                "lease",
            ),
        ];
        for (settings, expected) in cases {
            let told = refused(settings);
            assert!(told.starts_with(expected), "{told}");
        }
    }
}
