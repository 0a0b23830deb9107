//! Messages between workers and the coordinator. Any message may be lost, repeated or reordered;
//! the next [`WorkerReport`] and its answer repair the difference.

use ronde_core::{Generation, Step};
use serde::{Deserialize, Serialize};

use crate::membership::{GenerationAssignment, MemberInfo, Term, WorkerId};
use crate::reason::Reason;
use crate::time::Time;

/// A worker's activity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerPhase {
    /// The worker belongs to no group. It keeps its state.
    Idle,
    /// The worker connects to the group of its generation and compares its state with the others.
    Forming,
    /// The worker computes steps, or receives the state from other members while they compute.
    Training,
    /// The last step is committed. The worker stays in its group until the order to end.
    Complete,
}

/// A group failure that a worker has observed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupFailure {
    /// The peer that caused it, if this worker observed the failure directly.
    pub suspect: Option<WorkerId>,
    /// Whether this worker could not connect to the suspect until the time limit.
    #[serde(default)]
    pub is_unreachable: bool,
    /// The group's error message.
    pub cause: String,
}

/// A worker's complete status, sent with every heartbeat and after every change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The worker's identity and address.
    pub member: MemberInfo,
    /// A number that increases with every report of this process.
    pub sequence: u64,
    /// The worker's time of sending; [`ToWorker::Ack`] returns it.
    pub sent: Time,
    /// The highest term that it knows.
    pub term: Term,
    /// The newest generation that it has entered, or left its group for; `None` before its first one.
    pub generation: Option<Generation>,
    /// Its activity in that generation.
    pub phase: WorkerPhase,
    /// Its next step, if its state is complete.
    pub next: Option<Step>,
    /// Whether it has voted on a step in `generation`. Without the vote of every member, a generation
    /// has committed nothing.
    pub has_voted: bool,
    /// Whether the members of `generation` have found that they lack parts of the state, for which they wait.
    #[serde(default)]
    pub lacks_state: bool,
    /// Whether it cannot write the checkpoint that [`ToWorker::Checkpoint`] requested in `generation`.
    #[serde(default)]
    pub cannot_save: bool,
    /// Whether it is leaving the job in good order.
    pub draining: bool,
    /// The failure that made it leave the group of `generation`.
    pub trouble: Option<GroupFailure>,
}

/// A coordinator's message to a worker. A worker ignores terms lower than the highest that it
/// knows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum ToWorker {
    /// Confirms a report.
    Ack {
        /// The coordinator's term.
        term: Term,
        /// The report's [`WorkerReport::sent`].
        echo: Time,
    },
    /// Announces a new generation, perhaps with the worker as a member.
    Assign(GenerationAssignment),
    /// Reports the loss of a member: the worker must leave the group of this generation
    /// immediately.
    Abort {
        /// The coordinator's term.
        term: Term,
        /// The generation that lost a member.
        generation: Generation,
        /// The losses.
        reason: Reason,
    },
    /// Excludes the worker from the current generation: it must leave any older one and wait.
    Fence {
        /// The coordinator's term.
        term: Term,
        /// The job's generation.
        generation: Generation,
    },
    /// Requests a checkpoint of the state that the worker holds.
    Checkpoint {
        /// The coordinator's term.
        term: Term,
    },
    /// Ends the worker, which is no longer needed.
    End {
        /// The coordinator's term.
        term: Term,
        /// The reason.
        reason: Reason,
    },
}

impl ToWorker {
    /// Returns the term of the coordinator that sent the message.
    #[must_use]
    pub fn term(&self) -> Term {
        match self {
            Self::Assign(assignment) => assignment.term,
            Self::Ack { term, .. }
            | Self::Abort { term, .. }
            | Self::Fence { term, .. }
            | Self::Checkpoint { term }
            | Self::End { term, .. } => *term,
        }
    }
}
