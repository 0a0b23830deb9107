//! [`Membership`]: the interface to the process that decides which workers belong to a job.
//!
//! A job runs through generations. The members of a generation are fixed; when a worker is lost, leaves or
//! joins, the next generation begins. Implemented by the connection to the supervisor.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Assignment, Collectives, Generation, Recovery, Step};

/// The reason why this worker has no position in the job any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// The job continues without this worker, or the supervisor is lost for good.
    #[error("this worker is no longer a member of the job: {reason}")]
    Ended {
        /// The reason.
        reason: String,
    },
    /// The job ends, and this worker has to save the state that it holds first. It then calls
    /// [`Membership::next`] once more.
    #[error("this worker has to save a last checkpoint for generation {generation}")]
    CheckpointRequested {
        /// The generation without members in which the job ends.
        generation: Generation,
    },
    /// No new generation was formed in time.
    #[error("cannot join a generation after {left}: none formed within {limit_s} s ({cause})")]
    Timeout {
        /// The generation that this worker left.
        left: Generation,
        /// The reason why it left.
        cause: String,
        /// The time that it waited, in seconds.
        limit_s: u64,
    },
}

impl MembershipError {
    /// Returns what the caller should do about the error.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}

/// The rule that decides which workers may continue when members of a generation are unreachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuccessionPolicy {
    /// The workers that the lease holder can reach: half of the workers may disappear at once.
    #[default]
    Lease,
    /// More than half of the members that are not known to have ended. Safe even with a store that
    /// loses its contents, but two halves that cannot reach each other both wait.
    Majority,
}

/// The progress of a worker in a generation, as reported to the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Milestone {
    /// All members have agreed on the next step.
    Synchronized {
        /// The next step.
        next: Step,
        /// Whether this worker's state is complete; false while it copies the state from other members.
        is_complete: bool,
    },
    /// This worker has received the whole state.
    Healed,
    /// This worker holds the complete reduced gradient of a step.
    Reduced(Step),
    /// All members have voted on a step, which makes it final.
    Voted {
        /// The step.
        step: Step,
        /// The newest generation that any member knew.
        newest: Generation,
    },
}

/// A worker's membership in its job, over all generations. All methods except [`Membership::drain`] are called
/// from one thread of the worker.
pub trait Membership: Send + Sync {
    /// Returns the newest generation that includes this worker, if it is newer than the one that the worker has
    /// entered. Does not block.
    fn pending(&self) -> Option<Generation>;

    /// Reports that the worker has entered a generation with a group. If the generation ends because a member
    /// stopped responding, `group` is aborted.
    fn entered(&self, generation: Generation, group: Arc<dyn Collectives>);

    /// Reports that the worker has reached a milestone of the generation that it has entered. Does not block.
    fn reached(&self, milestone: Milestone);

    /// Reports that all members have reached the end of the run, and waits for confirmation. Returns true when
    /// the job is over, and false when the worker is needed in a later generation for a member that missed the
    /// end.
    fn farewell(&self) -> bool;

    /// Requests to leave the job after a step; the next generation is then formed without this worker. The
    /// training loop continues until [`Membership::next`] returns an error.
    fn drain(&self);

    /// Reports why the worker leaves a generation, and waits for its assignment in a later one.
    ///
    /// # Errors
    /// No later generation includes this worker.
    fn next(&self, left: Generation, cause: &str) -> Result<Assignment, MembershipError>;
}
