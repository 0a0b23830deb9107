//! Why a run could not be planned, started or finished.

use std::path::PathBuf;

use ronde_checkpoint::CheckpointError;
use ronde_core::session::SessionError;
use ronde_core::{CollectiveError, MembershipError, Recovery, Step};
use ronde_data::DataError;
use ronde_engine::EngineError;
use ronde_parallel::ParallelError;

use crate::config::ConfigError;
use crate::memory::MemoryEstimate;

/// Why a run could not be planned, started or finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The run cannot be as it was asked for.
    #[error("{problem}\n  hint: {hint}")]
    Impossible {
        /// What is wrong, with the values.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// A worker needs more memory than there is.
    #[error("{}", does_not_fit(.estimate, *.available_bytes, *.local_workers))]
    DoesNotFit {
        /// What one worker needs.
        estimate: MemoryEstimate,
        /// Bytes that this host has left for all its workers.
        available_bytes: u64,
        /// Workers of this host.
        local_workers: u32,
    },
    /// The task that the supervisor handed over cannot be read.
    #[error("the task of this worker cannot be read: {problem}")]
    BrokenTask {
        /// What is wrong with it.
        problem: String,
    },
    /// The group could not be connected.
    #[error("rank {rank} could not join the group: {source}")]
    Connect {
        /// This worker.
        rank: u32,
        /// The transport's error.
        source: CollectiveError,
    },
    /// The run cannot be written down.
    #[error("{}", .0.render(false))]
    Config(#[from] ConfigError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model cannot be built.
    #[error("the model cannot be built: {0}")]
    Model(EngineError),
    /// A step failed.
    #[error("step {step}: {source}")]
    Step {
        /// Which.
        step: Step,
        /// The strategy's error.
        source: Box<ParallelError>,
    },
    /// The gradient or the loss is infinite or not a number.
    #[error(
        "training diverged at step {step}: {what} is not finite (learning rate {learning_rate:.3e})\n  \
         hint: try a lower train.learning_rate, a longer schedule.warmup_steps, or train.clip_norm"
    )]
    NotFinite {
        /// Which step.
        step: Step,
        /// What is not finite.
        what: String,
        /// The rate in force.
        learning_rate: f64,
    },
    /// The vote on a step failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The replicas are no longer equal.
    #[error("{report}")]
    Diverged {
        /// After which step.
        step: Step,
        /// Which ranks differ in which tensors.
        report: String,
    },
    /// The model could not be tried on the test set.
    #[error("evaluation failed: {0}")]
    Evaluate(Box<ParallelError>),
    /// The results of an evaluation could not be gathered.
    #[error("evaluation failed: {0}")]
    EvaluateGather(CollectiveError),
    /// The times of the first steps could not be gathered.
    #[error("the workers could not agree on a bucket size: {0}")]
    BucketSize(CollectiveError),
    /// The state could not be handed over to a worker that came new.
    #[error("handing the state over to another worker failed: {0}")]
    Heal(CollectiveError),
    /// The others did not come to the end.
    #[error("the model is trained, but not all workers came to the end: {0}")]
    Farewell(CollectiveError),
    /// The group is gone, and there is nobody to ask for another one.
    #[error("the group has ended: {cause}")]
    NoSeat {
        /// Why.
        cause: String,
    },
    /// There is no place for this worker any more.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The socket that the peers connect to is of no use any more.
    #[error("this worker cannot listen for its peers: {source}")]
    Listener {
        /// The system's answer.
        source: std::io::Error,
    },
    /// The checkpoints of the run cannot be used.
    #[error("the checkpoints cannot be used: {0}")]
    Checkpoint(Box<CheckpointError>),
    /// The key of encrypted checkpoints cannot be used.
    #[error("the key of the checkpoints: {problem}")]
    Key {
        /// What is wrong with it; never the key.
        problem: String,
    },
    /// There is nothing to go on from.
    #[error(
        "there is no checkpoint in {address}\n  \
         hint: without --resume the run starts with its first step"
    )]
    NoCheckpoint {
        /// Where none is.
        address: String,
    },
    /// Another rank could not load the checkpoint that all should go on from.
    #[error("rank 0 could not load the checkpoint")]
    NotLoaded,
    /// The run was asked to end and did so after a step.
    #[error("the run stopped before step {step}, as it was asked to{}", saved_or_not(*.saved))]
    Stopped {
        /// The step that comes next.
        step: Step,
        /// Whether a checkpoint of it was saved.
        saved: bool,
    },
    /// The weights cannot be written in their format.
    #[error("the weights cannot be serialised: {problem}")]
    Serialise {
        /// The format's answer.
        problem: String,
    },
    /// A file could not be written or read.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// `"write"`, `"create"`.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
}

