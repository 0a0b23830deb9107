//! [`LeaderRecord`]: which pod leads a job, as its pods agree in the folder of the job or at the address of its results; and
//! [`LeaderWatch`]: the pod's reaction. Pure: the caller reads and replaces the record, and knows the time.
//!
//! Kubernetes cannot decide it: a Job with a policy for failed pods, which distinguishes a failed run from a lost pod, replaces a
//! pod on a lost node only when the node is back or removed. A `Lease` would need rights that users often cannot give, and a pod
//! whose node is cut off from the server cannot reach it, although it reaches the results. The record is replaced by a conditional
//! put, so one of several pods leads; each pod judges the limits by its own monotonic clock. A worker that is cut off together with
//! its launcher ends with it. A checkpoint that it may still publish has the bits of its successor's checkpoint of that step.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Interval at which the pod that leads renews its record, and others look at it.
pub const RENEW_EVERY: Duration = Duration::from_secs(5);
/// Time without a renewal after which the pod that leads ends itself: it may be cut off.
pub const ENDS_AFTER: Duration = Duration::from_secs(45);
/// Time without a renewal after which another pod leads. It is longer, so that no two pods lead at the same time.
pub const TAKEN_AFTER: Duration = Duration::from_secs(60);

/// Which pod leads a job. A record is replaced only by a writer that has seen the one before, so that of several pods one leads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaderRecord {
    /// The number of pods that have led the job so far, this one included.
    pub term: u64,
    /// The index of the pod in the Job.
    pub index: u32,
    /// The name of the pod.
    pub pod: String,
    /// The address of its coordinator.
    pub address: String,
    /// How often it was renewed, which shows others that the pod works.
    pub renewals: u64,
    /// Whether the pod leads, and how it ended.
    pub state: LeaderState,
}

/// The state of the pod of a [`LeaderRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaderState {
    /// It leads the job.
    Leads,
    /// It has left, for example because its node is drained; another one continues the run.
    Left,
    /// The run has ended with this exit code.
    Ended(i32),
}

impl LeaderRecord {
    /// Returns the record of a renewal.
    #[must_use]
    pub fn renewed(&self) -> Self {
        Self {
            renewals: self.renewals + 1,
            ..self.clone()
        }
    }

    /// Returns the record of the end of this leader.
    #[must_use]
    pub fn ended(&self, state: LeaderState) -> Self {
        Self {
            state,
            ..self.clone()
        }
    }
}

/// The next action of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PodRole {
    /// Leads the job, if it can replace the record that it has seen by this one.
    Lead(LeaderRecord),
    /// Joins the coordinator at this address.
    Join {
        /// The address.
        address: String,
        /// The number of the leader.
        term: u64,
    },
    /// Waits for the first leader.
    Wait,
    /// Ends with the exit code of the run.
    End(i32),
}

/// A pod's view of the record of its job.
#[derive(Debug)]
pub struct LeaderWatch {
    index: u32,
    pod: String,
    address: String,
    seen: Option<LeaderRecord>,
    /// Since when neither the record has changed nor the leader was in contact, on the clock of the caller.
    unchanged_since: Duration,
}

impl LeaderWatch {
    /// Creates the watch of a pod, whose coordinator would listen at `address`.
    #[must_use]
    pub fn new(index: u32, pod: &str, address: &str, now: Duration) -> Self {
        Self {
            index,
            pod: pod.to_owned(),
            address: address.to_owned(),
            seen: None,
            unchanged_since: now,
        }
    }

    /// Notes the present record.
    pub fn see(&mut self, record: Option<LeaderRecord>, now: Duration) {
        if self.seen != record {
            self.unchanged_since = now;
        }
        self.seen = record;
    }

    /// Notes that the leader was in contact with this pod until now, so that it needs no renewals.
    pub fn contact(&mut self, now: Duration) {
        self.unchanged_since = now;
    }

