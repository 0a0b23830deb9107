//! The seam to whoever decides which workers belong to a job: [`Membership`].
//!
//! A job goes through generations. In each one the members are fixed; when a worker is lost, leaves or
//! comes, the next one begins. Implemented by the connection to the supervisor.

use std::sync::Arc;

use crate::{Assignment, Collectives, Generation, Recovery, Step};

/// Why there is no place for this worker any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The job ends, or the supervisor is gone for good.
    #[error("the job goes on without this worker: {reason}")]
    Ended {
        /// Why.
        reason: String,
    },
    /// The job ends, and this worker is to save the state that it holds first; it then asks for its next
    /// place once more.
    #[error("a last checkpoint is wanted of this worker, for generation {generation}")]
    CheckpointWanted {
        /// The generation without members in which the job ends.
        generation: Generation,
    },
    /// No new generation was formed in time.
    #[error(
        "generation {left} was left ({cause}), and no new one was formed within {limit_s} seconds"
    )]
    Timeout {
        /// The generation that this worker left.
        left: Generation,
        /// Why it left.
        cause: String,
        /// How long it waited.
        limit_s: u64,
    },
}

impl MembershipError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}

/// How far a worker is in a generation: what whoever decides has to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Milestone {
    /// All members have agreed on the step that comes next.
    Synchronized {
        /// Which.
        next: Step,
        /// Whether this worker's state is complete; false while it still takes it over from others.
        is_complete: bool,
    },
    /// This worker has taken over the whole state.
    Healed,
    /// This worker holds the complete reduced gradient of a step.
    Reduced(Step),
    /// All members have voted on a step: it is final.
    Voted {
        /// Which.
        step: Step,
        /// The newest generation that any of them knew of.
        newest: Generation,
    },
}

/// A worker's place in its job, generation after generation. Called from one thread of the
/// worker, but for [`Membership::drain`].
pub trait Membership: Send + Sync {
    /// The newest generation that has a place for this worker, when it is newer than the one that
    /// the worker has entered. Returns at once.
    fn pending(&self) -> Option<Generation>;

    /// The worker goes into a generation with a group. When the generation is given up because a
    /// member does not answer any more, `group` is aborted.
    fn entered(&self, generation: Generation, group: Arc<dyn Collectives>);

    /// The worker has come to a milestone in the generation that it has entered. Returns at once.
    fn reached(&self, milestone: Milestone);

    /// The worker and all other members have come to the end of the run; waits until whoever decides
    /// agrees. True when the job is over, false when the worker is needed in a later generation, for a
    /// member that did not hear of the end.
    fn farewell(&self) -> bool;

    /// Asks to leave the job in good order: after a step, in a generation without this worker. The
    /// training loop goes on until [`Membership::next`] says that there is no place any more.
    fn drain(&self);

    /// Says why the worker leaves a generation, and waits for its place in a later one.
    ///
    /// # Errors
    /// There is no later one for this worker.
    fn next(&self, left: Generation, cause: &str) -> Result<Assignment, MembershipError>;
}
