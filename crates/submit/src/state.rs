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
    Running {
        /// Why it cannot store its output, or does not respond.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    /// It ended with exit code 0.
    Finished,
    /// It ended with another exit code.
    Failed {
        /// The exit code.
        code: i32,
        /// The error that has ended it, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
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

    /// The state of a job whose launcher runs.
    pub(crate) const RUNNING: Self = Self::Running { problem: None };

    /// Returns the state of a job that failed for a reason that only its output has.
    pub(crate) fn failed(code: i32) -> Self {
        Self::Failed { code, reason: None }
    }

    /// Returns the problem of a running job, or the error that has ended it.
    #[must_use]
    pub fn problem(&self) -> Option<&str> {
        match self {
            Self::Running { problem } => problem.as_deref(),
            Self::Failed { reason, .. } => reason.as_deref(),
            _ => None,
        }
    }

    /// Returns the state of a job from that of its launcher.
    #[must_use]
    pub fn of(process: &ProcessState, is_cancelled: bool) -> Self {
        match process {
            ProcessState::NotStarted => Self::Starting,
            ProcessState::Running { problem, .. } => Self::Running {
                problem: problem.clone(),
            },
            ProcessState::Exited { code: 0, .. } => Self::Finished,
            _ if is_cancelled => Self::Cancelled,
            ProcessState::Exited { code, reason, .. } => Self::Failed {
                code: *code,
                reason: reason.clone(),
            },
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
            Self::Failed { code, .. } => Some(*code),
            Self::Cancelled => Some(143),
            Self::Lost => Some(3),
            _ => None,
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_word(f)?;
        match self.problem().and_then(|problem| problem.lines().next()) {
            Some(problem) => write!(
                f,
                ": {}",
                problem.strip_prefix("error: ").unwrap_or(problem)
            ),
            None => Ok(()),
        }
    }
}

impl JobState {
    fn write_word(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => write!(f, "starting"),
            Self::Queued { reason } if reason.is_empty() => write!(f, "queued"),
            Self::Queued { reason } => write!(f, "queued ({reason})"),
            Self::Running { .. } => write!(f, "running"),
            Self::Finished => write!(f, "finished"),
            Self::Failed { code, .. } => write!(f, "failed (exit code {code})"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problem_of_a_job_is_part_of_its_state() {
        let ended = |reason: Option<&str>| {
            let process = ProcessState::Exited {
                code: 3,
                at_ms: 0,
                reason: reason.map(str::to_owned),
            };
            JobState::of(&process, false)
        };
        assert_eq!(ended(None).to_string(), "failed (exit code 3)");
        let reason = "error: cannot write x: No space left on device\n  help: free some space";
        assert_eq!(
            ended(Some(reason)).to_string(),
            "failed (exit code 3): cannot write x: No space left on device"
        );
        let text = serde_json::to_string(&JobState::RUNNING).unwrap();
        assert_eq!(text, "{\"state\":\"running\"}");
        let earlier: JobState = serde_json::from_str("{\"state\":\"failed\",\"code\":3}").unwrap();
        assert_eq!(earlier, JobState::failed(3));
    }
}
