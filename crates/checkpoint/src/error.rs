//! [`CheckpointError`]: errors of checkpoints, with step, file and tensor.

use ronde_core::{Recovery, Step};
use ronde_store::StoreError;

use crate::claim::Claim;
use crate::fence::Fence;

/// An error while saving, publishing or loading a checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// An operation of the store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file differs from the saved one.
    #[error("checkpoint {file} is damaged{}: {problem}", of(tensor.as_deref()))]
    Damaged {
        /// The name of the file, which includes the step.
        file: String,
        /// Tensor and vector, where known.
        tensor: Option<String>,
        /// The kind of damage.
        problem: String,
    },
    /// A file has a format version that this ronde does not support.
    #[error(
        "checkpoint {file} was written by another version of ronde: its format version is {found}, and this ronde \
         supports version {supported}; use the version of ronde that wrote it, or start a new run"
    )]
    OtherVersion {
        /// The name of the file, which includes the step.
        file: String,
        /// The version of the file.
        found: u32,
        /// The version that this ronde supports.
        supported: u32,
    },
    /// The checkpoint belongs to another plan.
    #[error("the checkpoint of step {step} belongs to another plan: {difference}")]
    OtherPlan {
        /// The step of the checkpoint.
        step: Step,
        /// The parts that differ: "here" is the current plan, "there" the checkpoint's.
        difference: String,
    },
    /// A newer fence has been claimed.
    #[error("cannot publish step {step} under {mine}: {theirs}{} has taken over", of_run(run.as_deref()))]
    Superseded {
        /// The step.
        step: Step,
        /// The fence of the caller.
        mine: Fence,
        /// The newer fence.
        theirs: Fence,
        /// The run that claimed the newer fence, if known.
        run: Option<String>,
    },
    /// Other contents have been published for the same step under the same fence.
    #[error(
        "cannot publish step {step} under {fence}: it was published with other contents: {difference}"
    )]
    OtherContents {
        /// The step.
        step: Step,
        /// The fence.
        fence: Fence,
        /// The first difference.
        difference: String,
    },
    /// The fence has not been claimed, or was claimed from another step.
    #[error("{fence} {problem}")]
    Claim {
        /// The fence.
        fence: Fence,
        /// The cause, as the rest of a sentence that starts with the fence.
        problem: String,
    },
    /// The saved parts of the ranks are not a complete checkpoint.
    #[error("cannot publish the checkpoint of step {step} from its saved parts: {problem}")]
    Parts {
        /// The step.
        step: Step,
        /// The cause.
        problem: String,
    },
    /// Checkpoints exist, but none can be used.
    #[error("no checkpoint can be used: {}", summary(skipped))]
    NoneGood {
        /// All checkpoints, the newest first.
        skipped: Vec<SkippedCheckpoint>,
    },
    /// An earlier save is still running.
    #[error("step {step} is still being saved")]
    Busy {
        /// The step.
        step: Step,
    },
    /// A save takes longer than the limit.
    #[error("cannot save step {step}: not finished after {limit_s:.1} s")]
    Timeout {
        /// The step.
        step: Step,
        /// The limit in seconds.
        limit_s: f64,
    },
    /// The saver's thread could not be started, or has ended.
    #[error("the saver's thread failed: {cause}")]
    Thread {
        /// The cause.
        cause: ThreadFailure,
    },
    /// An argument of the caller is invalid.
    #[error("invalid {what}: {problem}")]
    Invalid {
        /// The argument.
        what: String,
        /// The cause.
        problem: String,
    },
}

/// A checkpoint that was not used, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedCheckpoint {
    /// The step of the checkpoint.
    pub step: Step,
    /// The reason, as a sentence.
    pub reason: String,
}

/// The reason why a thread did not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ThreadFailure {
    /// It could not be started.
    #[error(transparent)]
    Start(std::io::Error),
    /// It panicked.
    #[error("a reading thread panicked")]
    Panicked,
    /// The saver was dropped before it ended.
    #[error("the saver was dropped")]
    Dropped,
    /// It has ended before.
    #[error("the thread has ended")]
    Ended,
}

impl CheckpointError {
    /// Returns how the caller can recover.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Store(StoreError::Conflict { .. }) | Self::Busy { .. } | Self::Timeout { .. } => {
                Recovery::Retry
            }
            Self::Store(error) => error.recovery(),
            Self::Superseded { .. } => Recovery::Rejoin,
            _ => Recovery::Abort,
        }
    }

    /// Returns whether the same operation can succeed later: the storage is not available now, or a person can free space or
    /// restore the access while the process waits.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Store(error) => error.may_pass(),
            _ => self.recovery() == Recovery::Retry,
        }
    }

    /// Returns whether stored files cannot be used, because they are damaged or another version of ronde wrote them, so that an
    /// older checkpoint may still be usable.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::OtherVersion { .. }
                | Self::Store(
                    StoreError::Damaged { .. }
                        | StoreError::NotFound { .. }
                        | StoreError::OtherKey { .. }
                )
        )
    }

    pub(crate) fn damaged(file: impl ToString, problem: impl ToString) -> Self {
        Self::Damaged {
            file: file.to_string(),
            tensor: None,
            problem: problem.to_string(),
        }
    }

    pub(crate) fn superseded(step: Step, mine: Fence, newer: &Claim) -> Self {
        Self::Superseded {
            step,
            mine,
            theirs: newer.fence,
            run: newer.run.clone(),
        }
    }

    pub(crate) fn invalid(what: impl Into<String>, problem: impl ToString) -> Self {
        Self::Invalid {
            what: what.into(),
            problem: problem.to_string(),
        }
    }
}

fn of_run(run: Option<&str>) -> String {
    run.map_or_else(String::new, |run| format!(" of {run}"))
}

fn of(tensor: Option<&str>) -> String {
    tensor.map_or_else(String::new, |tensor| format!(" in {tensor}"))
}

fn summary(skipped: &[SkippedCheckpoint]) -> String {
    const TOLD: usize = 3;
    let mut text: Vec<String> = skipped
        .iter()
        .take(TOLD)
        .map(|skipped| format!("step {}: {}", skipped.step, skipped.reason))
        .collect();
    if skipped.len() > TOLD {
        text.push(format!("and {} more", skipped.len() - TOLD));
    }
    text.join("; ")
}