fn saved_or_not(saved: bool) -> &'static str {
    if saved {
        "; a checkpoint of it is saved"
    } else {
        "; no checkpoint of it was saved"
    }
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(Box::new(error))
    }
}

fn does_not_fit(estimate: &MemoryEstimate, available_bytes: u64, local_workers: u32) -> String {
    let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
    format!(
        "the model does not fit: {local_workers} worker{} x {} = {} needed, {} available on this host\n  \
         one worker: parameters {}, gradients {}, optimizer {}, activations {} ({} samples in the largest shard), \
         samples that wait {}\n  \
         hint: {}",
        if local_workers == 1 { "" } else { "s" },
        gib(estimate.total()),
        gib(estimate.total().saturating_mul(local_workers.into())),
        gib(available_bytes),
        gib(estimate.parameters),
        gib(estimate.gradients),
        gib(estimate.optimizer),
        gib(estimate.activations),
        estimate.shard_samples,
        gib(estimate.samples),
        estimate.hint(available_bytes, local_workers),
    )
}

impl TrainError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Step { source, .. } => source.recovery(),
            Self::Session(source) => source.recovery(),
            Self::Connect { source, .. } => source.recovery(),
            Self::Data(source) => source.recovery(),
            Self::Evaluate(source) => source.recovery(),
            Self::EvaluateGather(source)
            | Self::BucketSize(source)
            | Self::Heal(source)
            | Self::Farewell(source) => source.recovery(),
            _ => Recovery::Abort,
        }
    }

    /// Whether this worker only saw that another one failed.
    #[must_use]
    pub fn is_secondary(&self) -> bool {
        matches!(self, Self::Membership(_) | Self::NotLoaded)
            || self.collective().is_some_and(saw_another)
    }

    /// What to try, where the message does not say it already.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        if let Self::File { .. } = self {
            return Some(
                "is the disk full, or the folder gone? Another one: --set run.output=FOLDER"
                    .to_owned(),
            );
        }
        collective_hint(self.collective()?)
    }

    /// The collective that failed, if one did.
    fn collective(&self) -> Option<&CollectiveError> {
        match self {
            Self::Step { source, .. } | Self::Evaluate(source) => match &**source {
                ParallelError::Collective { source, .. }
                | ParallelError::StageSum { source, .. } => Some(source),
                _ => None,
            },
            Self::EvaluateGather(source)
            | Self::BucketSize(source)
            | Self::Heal(source)
            | Self::Farewell(source)
            | Self::Connect { source, .. }
            | Self::Session(SessionError::Vote { source, .. }) => Some(source),
            _ => None,
        }
    }

    /// Whether what the user asked for is to blame: the command then ends with exit code 2.
    #[must_use]
    pub fn is_user_error(&self) -> bool {
        matches!(
            self,
            Self::Impossible { .. }
                | Self::DoesNotFit { .. }
                | Self::Data(_)
                | Self::Model(_)
                | Self::Checkpoint(_)
                | Self::Key { .. }
                | Self::NoCheckpoint { .. }
        )
    }
}

/// Whether a collective failed because another rank went away or gave up.
#[must_use]
pub fn saw_another(error: &CollectiveError) -> bool {
    matches!(
        error,
        CollectiveError::PeerLost { .. } | CollectiveError::Aborted { .. }
    )
}

/// What to try about a collective that failed, where there is something.
#[must_use]
pub fn collective_hint(error: &CollectiveError) -> Option<String> {
    match error {
        CollectiveError::Timeout { peer, .. } => Some(format!(
            "rank {peer} was stopped, hung, slow, or waited for another rank itself; \
             comm.timeout_s sets how long to wait"
        )),
        CollectiveError::OtherPlan { .. } => {
            Some("all ranks must be started with the same program, run and data".to_owned())
        }
        _ => None,
    }
}
