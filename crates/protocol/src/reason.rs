//! [`Reason`]: the cause of a decision, as a value for tests and as one sentence for users.

use std::time::Duration;

use ronde_core::{Generation, Rank, Step};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::membership::{StartFrom, Term, WorkerId, WorkerSlot};

/// How a worker was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossCause {
    /// Its process exited with this code.
    ExitCode(i32),
    /// Its process was killed by this signal.
    Signal(i32),
    /// Its control connection failed; whether the process still runs is unknown.
    Disconnected(String),
    /// It sent no report for this long; whether the process still runs is unknown.
    Silent(Duration),
}

/// A lost member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerLoss {
    /// The process.
    pub worker: WorkerId,
    /// Its rank in the generation from which it was lost.
    pub rank: Rank,
    /// The host name.
    pub host: String,
    /// How it was lost.
    pub cause: LossCause,
}

/// The consequence of waiting in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitEnd {
    /// The first generation starts with fewer workers.
    StartWithFewer,
    /// The workers return to an earlier state.
    ReturnToEarlier,
    /// The job fails.
    Fail,
}

/// The cause of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case", remote = "Self")]
#[non_exhaustive]
pub enum Reason {
    /// A coordinator has taken the lease.
    Leads {
        /// Its term.
        term: Term,
        /// The newest generation in the record.
        generation: Option<Generation>,
    },
    /// A coordinator has lost the lease.
    Deposed {
        /// The term that has ended.
        term: Term,
        /// The cause.
        cause: String,
    },
    /// Another coordinator leads; this one waits.
    StandsBy {
        /// The other coordinator's term.
        term: Term,
    },
    /// The first generation.
    Begun {
        /// The generation's number.
        generation: Generation,
        /// The number of its members.
        workers: u32,
    },
    /// Members were lost.
    Lost {
        /// The losses, the earliest first.
        losses: Vec<WorkerLoss>,
        /// The generation that continues.
        generation: Generation,
        /// The number of its members.
        workers: u32,
        /// The step that was in flight, if a survivor reported it.
        redone: Option<Step>,
    },
    /// A generation has ended because of these losses; the next one is being formed.
    GivenUp {
        /// The losses, the earliest first.
        losses: Vec<WorkerLoss>,
        /// The generation that has ended.
        generation: Generation,
    },
    /// The group failed although all members are alive.
    Reformed {
        /// The generation that continues.
        generation: Generation,
        /// The number of its members.
        workers: u32,
        /// The cause that the first member reported.
        cause: String,
        /// A member that the others cannot reach and that is excluded for a while.
        excluded: Option<WorkerId>,
    },
    /// Workers joined or left in good order.
    Changed {
        /// The generation that continues.
        generation: Generation,
        /// The number of its members.
        workers: u32,
        /// The number of workers that joined.
        joined: u32,
        /// The number of workers that left.
        left: u32,
    },
    /// A generation that was formed earlier, by a coordinator that ended before it reported it or by a
    /// change whose success was unknown at first.
    Adopted {
        /// The generation that continues.
        generation: Generation,
        /// The number of its members.
        workers: u32,
        /// The start of members without a state, when no member has one.
        start: StartFrom,
    },
    /// All workers that held the state have ended.
    StateLost {
        /// The generation that starts from a checkpoint or from the initial weights.
        generation: Generation,
        /// The number of its members.
        workers: u32,
        /// The published checkpoint's next step; `None` for the initial weights.
        checkpoint: Option<Step>,
    },
    /// All workers that held the state were lost repeatedly after starting from the same
    /// checkpoint.
    NoProgress {
        /// The number of times in a row.
        times: u32,
        /// The published checkpoint's next step; `None` for the initial weights.
        checkpoint: Option<Step>,
    },
    /// There are too few workers to continue.
    TooFew {
        /// The number of available workers.
        have: u32,
        /// The required number of workers.
        need: u32,
    },
    /// A generation may still be training on workers that cannot be reached.
    NoSuccession {
        /// That generation.
        generation: Generation,
        /// The number of its members that are reachable.
        here: u32,
        /// The number of its members that may still run.
        of: u32,
    },
    /// No reachable worker holds the state, but unreachable ones may.
    NoState {
        /// The number of unreachable workers that may hold it.
        unreachable: u32,
    },
    /// The remaining workers have only parts of the state, and silent ones may have the others.
    LacksState {
        /// The number of silent workers.
        silent: u32,
    },
    /// A new generation cannot be formed yet.
    Waiting {
        /// The missing condition.
        cause: Box<Reason>,
        /// The lost ranks, or in the first generation the slots whose workers have not reported.
        missing: Vec<u64>,
        /// The time without a new generation.
        waited: Duration,
        /// The remaining time until `then` happens.
        left: Duration,
        /// The consequence of the end of the time limit.
        then: WaitEnd,
    },
    /// A worker is started or restarted.
    Starts {
        /// The slot that it is started in.
        #[serde(rename = "place")]
        slot: WorkerSlot,
        /// The number of restarts in this slot so far.
        restarts: u32,
        /// How the previous worker of the slot ended.
        after: Option<LossCause>,
    },
    /// Workers in this slot have failed too often.
    #[serde(rename = "place_given_up")]
    SlotGivenUp {
        /// The slot.
        #[serde(rename = "place")]
        slot: WorkerSlot,
        /// The number of restarts within the window.
        restarts: u32,
        /// How the last worker ended.
        cause: LossCause,
        /// Whether the last worker had reported to the coordinator.
        #[serde(default = "is_joined")]
        joined: bool,
    },
    /// A worker is not a member of the job's generation and waits for the next one.
    Fenced {
        /// The worker's generation.
        was: Option<Generation>,
        /// The job's generation.
        generation: Generation,
    },
    /// A worker has left its group and waits for the next generation.
    LeftGroup {
        /// That generation.
        generation: Generation,
        /// The cause.
        cause: String,
    },
    /// No coordinator has answered a worker for too long.
    NoCoordinator {
        /// The time without an answer.
        silence: Duration,
    },
    /// A host that was cut off has reached the hosts of the coordinators again, and no coordinator runs there.
    NoCoordinatorRuns {
        /// The time without an answer.
        silence: Duration,
    },
    /// A worker left in good order.
    Drained,
    /// A stop of the whole job was requested.
    Stopped {
        /// The origin of the request.
        by: String,
        /// The next step of the checkpoint that was published for it.
        checkpoint: Option<Step>,
    },
    /// The remaining workers save the state together before the job ends.
    Saves {
        /// The last generation.
        generation: Generation,
        /// The number of its members.
        workers: u32,
    },
    /// All steps are committed.
    Finished {
        /// The number of steps, if known.
        steps: Option<Step>,
    },
    /// The job cannot continue.
    Failed {
        /// The condition for which it waited in vain.
        cause: Box<Reason>,
        /// The latest loss that led to it.
        #[serde(rename = "first")]
        latest: Option<Box<Reason>>,
        /// The slot that was given up last.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        given_up: Option<Box<Reason>>,
    },
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Reason::serialize(self, serializer)
    }
}

