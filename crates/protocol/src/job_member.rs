//! [`JobMember`]: the interface through which a worker takes part in a job.
//!
//! A job runs through generations. The members of a generation are fixed. In an elastic job, the next generation
//! begins when a worker is lost, leaves or joins; a job with fixed members has one generation.

use std::sync::Arc;

use ronde_core::{Collectives, Generation, GroupRank, Recovery, Step};

use crate::assignment::Assignment;

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
    /// [`JobMember::next`] once more.
    #[error("this worker has to save a last checkpoint for generation {generation}")]
    CheckpointRequested {
        /// The generation without members in which the job ends.
        generation: Generation,
    },
    /// The members of the job are fixed, so no generation follows the one that has ended.
    #[error("the members of the job are fixed, so it cannot continue: {cause}")]
    FixedMembers {
        /// The reason why this worker left its generation.
        cause: String,
    },
    /// The first generation was not formed in time.
    #[error("cannot join the job: its workers were not ready within {limit_s} s")]
    NotFormed {
        /// The time that this worker waited, in seconds.
        limit_s: u64,
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
    /// Returns the caller's action for the error.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
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
    /// The members have only parts of a state together, and silent workers may have the others. All members leave the group and wait
    /// for these.
    LacksState,
    /// This worker has given up saving the last checkpoint that [`MembershipError::CheckpointRequested`] of this generation
    /// requested.
    NotSaved(Generation),
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

/// The end of a worker's part in a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Departure {
    /// The generation that the worker leaves.
    pub left: Generation,
    /// The reason.
    pub cause: String,
    /// The member of that generation that could not be reached, if that was the reason.
    pub unreachable: Option<GroupRank>,
}

/// A worker's membership in its job, over all generations. All methods except [`JobMember::drain`] are called from
/// one thread of the worker.
///
/// Implemented by [`LoneMember`], by a worker's connection to the supervisor of its host, and by members whose ranks
/// another launcher has assigned.
pub trait JobMember: Send + Sync {
    /// Waits for this worker's assignment in its first generation, or in a later one than the generation that it
    /// leaves.
    ///
    /// # Errors
    /// No such generation includes this worker.
    fn next(&self, departure: Option<Departure>) -> Result<Assignment, MembershipError>;

    /// Returns the newest generation that includes this worker, if it is newer than the one that the worker has
    /// entered. Does not block.
    fn pending(&self) -> Option<Generation>;

    /// Returns whether the [`JobMember::pending`] generation has no members, because the job stops. Does not block.
    fn is_stopping(&self) -> bool {
        false
    }

    /// Returns whether a newer generation, which begins after the next vote, lacks a member of the current one. False by
    /// default.
    fn drops_members(&self) -> bool {
        false
    }

    /// Reports that the worker has entered a generation with a group. If the generation ends because a member
    /// stopped responding, `group` is aborted.
    fn entered(&self, generation: Generation, group: Arc<dyn Collectives>);

    /// Reports that the worker has reached a milestone of the generation that it has entered. Does not block.
    fn reached(&self, milestone: Milestone);

    /// Reports that all members have reached the end of the run, and waits for confirmation. Returns true when
    /// the job is over, and false when the worker is needed in a later generation for a member that missed the
    /// end.
    fn farewell(&self) -> bool;

    /// Requests to leave an elastic job after a step; the next generation is then formed without this worker. The
    /// training loop continues until [`JobMember::next`] returns an error. Has no effect if the members are fixed.
    fn drain(&self);
}

/// The only worker of a job, which no supervisor started.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoneMember;

impl JobMember for LoneMember {
    fn next(&self, departure: Option<Departure>) -> Result<Assignment, MembershipError> {
        match departure {
            None => Ok(Assignment::alone()),
            Some(Departure { cause, .. }) => Err(MembershipError::FixedMembers { cause }),
        }
    }

    fn pending(&self) -> Option<Generation> {
        None
    }

    fn entered(&self, _: Generation, _: Arc<dyn Collectives>) {}

    fn reached(&self, _: Milestone) {}

    fn farewell(&self) -> bool {
        true
    }

    fn drain(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_member_has_one_generation() {
        let first = LoneMember.next(None).unwrap();
        assert_eq!((first.rank.0, first.world_size.get()), (0, 1));
        assert_eq!(LoneMember.pending(), None);
        assert!(LoneMember.farewell());
        let departure = Departure {
            left: first.generation,
            cause: "a bad step".to_owned(),
            unreachable: None,
        };
        let error = LoneMember.next(Some(departure)).unwrap_err();
        assert!(error.to_string().ends_with(": a bad step"), "{error}");
    }
}
