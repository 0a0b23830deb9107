//! [`ScheduleError`]: why there is no such schedule.

use ronde_core::Recovery;

use crate::Algorithm;

/// Why there is no such schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The algorithm cannot do this operation in this group.
    #[error("{algorithm} cannot run {operation} on {size} ranks: {reason}")]
    Refused {
        /// What was asked for.
        algorithm: Algorithm,
        /// Kind of operation.
        operation: &'static str,
        /// Ranks of the group.
        size: usize,
        /// Why not.
        reason: String,
    },
    /// The arguments fit no group.
    #[error("{operation}: {problem}")]
    Invalid {
        /// Kind of operation.
        operation: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A schedule that no executor may run, or ranks' schedules that do not fit together: a bug.
    #[error("broken schedule: {problem}")]
    Broken {
        /// What is wrong.
        problem: String,
    },
    /// No algorithm has this name.
    #[error("no algorithm is called {name:?}; there are {}", names())]
    UnknownAlgorithm {
        /// What was written.
        name: String,
    },
}

impl ScheduleError {
    /// What to do about it: the caller's arguments are wrong.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}

/// All algorithms in one phrase.
fn names() -> String {
    Algorithm::ALL.map(Algorithm::name).join(", ")
}
