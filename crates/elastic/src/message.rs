//! What workers and the coordinator say to each other. Any message may be lost, repeated or overtaken:
//! the next [`Report`] and its answer repair it.

use ronde_core::{Generation, Step};
use serde::{Deserialize, Serialize};

use crate::{Assignment, Member, Reason, Term, Time, WorkerId};

/// What a worker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// It belongs to no group. It keeps the state that it has.
    Idle,
    /// It connects the group of its generation and finds out with the others where they stand.
    Forming,
    /// It computes steps, or takes the state over from others while they do.
    Training,
    /// The last step is committed. It stays in its group until it is told to end.
    Complete,
}

/// Why a worker left a group by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trouble {
    /// The peer that it blames, when it saw the failure first hand.
    pub suspect: Option<WorkerId>,
    /// What the group said.
    pub cause: String,
}

/// All that a worker has to say; sent with every heartbeat and whenever something changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Who it is and where it can be reached.
    pub member: Member,
    /// Grows with every report of this process.
    pub sequence: u64,
    /// The worker's clock; comes back in [`ToWorker::Ack`].
    pub sent: Time,
    /// Highest term that it has heard of.
    pub term: Term,
    /// Newest generation that it has entered or left for.
    pub generation: Generation,
    /// What it does there.
    pub phase: Phase,
    /// Its next step, when its state is complete.
    pub next: Option<Step>,
    /// Whether it wants to leave in good order.
    pub draining: bool,
    /// Why it left the group of `generation`.
    pub trouble: Option<Trouble>,
}

/// What a coordinator says to a worker. A worker obeys no term lower than the highest it has heard of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum ToWorker {
    /// Your report was heard.
    Ack {
        /// Of the coordinator.
        term: Term,
        /// [`Report::sent`].
        echo: Time,
    },
    /// There is a new generation, with or without a place for you.
    Assign(Assignment),
    /// A member of the generation is lost: drop its group at once.
    Abort {
        /// Of the coordinator.
        term: Term,
        /// Which generation.
        generation: Generation,
        /// Who was lost.
        reason: Reason,
    },
    /// The job is in this generation, and you are not: leave any older one and wait.
    Fence {
        /// Of the coordinator.
        term: Term,
        /// Where the job is.
        generation: Generation,
    },
    /// Write the state that you hold as a checkpoint.
    Checkpoint {
        /// Of the coordinator.
        term: Term,
    },
    /// You are no longer needed.
    End {
        /// Of the coordinator.
        term: Term,
        /// Why.
        reason: Reason,
    },
}

impl ToWorker {
    /// Under which term it was said.
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
