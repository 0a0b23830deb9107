//! [`AutoscalePolicy`]: decides how many workers a job should have. Pure: the decision depends on an observation
//! alone, and has its reason.

use std::fmt;

/// A step may take this much longer than requested before workers are added.
const TOO_SLOW: f64 = 1.1;
/// A forecast for fewer workers must be this much below the requested time before workers are removed.
const SPARE: f64 = 0.9;
/// The largest factor with which a decision increases the number of workers.
const GROWTH_MAX: u32 = 2;

/// The limits of a job.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AutoscalePolicy {
    /// The smallest number of workers.
    pub workers_min: u32,
    /// The largest number of workers.
    pub workers_max: u32,
    /// The time of a step in seconds; `None`: use all slots of the hosts.
    pub target_step_s: Option<f64>,
    /// The time of all workers together, in seconds, after which the job is ended; `None`: no limit.
    pub budget_worker_s: Option<f64>,
    /// Seconds after a change before the next one.
    pub settle_s: f64,
    /// Seconds after which workers that do not train count as missing hosts.
    pub patience_s: f64,
}

/// A job at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AutoscaleObservation {
    /// The number of workers that was requested last.
    pub requested: u32,
    /// The number of workers that train.
    pub running: u32,
    /// The largest number of workers that the hosts have room for; `None`: the target adds hosts itself.
    pub slots: Option<u32>,
    /// The time of a step in seconds, measured since the last change.
    pub step_s: Option<f64>,
    /// The number of steps that are left.
    pub steps_left: Option<u64>,
    /// The time of all workers together so far, in seconds.
    pub used_worker_s: f64,
    /// Seconds since the last change of the requested number.
    pub since_change_s: f64,
    /// Seconds for which fewer workers have trained than were requested, without a break; 0 if none is missing.
    pub missing_s: f64,
}

/// A decision with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScaleDecision {
    /// Nothing.
    Keep {
        /// Why.
        reason: String,
    },
    /// Request another number of workers.
    Scale {
        /// The number.
        workers: u32,
        /// Why.
        reason: String,
    },
    /// End the job after a checkpoint.
    End {
        /// Why.
        reason: String,
    },
}

impl AutoscalePolicy {
    /// Makes a decision. Costs nothing.
    #[must_use]
    pub fn decide(&self, seen: &AutoscaleObservation) -> ScaleDecision {
        let keep = |reason: String| ScaleDecision::Keep { reason };
        if let Some(budget) = self
            .budget_worker_s
            .filter(|budget| seen.used_worker_s >= *budget)
        {
            let reason = format!(
                "the budget is used up: {:.2} of {:.2} worker hours",
                seen.used_worker_s / 3600.0,
                budget / 3600.0
            );
            return ScaleDecision::End { reason };
        }
        let least = self.workers_min.max(1);
        let most = self.workers_max.max(least);
        if seen.requested < least || seen.requested > most {
            let workers = seen.requested.clamp(least, most);
            let reason = format!(
                "{} workers are outside of {least} to {most}",
                seen.requested
            );
            return ScaleDecision::Scale { workers, reason };
        }
        if seen.running != seen.requested {
            return self.wait_for_workers(seen, least);
        }
        if seen.since_change_s < self.settle_s {
            return keep(format!(
                "{:.0} s since the last change, which settles for {:.0} s",
                seen.since_change_s, self.settle_s
            ));
        }
        let room = seen.slots.unwrap_or(most).clamp(least, most);
        let (workers, reason) = match (self.target_step_s, seen.step_s) {
            (None, _) => (room, format!("the hosts have room for {room} workers")),
            (Some(_), None) => return keep("no step has been measured yet".to_owned()),
            (Some(target), Some(step_s)) => self.for_step_time(seen, target, step_s, (least, room)),
        };
        if workers > seen.requested
            && let Some(reason) = self.budget_is_short(seen)
        {
            return keep(reason);
        }
        match workers == seen.requested {
            true => keep(reason),
            false => ScaleDecision::Scale { workers, reason },
        }
    }

    /// Decides while not as many workers train as were requested.
    fn wait_for_workers(&self, seen: &AutoscaleObservation, least: u32) -> ScaleDecision {
        let reason = format!("{} of {} workers train", seen.running, seen.requested);
        let is_missing = seen.running < seen.requested && seen.missing_s >= self.patience_s;
        let workers = seen.running.max(least);
        match is_missing && workers < seen.requested {
            true => ScaleDecision::Scale {
                workers,
                reason: format!(
                    "{reason} after {:.0} s: the hosts for the others are missing",
                    seen.missing_s
                ),
            },
            false => ScaleDecision::Keep { reason },
        }
    }

