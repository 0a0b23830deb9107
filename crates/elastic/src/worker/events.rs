//! What a worker's machine is told, and what it says.

use ronde_core::{Generation, Rank, Step};
use serde::{Deserialize, Serialize};

use crate::{Assignment, Position, Reason, Report, Term, ToWorker, WorkerId};

/// What a worker hears and sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum WorkerEvent {
    /// The moment of [`crate::WorkerMachine::wake_at`] has come.
    Tick,
    /// A connection to a coordinator stands, the first or another one.
    Linked,
    /// A coordinator says something.
    Coordinator(ToWorker),
    /// The state is complete and at step `next`, in agreement with all members of the group: at once
    /// for those that hold it, later for those that heal.
    Level {
        /// Of the group.
        generation: Generation,
        /// The step that is computed next.
        next: Step,
        /// Whether this worker's state is complete; false while it still heals.
        is_whole: bool,
    },
    /// A worker that healed has the whole state now.
    Healed {
        /// Of the group.
        generation: Generation,
    },
    /// This worker holds the complete reduced gradient of a step.
    Reduced {
        /// Of the group.
        generation: Generation,
        /// Which.
        step: Step,
    },
    /// All members have voted on a step.
    Voted {
        /// Of the group.
        generation: Generation,
        /// Which.
        step: Step,
        /// The newest generation in any of the votes.
        newest: Generation,
    },
    /// The group failed, or could not be connected.
    Failed {
        /// Of the group.
        generation: Generation,
        /// The peer to blame, when this worker saw the failure first hand.
        suspect: Option<WorkerId>,
        /// What happened.
        cause: String,
    },
    /// All members of the group have come to the end of the run, this worker included.
    Ended {
        /// Of the group.
        generation: Generation,
    },
    /// The worker is asked to leave in good order.
    Drain,
}

/// What a worker's shell has to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum WorkerCommand {
    /// Send this to the coordinator, if one is connected; else drop it.
    Report(Report),
    /// Drop the group of this generation at once, whatever is in flight. A gradient whose vote may be
    /// complete is kept until the next step begins.
    Leave {
        /// Which.
        generation: Generation,
        /// Between two steps: the peers get a goodbye, and go on with what they have already got from
        /// this worker. Otherwise they are told that the group has failed.
        in_order: bool,
        /// Why.
        reason: Reason,
    },
    /// Connect the group of this generation, exchange `position` with its members, follow the
    /// [`crate::RecoveryPlan`], and answer with [`WorkerEvent::Level`].
    Connect {
        /// Members and addresses.
        assignment: Assignment,
        /// This worker's place in it.
        rank: Rank,
        /// Where it stands.
        position: Position,
    },
    /// Compute a step: gradients of this rank's shards, reduction. A kept gradient may go now.
    Compute {
        /// With this group.
        generation: Generation,
        /// Which.
        step: Step,
    },
    /// Vote on a step, and answer with [`WorkerEvent::Voted`].
    Vote {
        /// With this group.
        generation: Generation,
        /// Which.
        step: Step,
        /// The newest generation that this worker knows of; goes into the vote.
        newest: Generation,
    },
    /// The step is final: enter cursor and ledger, apply the gradient.
    Commit {
        /// With this group.
        generation: Generation,
        /// Which.
        step: Step,
    },
    /// Write down the outcome of this committed step, with this generation and term. The same step may
    /// be written down twice, with equal outcomes: readers keep one.
    Record {
        /// In which it was committed, or by whose first rank it is told again.
        generation: Generation,
        /// Of the assignment.
        term: Term,
        /// Which.
        step: Step,
    },
    /// Write the state as a checkpoint, and tell the coordinator when it is complete.
    Checkpoint {
        /// The newest generation, for [`crate::Event::CheckpointWritten`].
        generation: Generation,
        /// Next step of the state.
        next: Step,
    },
    /// Write down why something was decided.
    Tell(Reason),
    /// End this process.
    End(Reason),
}
