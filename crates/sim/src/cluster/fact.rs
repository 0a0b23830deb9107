//! [`Fact`]: an observation of a simulation by an omniscient observer; invariants use only facts.

use ronde_core::{Generation, Step};
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::ledger::EpochVerdict;
use ronde_protocol::transaction::StateReport;
use ronde_protocol::{CoordinatorId, JobEnding, JobRecord, Term, WorkerId};

/// The cause of the exit of a worker process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerExit {
    /// The script killed it.
    Killed,
    /// The process exited because the job ended or it was drained.
    Regular,
    /// The process exited because no coordinator responded for too long.
    Orphaned,
    /// The process exited because no member has some slices of the state, and no checkpoint contains them.
    StateLost,
    /// The process exited without a request.
    Irregular,
}

/// An observation.
#[derive(Debug, Clone)]
pub(super) enum Fact {
    /// A worker process started.
    WorkerBegan,
    /// A worker process ended.
    WorkerEnded(WorkerId, WorkerExit),
    /// A worker entered a generation.
    Entered {
        /// The worker.
        worker: WorkerId,
        /// The term of the assignment.
        term: Term,
        /// The generation.
        generation: Generation,
        /// The members by rank.
        members: Vec<WorkerId>,
    },
    /// A worker received the reports of all members of its generation.
    Planned {
        /// The worker.
        worker: WorkerId,
        /// The generation.
        generation: Generation,
        /// The reports of the members by rank.
        reports: Vec<StateReport>,
        /// The next step.
        next: Step,
    },
    /// A worker copies the state before this step from other members.
    Heals {
        /// The worker.
        worker: WorkerId,
        /// The next step.
        next: Step,
    },
    /// A worker began to compute a step.
    Computes {
        /// The worker.
        worker: WorkerId,
        /// The generation.
        generation: Generation,
        /// The step.
        step: Step,
    },
    /// A worker committed a step.
    Committed {
        /// The worker.
        worker: WorkerId,
        /// The generation.
        generation: Generation,
        /// The step.
        step: Step,
        /// The samples of the step, according to the votes.
        ids: Vec<u64>,
        /// The check of the epoch, if the step was its last.
        verdict: Option<EpochVerdict>,
    },
    /// A worker has these elements of the state before a step: all of them, unless the state is divided.
    Holds {
        /// The worker.
        worker: WorkerId,
        /// The next step.
        next: Step,
        /// The elements.
        held: HeldRanges,
        /// Hash of their bits.
        hash: u64,
    },
    /// A worker does not use the state that it had any more.
    GivesUp(WorkerId),
    /// A worker has gathered all weights before a step.
    Weights {
        /// The worker.
        worker: WorkerId,
        /// The next step.
        next: Step,
        /// Hash of their bits.
        hash: u64,
    },
    /// A worker has received elements of a divided state that moved to it.
    Moved,
    /// A worker begins to move second copies that are missing, after a step.
    Restores,
    /// A worker has loaded its slices of a checkpoint.
    Loaded,
    /// A worker reports that slices of the state are lost.
    SliceLost {
        /// The worker.
        worker: WorkerId,
        /// The generation.
        generation: Generation,
    },
    /// The votes on a step are contradictory.
    Contradiction(String),
    /// The outcome of a step was recorded.
    Recorded {
        /// The worker that recorded it.
        worker: WorkerId,
        /// The generation in the record.
        generation: Generation,
        /// The term in the record.
        term: Term,
        /// The step.
        step: Step,
    },
    /// A checkpoint on the job's storage is complete.
    Written {
        /// The next step.
        next: Step,
        /// Hash of its bits.
        hash: u64,
    },
    /// The store's record has changed.
    Stored(JobRecord),
    /// A coordinator leads at this moment.
    Leads(CoordinatorId, Term),
    /// A coordinator has declared the end of the job.
    Over(JobEnding),
    /// The script has ended and all links work.
    Calm,
    /// The simulation has ended.
    TheEnd {
        /// Whether the job ended in time.
        in_time: bool,
        /// The number of workers that still run.
        running: usize,
    },
}