    /// Returns the number of workers for a step time. The forecast is that the time is inversely proportional to the number,
    /// which is the least that further workers can need.
    fn for_step_time(
        &self,
        seen: &AutoscaleObservation,
        target: f64,
        step_s: f64,
        (least, room): (u32, u32),
    ) -> (u32, String) {
        let measured = format!(
            "a step takes {:.1} ms instead of {:.1} ms",
            step_s * 1e3,
            target * 1e3
        );
        let needed = |share: f64| {
            let workers = (f64::from(seen.requested) * step_s / (target * share)).ceil();
            // A number of workers above this is cut by the limits.
            workers.clamp(1.0, f64::from(u32::MAX)) as u32
        };
        if step_s > target * TOO_SLOW {
            let most = room
                .min(seen.requested.saturating_mul(GROWTH_MAX))
                .max(seen.requested);
            let workers = needed(1.0).clamp(seen.requested, most);
            return match workers == seen.requested {
                true => (
                    workers,
                    format!("{measured}, and the hosts have room for {workers} workers only"),
                ),
                false => (workers, measured),
            };
        }
        let fewer = needed(SPARE).max(least);
        match fewer < seen.requested {
            true => (fewer, measured),
            false => (
                seen.requested,
                format!("{measured}, which needs {} workers", seen.requested),
            ),
        }
    }

    /// Returns why the budget does not allow more workers, by a forecast for the rest of the run.
    fn budget_is_short(&self, seen: &AutoscaleObservation) -> Option<String> {
        let left_s = self.budget_worker_s? - seen.used_worker_s;
        let rest_s = seen.step_s? * seen.steps_left? as f64 * f64::from(seen.running);
        (rest_s > left_s).then(|| {
            format!(
                "the rest of the run needs {:.2} worker hours, and the budget has {:.2}: no more workers",
                rest_s / 3600.0,
                left_s / 3600.0
            )
        })
    }
}

