//! The events and commands of a worker's machine.

use ronde_core::{Generation, Rank, Step};
use serde::{Deserialize, Serialize};

use crate::membership::{GenerationAssignment, Term, WorkerId};
use crate::message::{ToWorker, WorkerReport};
use crate::reason::Reason;

/// An input of a worker's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum WorkerEvent {
    /// The time returned by [`crate::WorkerMachine::wake_at`] is reached.
    Tick,
    /// A connection to a coordinator was established.
    Connected,
    /// A message from a coordinator was received.
    Coordinator(ToWorker),
    /// All members of the group agree on step `next`: members with the state immediately, members that
    /// copy the state later.
    CaughtUp {
        /// The group's generation.
        generation: Generation,
        /// The next step to compute.
        next: Step,
        /// Whether this worker's state is complete; false while it still copies it.
        is_whole: bool,
    },
    /// The members of the group have only parts of a state together, and wait for silent workers that may have the others.
    LacksState {
        /// The group's generation.
        generation: Generation,
    },
    /// The worker cannot write the checkpoint that [`WorkerCommand::Checkpoint`] requested.
    NotSaved {
        /// The generation of the request.
        generation: Generation,
    },
    /// The worker has finished copying the state.
    Healed {
        /// The group's generation.
        generation: Generation,
    },
    /// This worker holds the complete reduced gradient of a step.
    Reduced {
        /// The group's generation.
        generation: Generation,
        /// The step.
        step: Step,
    },
    /// All members have voted on a step.
    Voted {
        /// The group's generation.
        generation: Generation,
        /// The step.
        step: Step,
        /// The newest generation in any of the votes.
        newest: Generation,
    },
    /// The group failed, or could not be connected.
    Failed {
        /// The group's generation.
        generation: Generation,
        /// The peer that caused it, if this worker observed the failure directly.
        suspect: Option<WorkerId>,
        /// Whether this worker could not connect to the suspect until the time limit.
        is_unreachable: bool,
        /// The error message.
        cause: String,
    },
    /// All members of the group, including this worker, have reached the end of the run.
    Ended {
        /// The group's generation.
        generation: Generation,
    },
    /// The worker was requested to leave in good order.
    Drain,
}

/// An action for a worker's shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum WorkerCommand {
    /// Send this report to the coordinator, or drop it if none is connected.
    Report(WorkerReport),
    /// Leave the group of this generation immediately, whatever is in flight. A gradient whose vote
    /// may be complete is kept until the next step begins.
    Leave {
        /// The group's generation.
        generation: Generation,
        /// Whether the worker leaves between two steps: its peers then receive a goodbye and
        /// continue with the data that it has sent. Otherwise they are notified that the group has
        /// failed.
        in_order: bool,
        /// The reason.
        reason: Reason,
    },
    /// Connect the group of this generation, exchange reports with its members, follow the
    /// [`crate::transaction::CatchUpPlan`], and answer with [`WorkerEvent::CaughtUp`].
    Connect {
        /// The members and their addresses.
        assignment: GenerationAssignment,
        /// This worker's rank.
        rank: Rank,
    },
    /// Compute a step: gradients of this rank's shards and their reduction. A kept gradient may be
    /// dropped.
    Compute {
        /// The group's generation.
        generation: Generation,
        /// The step.
        step: Step,
    },
    /// Vote on a step, and answer with [`WorkerEvent::Voted`].
    Vote {
        /// The group's generation.
        generation: Generation,
        /// The step.
        step: Step,
        /// The newest generation that this worker knows; part of the vote.
        newest: Generation,
    },
    /// The step is final: update cursor and ledger, and apply the gradient.
    Commit {
        /// The group's generation.
        generation: Generation,
        /// The step.
        step: Step,
    },
    /// Record the outcome of this committed step with this generation and term. The same step may
    /// be recorded twice with equal outcomes; readers keep one.
    Record {
        /// The generation in which it was committed, or whose first rank records it again.
        generation: Generation,
        /// The assignment's term.
        term: Term,
        /// The step.
        step: Step,
    },
    /// Write the state as a checkpoint, and notify the coordinator when it is complete. Answer with
    /// [`WorkerEvent::NotSaved`] if that fails for good.
    Checkpoint {
        /// The newest generation, for [`crate::CoordinatorEvent::CheckpointWritten`].
        generation: Generation,
        /// The next step of the state.
        next: Step,
    },
    /// Log the reason for a decision.
    #[serde(rename = "tell")]
    Log(Reason),
    /// End this process.
    End(Reason),
}
