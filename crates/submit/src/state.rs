//! [`JobState`]: whether a job waits, runs or is over, and how it ended.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::SubmitError;
use crate::process_folder::ProcessState;

/// The state of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum JobState {
    /// It is being placed on its target.
    Starting,
    /// It waits for the target's scheduler.
    Queued {
        /// The scheduler's reason.
        reason: String,
    },
    /// Its launcher runs.
    Running,
    /// It ended with exit code 0.
    Finished,
    /// It ended with another exit code.
    Failed {
        /// The exit code.
        code: i32,
    },
    /// It was cancelled and has ended.
    Cancelled,
    /// Its launcher was killed, or its host was started again.
    Lost,
    /// The target does not answer.
    Unknown {
        /// Why not.
        problem: String,
    },
}

impl JobState {
    /// Returns the state of a job whose target does not answer.
    #[must_use]
    pub fn unknown(error: &SubmitError) -> Self {
        Self::Unknown {
            problem: error.to_string(),
        }
    }

    /// Returns the state of a job from that of its launcher.
    #[must_use]
    pub fn of(process: &ProcessState, is_cancelled: bool) -> Self {
        match process {
            ProcessState::NotStarted => Self::Starting,
            ProcessState::Running { .. } => Self::Running,
            ProcessState::Exited { code: 0, .. } => Self::Finished,
            _ if is_cancelled => Self::Cancelled,
            ProcessState::Exited { code, .. } => Self::Failed { code: *code },
            ProcessState::Lost => Self::Lost,
        }
    }

    /// Returns whether the job has ended, so that its state does not change any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(
            self,
            Self::Finished | Self::Failed { .. } | Self::Cancelled | Self::Lost
        )
    }

    /// Returns the exit code of a command that waits for the job: that of the job, 143 for a cancelled job, and 3 for
    /// one that was lost. `None` while it is not over.
    #[must_use]
    pub fn exit_code(&self) -> Option<i32> {
        match self {
            Self::Finished => Some(0),
            Self::Failed { code } => Some(*code),
            Self::Cancelled => Some(143),
            Self::Lost => Some(3),
            _ => None,
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => write!(f, "starting"),
            Self::Queued { reason } if reason.is_empty() => write!(f, "queued"),
            Self::Queued { reason } => write!(f, "queued ({reason})"),
            Self::Running => write!(f, "running"),
            Self::Finished => write!(f, "finished"),
            Self::Failed { code } => write!(f, "failed (exit code {code})"),
            Self::Cancelled => write!(f, "cancelled"),
            Self::Lost => write!(f, "lost (its launcher was killed)"),
            Self::Unknown { problem } => {
                write!(
                    f,
                    "unknown ({})",
                    problem.lines().next().unwrap_or_default()
                )
            }
        }
    }
}