/// Reads a JSON value first. So the many functions that read the variants of a reason are compiled once, not in every crate that reads one.
impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Reason {
    fn from_value(value: Value) -> serde_json::Result<Self> {
        Reason::deserialize(value)
    }
}

/// Returns the meaning of messages of coordinators without the field.
fn is_joined() -> bool {
    true
}

mod sentences;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_names_rank_host_cause_and_consequence() {
        let loss = WorkerLoss {
            worker: WorkerId(9),
            rank: Rank(3),
            host: "host b".to_owned(),
            cause: LossCause::Signal(9),
        };
        let reason = Reason::Lost {
            losses: vec![loss.clone()],
            generation: Generation(7),
            workers: 3,
            redone: Some(Step(1284)),
        };
        assert_eq!(
            reason.to_string(),
            "worker 3 on host b killed (SIGKILL); recomputing step 1284 with 3 workers (generation 7)"
        );
        let failed = Reason::Failed {
            cause: Box::new(Reason::TooFew { have: 1, need: 2 }),
            latest: Some(Box::new(Reason::GivenUp {
                losses: vec![loss],
                generation: Generation(7),
            })),
            given_up: Some(Box::new(Reason::SlotGivenUp {
                slot: WorkerSlot(3),
                restarts: 5,
                cause: LossCause::Signal(9),
                joined: true,
            })),
        };
        assert_eq!(
            failed.to_string(),
            "worker 3 on host b killed (SIGKILL); generation 7 has ended; slot 3 abandoned after 5 restarts: \
             the last worker killed (SIGKILL); then: waiting for workers: 1 of at least 2"
        );
    }

    #[test]
    fn reasons_are_serialized_as_json() {
        let reason = Reason::Fenced {
            was: Some(Generation(2)),
            generation: Generation(5),
        };
        let line = serde_json::to_string(&reason).unwrap();
        assert_eq!(line, r#"{"reason":"fenced","was":2,"generation":5}"#);
        assert_eq!(serde_json::from_str::<Reason>(&line).unwrap(), reason);
    }
}
