//! [`Fact`]: what an all-knowing observer sees of a simulation; the invariants are about facts only.

use ronde_core::ledger::EpochVerdict;
use ronde_core::{Generation, Step};
use ronde_elastic::{CoordinatorId, JobEnding, JobRecord, Position, Term, WorkerId};

/// How a worker's process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The script killed it.
    Killed,
    /// It ended itself: the job was over, or it drained.
    Regular,
    /// It ended itself: no coordinator answered it for too long.
    Orphaned,
    /// It ended itself although nothing asked for it.
    Irregular,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub enum Fact {
    /// A worker process began.
    WorkerBegan(WorkerId),
    /// A worker process ended.
    WorkerEnded(WorkerId, Exit),
    /// A worker entered a generation.
    Entered {
        /// Who.
        worker: WorkerId,
        /// Of the assignment.
        term: Term,
        /// Which.
        generation: Generation,
        /// Its members by rank.
        members: Vec<WorkerId>,
    },
    /// A worker learnt where all members of its generation stand.
    Planned {
        /// Who.
        worker: WorkerId,
        /// Which generation.
        generation: Generation,
        /// Of the members by rank.
        positions: Vec<Position>,
        /// What is computed first.
        next: Step,
    },
    /// A worker takes the state before this step over from others.
    Heals {
        /// Who.
        worker: WorkerId,
        /// The next step.
        next: Step,
    },
    /// A worker began to compute a step.
    Computes {
        /// Who.
        worker: WorkerId,
        /// In which generation.
        generation: Generation,
        /// Which.
        step: Step,
    },
    /// A worker committed a step.
    Committed {
        /// Who.
        worker: WorkerId,
        /// In which generation.
        generation: Generation,
        /// Which.
        step: Step,
        /// Samples that went into it, as voted.
        ids: Vec<u64>,
        /// What became of the epoch, when the step was its last.
        verdict: Option<EpochVerdict>,
    },
    /// A worker's state is complete and stands before a step.
    Holds {
        /// Who.
        worker: WorkerId,
        /// The next step.
        next: Step,
        /// Hash of all its bits.
        hash: u64,
    },
    /// The votes on a step contradict each other.
    Contradiction(String),
    /// The outcome of a step was written down.
    Recorded {
        /// Who wrote.
        worker: WorkerId,
        /// With this generation.
        generation: Generation,
        /// And this term.
        term: Term,
        /// Which.
        step: Step,
    },
    /// A checkpoint is complete on the job's storage.
    Written {
        /// Next step.
        next: Step,
        /// Hash of its bits.
        hash: u64,
    },
    /// The store's record has changed.
    Stored(JobRecord),
    /// A coordinator leads at this moment.
    Leads(CoordinatorId, Term),
    /// A coordinator has called the job over.
    Over(JobEnding),
    /// The script does nothing any more; all links are whole.
    Calm,
    /// The simulation is over: whether in time.
    TheEnd {
        /// Whether the job came to its end.
        in_time: bool,
        /// Workers that still run.
        running: usize,
    },
}