impl fmt::Display for ScaleDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep { reason } => write!(f, "no change: {reason}"),
            Self::Scale { workers, reason } => write!(f, "{workers} workers: {reason}"),
            Self::End { reason } => write!(f, "end of the job: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const POLICY: AutoscalePolicy = AutoscalePolicy {
        workers_min: 1,
        workers_max: 8,
        target_step_s: None,
        budget_worker_s: None,
        settle_s: 30.0,
        patience_s: 120.0,
    };
    const SEEN: AutoscaleObservation = AutoscaleObservation {
        requested: 2,
        running: 2,
        slots: None,
        step_s: None,
        steps_left: None,
        used_worker_s: 0.0,
        since_change_s: 60.0,
        missing_s: 0.0,
    };

    const BY_TIME: AutoscalePolicy = AutoscalePolicy {
        target_step_s: Some(0.1),
        budget_worker_s: Some(7200.0),
        ..POLICY
    };

    fn check(policy: AutoscalePolicy, seen: AutoscaleObservation, expected: &str) {
        assert_eq!(policy.decide(&seen).to_string(), expected, "{seen:?}");
    }

    #[test]
    fn a_job_keeps_up_with_its_hosts() {
        let slots = |slots: u32| AutoscaleObservation {
            slots: Some(slots),
            ..SEEN
        };
        check(POLICY, SEEN, "8 workers: the hosts have room for 8 workers");
        check(
            POLICY,
            slots(3),
            "3 workers: the hosts have room for 3 workers",
        );
        check(
            POLICY,
            slots(2),
            "no change: the hosts have room for 2 workers",
        );
        let just_changed = AutoscaleObservation {
            since_change_s: 5.0,
            ..SEEN
        };
        check(
            POLICY,
            just_changed,
            "no change: 5 s since the last change, which settles for 30 s",
        );
        let starting = AutoscaleObservation { running: 1, ..SEEN };
        check(POLICY, starting, "no change: 1 of 2 workers train");
        let missing = AutoscaleObservation {
            requested: 4,
            running: 3,
            since_change_s: 4000.0,
            missing_s: 130.0,
            ..SEEN
        };
        check(
            POLICY,
            missing,
            "3 workers: 3 of 4 workers train after 130 s: the hosts for the others are missing",
        );
        let just_lost = AutoscaleObservation {
            missing_s: 10.0,
            ..missing
        };
        check(POLICY, just_lost, "no change: 3 of 4 workers train");
        let outside = AutoscaleObservation {
            requested: 9,
            running: 9,
            ..SEEN
        };
        check(
            POLICY,
            outside,
            "8 workers: 9 workers are outside of 1 to 8",
        );
    }

    #[test]
    fn a_job_keeps_to_a_step_time_and_a_budget() {
        let step = |step_s: f64| AutoscaleObservation {
            step_s: Some(step_s),
            ..SEEN
        };
        check(BY_TIME, SEEN, "no change: no step has been measured yet");
        check(
            BY_TIME,
            step(0.15),
            "3 workers: a step takes 150.0 ms instead of 100.0 ms",
        );
        check(
            BY_TIME,
            step(0.9),
            "4 workers: a step takes 900.0 ms instead of 100.0 ms",
        );
        check(
            BY_TIME,
            step(0.02),
            "1 workers: a step takes 20.0 ms instead of 100.0 ms",
        );
        let kept = "no change: a step takes 100.0 ms instead of 100.0 ms, which needs 2 workers";
        check(BY_TIME, step(0.1), kept);
        let full = AutoscaleObservation {
            slots: Some(2),
            ..step(0.15)
        };
        let kept = "no change: a step takes 150.0 ms instead of 100.0 ms, and the hosts have room for 2 workers only";
        check(BY_TIME, full, kept);
        let long = AutoscaleObservation {
            steps_left: Some(36_000),
            used_worker_s: 3600.0,
            ..step(0.15)
        };
        let kept = "no change: the rest of the run needs 3.00 worker hours, and the budget has 1.00: no more workers";
        check(BY_TIME, long, kept);
        let spent = AutoscaleObservation {
            used_worker_s: 7200.0,
            ..SEEN
        };
        check(
            BY_TIME,
            spent,
            "end of the job: the budget is used up: 2.00 of 2.00 worker hours",
        );
    }

    fn policies() -> impl Strategy<Value = AutoscalePolicy> {
        (
            1_u32..20,
            0_u32..40,
            proptest::option::of(0.001_f64..10.0),
            proptest::option::of(1.0_f64..1e6),
        )
            .prop_map(
                |(least, more, target_step_s, budget_worker_s)| AutoscalePolicy {
                    workers_min: least,
                    workers_max: least + more,
                    target_step_s,
                    budget_worker_s,
                    ..POLICY
                },
            )
    }

    fn observations() -> impl Strategy<Value = AutoscaleObservation> {
        (
            (1_u32..60, 0_u32..60),
            proptest::option::of(0_u32..80),
            proptest::option::of(0.0001_f64..100.0),
            proptest::option::of(0_u64..1_000_000),
            (0.0_f64..2e6, 0.0_f64..600.0, 0.0_f64..600.0),
        )
            .prop_map(|((requested, running), slots, step_s, steps_left, times)| {
                AutoscaleObservation {
                    requested,
                    running,
                    slots,
                    step_s,
                    steps_left,
                    used_worker_s: times.0,
                    since_change_s: times.1,
                    missing_s: times.2,
                }
            })
    }

    proptest! {
        #[test]
        fn a_decision_keeps_to_its_limits_and_has_a_reason(policy in policies(), seen in observations()) {
            let is_used_up = policy.budget_worker_s.is_some_and(|budget| seen.used_worker_s >= budget);
            match policy.decide(&seen) {
                ScaleDecision::End { reason } => prop_assert!(is_used_up && !reason.is_empty()),
                ScaleDecision::Keep { reason } => prop_assert!(!is_used_up && !reason.is_empty()),
                ScaleDecision::Scale { workers, reason } => {
                    prop_assert!(!is_used_up && !reason.is_empty());
                    prop_assert!((policy.workers_min..=policy.workers_max).contains(&workers));
                    prop_assert_ne!(workers, seen.requested);
                    let grows = workers > seen.requested;
                    let is_inside = seen.requested >= policy.workers_min;
                    if let Some(slots) = seen.slots.filter(|_| grows && is_inside) {
                        prop_assert!(workers <= slots.max(policy.workers_min));
                    }
                    if grows && is_inside && policy.target_step_s.is_some() {
                        prop_assert!(workers <= seen.requested * GROWTH_MAX);
                    }
                }
            }
        }

        /// With workers that divide the time of a step exactly, the number settles, and never swings back.
        #[test]
        fn the_number_of_workers_settles(policy in policies(), work_s in 0.001_f64..50.0, first in 1_u32..60) {
            let policy = AutoscalePolicy { budget_worker_s: None, ..policy };
            let (mut workers, mut changes) = (first, Vec::new());
            for _ in 0..64 {
                let seen = AutoscaleObservation {
                    requested: workers,
                    running: workers,
                    step_s: Some(work_s / f64::from(workers)),
                    ..SEEN
                };
                match policy.decide(&seen) {
                    ScaleDecision::Scale { workers: next, .. } => {
                        changes.push(next > workers);
                        workers = next;
                    }
                    _ => break,
                }
            }
            prop_assert!(changes.len() < 16, "{changes:?}");
            // The first change may only bring the number inside of the limits.
            let after = changes.get(1..).unwrap_or_default();
            prop_assert!(after.windows(2).all(|pair| pair[0] == pair[1]), "{changes:?}");
        }
    }
}
