//! What a coordinator's machine is told, and what it says.

use std::time::Duration;

use ronde_core::{Generation, Step};
use serde::{Deserialize, Serialize};

use crate::{
    CoordinatorId, LossCause, Place, Reason, Report, StoreReply, StoreRequest, ToWorker, WorkerId,
};

/// A place that a host offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlaceState {
    /// Which.
    pub place: Place,
    /// The worker that runs there.
    pub worker: Option<WorkerId>,
    /// The last worker that ended there, and how.
    pub ended: Option<(WorkerId, LossCause)>,
}

/// What a coordinator hears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The moment of [`crate::CoordinatorMachine::wake_at`] has come.
    Tick,
    /// The store has answered.
    Store(StoreReply),
    /// A worker has reported.
    Report(Report),
    /// The control connection to a worker is gone.
    Disconnected {
        /// Whose.
        worker: WorkerId,
        /// What the connection said.
        cause: String,
    },
    /// A worker's process has ended; told by the agent that started it.
    Exited {
        /// Who.
        worker: WorkerId,
        /// Where it ran.
        place: Place,
        /// How it ended.
        cause: LossCause,
    },
    /// A host can start workers. Told when its agent connects and whenever something changes there;
    /// saying it again does no harm.
    HostUp {
        /// Its name.
        host: String,
        /// Its places.
        places: Vec<PlaceState>,
    },
    /// The connection to a host's agent is gone. Its workers speak for themselves.
    HostDown {
        /// Its name.
        host: String,
    },
    /// Workers died at a place while another coordinator led, so long ago each. Told before the place is offered.
    DiedBefore {
        /// Where.
        place: Place,
        /// How long ago.
        ages: Vec<Duration>,
    },
    /// The process of another coordinator has ended, for certain: its lease need not be waited for.
    CoordinatorEnded {
        /// Which.
        coordinator: CoordinatorId,
    },
    /// Another count of workers is wanted.
    Scale {
        /// How many.
        workers: u32,
    },
    /// The whole job has to stop: checkpoint, then end.
    Stop {
        /// What wants it, for people.
        by: String,
    },
    /// The whole job has to end now, without another checkpoint.
    Abandon {
        /// What wants it, for people.
        by: String,
    },
    /// A worker has written a complete checkpoint, which does not count yet.
    CheckpointWritten {
        /// The newest generation that the worker has entered or left for.
        generation: Generation,
        /// Its next step.
        next: Step,
    },
}

/// How a job came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// All steps are committed.
    Finished,
    /// It was asked to stop.
    Stopped,
    /// It could not go on.
    Failed,
}

/// What a coordinator's shell has to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Ask the store; its answer is [`Event::Store`].
    Store(StoreRequest),
    /// Send a message to a worker, if it is connected.
    Send {
        /// To whom.
        to: WorkerId,
        /// What.
        message: ToWorker,
    },
    /// Start a worker through a host's agent; it has this name.
    Start {
        /// Which host.
        host: String,
        /// Which of its places.
        place: Place,
        /// The name of the new worker.
        worker: WorkerId,
    },
    /// End a worker's process that does not answer; [`Event::Exited`] follows.
    Kill {
        /// Where it runs.
        place: Place,
        /// Who.
        worker: WorkerId,
    },
    /// Write down why something was decided.
    Tell(Reason),
    /// The job is over, as far as this coordinator is concerned.
    End {
        /// How.
        ending: Ending,
        /// Why.
        reason: Reason,
    },
}
