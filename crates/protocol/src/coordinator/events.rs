//! The events and commands of a coordinator's machine.

use std::time::Duration;

use ronde_core::{Generation, Step};
use serde::{Deserialize, Serialize};

use crate::journal::{StoreReply, StoreRequest};
use crate::membership::{CoordinatorId, WorkerId, WorkerSlot};
use crate::message::{ToWorker, WorkerReport};
use crate::reason::{LossCause, Reason};

/// A slot that a host offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotStatus {
    /// The slot.
    #[serde(rename = "place")]
    pub slot: WorkerSlot,
    /// The worker that runs in it.
    pub worker: Option<WorkerId>,
    /// The last worker that ended in it, and how.
    pub ended: Option<(WorkerId, LossCause)>,
}

/// An input of a coordinator's machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum CoordinatorEvent {
    /// The time returned by [`crate::CoordinatorMachine::wake_at`] is reached, and all events received
    /// until then were passed on. Only this event detects silent workers: the report of a worker may be
    /// the next event.
    Tick,
    /// The store's answer was received.
    Store(StoreReply),
    /// A worker's report was received.
    Report(WorkerReport),
    /// A worker's process makes progress, according to its host, but does not report: it lacks CPU time, or has not
    /// reported yet.
    Busy {
        /// The worker.
        worker: WorkerId,
    },
    /// The control connection to a worker is lost.
    Disconnected {
        /// The worker.
        worker: WorkerId,
        /// The connection's error.
        cause: String,
    },
    /// A worker's process has ended; reported by the agent that started it.
    Exited {
        /// The worker.
        worker: WorkerId,
        /// The slot in which it ran.
        slot: WorkerSlot,
        /// How it ended.
        cause: LossCause,
    },
    /// A host can start workers. Sent when its agent connects and after every change there;
    /// repeating it has no effect.
    HostUp {
        /// The host's name.
        host: String,
        /// The host's slots.
        slots: Vec<SlotStatus>,
    },
    /// The connection to a host's agent is lost. The host's workers keep reporting by themselves.
    HostDown {
        /// The host's name.
        host: String,
    },
    /// The agent of a host is connected but does not respond, so its workers are silent for a reason
    /// that is not their own.
    HostSilent {
        /// The host's name.
        host: String,
    },
    /// The agent of a host responds again.
    HostResponds {
        /// The host's name.
        host: String,
    },
    /// Workers failed in a slot while another coordinator led. Sent before the slot is offered.
    DiedBefore {
        /// The slot.
        slot: WorkerSlot,
        /// How long ago each of them failed.
        ages: Vec<Duration>,
    },
    /// Another coordinator's process has certainly ended, so its lease need not expire first.
    CoordinatorEnded {
        /// That coordinator.
        coordinator: CoordinatorId,
    },
    /// The target number of workers was changed.
    Scale {
        /// The new target.
        workers: u32,
    },
    /// The whole job is to stop: write a checkpoint, then end.
    Stop {
        /// The origin of the request, for display.
        by: String,
    },
    /// The whole job is to end now, without another checkpoint.
    Abandon {
        /// The origin of the request, for display.
        by: String,
    },
    /// A worker has written a complete checkpoint, which is not published yet.
    CheckpointWritten {
        /// The newest generation that the worker has entered, or left its group for.
        generation: Generation,
        /// The checkpoint's next step.
        next: Step,
    },
}

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobEnding {
    /// All steps are committed.
    Finished,
    /// A stop was requested.
    Stopped,
    /// It could not continue.
    Failed,
}

/// An action for a coordinator's shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum CoordinatorCommand {
    /// Send a request to the store, whose answer is [`CoordinatorEvent::Store`].
    Store(StoreRequest),
    /// Send a message to a worker, if it is connected.
    Send {
        /// The receiver.
        to: WorkerId,
        /// The message.
        message: ToWorker,
    },
    /// Start a worker with this id through a host's agent.
    Start {
        /// The host.
        host: String,
        /// The slot.
        slot: WorkerSlot,
        /// The id of the new worker.
        worker: WorkerId,
    },
    /// Kill the process of an unresponsive worker; [`CoordinatorEvent::Exited`] follows.
    Kill {
        /// The slot in which it runs.
        slot: WorkerSlot,
        /// The worker.
        worker: WorkerId,
    },
    /// Log the reason for a decision.
    #[serde(rename = "tell")]
    Log(Reason),
    /// The job is over as far as this coordinator is concerned.
    End {
        /// How it ended.
        ending: JobEnding,
        /// The reason.
        reason: Reason,
    },
}
