//! [`CheckpointError`]: what can go wrong with checkpoints, told by step, file and tensor.

use ronde_core::{Recovery, Step};
use ronde_store::StoreError;

use crate::Fence;

/// Why a checkpoint was not saved, published or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The store did not do what it was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file is not what was saved.
    #[error("checkpoint {file} is damaged{}: {problem}", of(tensor.as_deref()))]
    Damaged {
        /// Which file, its step included.
        file: String,
        /// Which tensor of which vector, where that is known.
        tensor: Option<String>,
        /// What is wrong with it.
        problem: String,
    },
    /// The checkpoint belongs to another plan.
    #[error("the checkpoint of step {step} belongs to another plan: {difference}")]
    OtherPlan {
        /// Which checkpoint.
        step: Step,
        /// The parts that differ: "here" is the plan at hand, "there" the checkpoint's.
        difference: String,
    },
    /// Somebody with a newer authority has taken over.
    #[error("step {step} may not be published under {mine}: {theirs} has taken over")]
    Superseded {
        /// Which step.
        step: Step,
        /// The authority at hand.
        mine: Fence,
        /// The newer one.
        theirs: Fence,
    },
    /// The same authority has published something else as the same step.
    #[error("step {step} was published under {fence} with other contents: {difference}")]
    OtherContents {
        /// Which step.
        step: Step,
        /// The authority.
        fence: Fence,
        /// The first difference.
        difference: String,
    },
    /// The authority has not been claimed, or from another step.
    #[error("{fence} {problem}")]
    Claim {
        /// The authority.
        fence: Fence,
        /// What is wrong with it.
        problem: String,
    },
    /// The saved parts of the ranks do not make a checkpoint.
    #[error("the saved parts do not make a checkpoint of step {step}: {problem}")]
    Parts {
        /// Which step.
        step: Step,
        /// What is wrong with them.
        problem: String,
    },
    /// There are checkpoints, but none can be used.
    #[error("no checkpoint can be used: {}", told(skipped))]
    NoneGood {
        /// All of them, the newest first.
        skipped: Vec<Skipped>,
    },
    /// A save is still under way.
    #[error("step {step} is still being saved")]
    Busy {
        /// Which step.
        step: Step,
    },
    /// A save takes longer than the caller waits.
    #[error("saving step {step} has not ended after {limit_s:.1} s")]
    Timeout {
        /// Which step.
        step: Step,
        /// The limit in seconds.
        limit_s: f64,
    },
    /// The saver's thread could not be started, or ended.
    #[error("the saver's thread: {problem}")]
    Thread {
        /// What happened.
        problem: String,
    },
    /// The caller asked for what cannot be.
    #[error("{what}: {problem}")]
    Invalid {
        /// The argument.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// A checkpoint that was passed over, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Which one.
    pub step: Step,
    /// Why, as a sentence.
    pub reason: String,
}

impl CheckpointError {
    /// What to do about it.
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

    /// Whether it says that files are not what was saved, so that an older checkpoint may serve.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(
            self,
            Self::Damaged { .. }
                | Self::Store(
                    StoreError::Damaged { .. }
                        | StoreError::NotFound { .. }
                        | StoreError::OtherKey { .. }
                )
        )
    }

    pub(crate) fn damaged(file: impl ToString, problem: impl Into<String>) -> Self {
        Self::Damaged {
            file: file.to_string(),
            tensor: None,
            problem: problem.into(),
        }
    }

    pub(crate) fn invalid(what: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Invalid {
            what: what.into(),
            problem: problem.into(),
        }
    }
}

fn of(tensor: Option<&str>) -> String {
    tensor.map_or_else(String::new, |tensor| format!(" in {tensor}"))
}

fn told(skipped: &[Skipped]) -> String {
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
