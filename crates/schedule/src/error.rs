//! [`ScheduleError`]: the reason why a schedule cannot be created or run.

use ronde_core::Recovery;

use crate::algorithm::Algorithm;

/// The reason why a schedule cannot be created or run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The algorithm cannot run this operation in this group.
    #[error("{algorithm} cannot run {operation} on {size} ranks: {reason}")]
    Refused {
        /// The requested algorithm.
        algorithm: Algorithm,
        /// The name of the operation.
        operation: &'static str,
        /// The number of ranks of the group.
        size: usize,
        /// The reason.
        reason: String,
    },
    /// The arguments are invalid for the group.
    #[error("{operation}: {problem}")]
    Invalid {
        /// The name of the operation.
        operation: &'static str,
        /// The problem.
        problem: String,
    },
    /// A schedule that violates the invariants, or schedules of ranks that do not match: a bug.
    #[error("invalid schedule: {problem}")]
    Broken {
        /// The problem.
        problem: String,
    },
    /// No algorithm has this name.
    #[error("unknown algorithm `{}`: expected one of {}", name.escape_debug(), names())]
    UnknownAlgorithm {
        /// The unknown name.
        name: String,
    },
}

impl ScheduleError {
    /// Returns the caller's action for the error: abort, because the arguments are invalid.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}

/// Returns the names of all algorithms.
fn names() -> String {
    Algorithm::ALL.map(Algorithm::name).join(", ")
}