    /// Returns for how long neither the record has changed nor the leader was in contact.
    #[must_use]
    pub fn silence(&self, now: Duration) -> Duration {
        now.saturating_sub(self.unchanged_since)
    }

    /// Returns the action of this pod.
    #[must_use]
    pub fn role(&self, now: Duration) -> PodRole {
        let lead = |term| {
            PodRole::Lead(LeaderRecord {
                term,
                index: self.index,
                pod: self.pod.clone(),
                address: self.address.clone(),
                renewals: 0,
                state: LeaderState::Leads,
            })
        };
        let Some(record) = &self.seen else {
            return match self.index {
                0 => lead(1),
                _ => PodRole::Wait,
            };
        };
        // Kubernetes creates a pod with the index of another one after that one has ended.
        let is_replaced = record.index == self.index;
        let is_silent = self.silence(now) >= TAKEN_AFTER;
        match record.state {
            LeaderState::Ended(code) => PodRole::End(code),
            LeaderState::Left => lead(record.term + 1),
            LeaderState::Leads if is_replaced || is_silent => lead(record.term + 1),
            LeaderState::Leads => PodRole::Join {
                address: record.address.clone(),
                term: record.term,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1000);

    fn watch(index: u32, pod: &str) -> LeaderWatch {
        LeaderWatch::new(index, pod, &format!("10.0.0.{index}:4711"), START)
    }

    fn leading(watch: &LeaderWatch, now: Duration) -> LeaderRecord {
        match watch.role(now) {
            PodRole::Lead(record) => record,
            role => panic!("{role:?}"),
        }
    }

    #[test]
    fn the_first_pod_leads_and_the_others_join_it_as_long_as_it_renews_its_record() {
        let (first, mut second) = (watch(0, "run-0-a"), watch(1, "run-1-a"));
        assert_eq!(second.role(START), PodRole::Wait);
        let mut record = leading(&first, START);
        assert_eq!((record.term, record.address.as_str()), (1, "10.0.0.0:4711"));
        for renewal in 0..20 {
            let now = START + RENEW_EVERY * renewal;
            second.see(Some(record.clone()), now);
            let role = second.role(now);
            assert!(
                matches!(role, PodRole::Join { ref address, term: 1 } if *address == record.address)
            );
            record = record.renewed();
        }
    }

    #[test]
    fn a_silent_leader_is_replaced_after_it_has_ended_itself() {
        assert!(ENDS_AFTER + RENEW_EVERY * 2 < TAKEN_AFTER);
        let record = leading(&watch(0, "run-0-a"), START);
        let mut second = watch(1, "run-1-a");
        second.see(Some(record.clone()), START);
        let soon = START + TAKEN_AFTER / 2;
        second.contact(soon);
        assert!(matches!(
            second.role(START + TAKEN_AFTER),
            PodRole::Join { .. }
        ));
        let taken = leading(&second, soon + TAKEN_AFTER);
        assert_eq!((taken.term, taken.index), (2, 1));
        // A renewal in between shows that it works again.
        second.see(Some(record.renewed()), soon + TAKEN_AFTER);
        assert!(matches!(
            second.role(soon + TAKEN_AFTER),
            PodRole::Join { .. }
        ));
    }

    #[test]
    fn a_pod_that_replaces_the_leader_leads_at_once() {
        let record = leading(&watch(0, "run-0-a"), START);
        let mut replacement = watch(0, "run-0-b");
        replacement.see(Some(record), START);
        assert_eq!(leading(&replacement, START).term, 2);
    }

    #[test]
    fn another_pod_continues_a_run_whose_leader_has_left_and_none_after_its_end() {
        let record = leading(&watch(0, "run-0-a"), START);
        let mut second = watch(1, "run-1-a");
        second.see(Some(record.ended(LeaderState::Left)), START);
        assert_eq!(leading(&second, START).term, 2);
        second.see(Some(record.ended(LeaderState::Ended(3))), START);
        assert_eq!(second.role(START + TAKEN_AFTER), PodRole::End(3));
    }
}
