//! [`TrainError`]: errors of planning, starting and finishing a run.

use std::path::PathBuf;

use ronde_checkpoint::CheckpointError;
use ronde_core::units::bytes;
use ronde_core::{CollectiveError, Recovery, Step};
use ronde_data::DataError;
use ronde_engine::EngineError;
use ronde_parallel::ParallelError;
use ronde_protocol::transaction::TransactionError;
use ronde_protocol::{MembershipError, RejoinError};
use ronde_saved_model::ModelError;

use crate::config::ConfigError;
use crate::memory::MemoryEstimate;

/// An error of planning, starting or finishing a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The run is impossible as configured.
    #[error("{problem}\n  help: {hint}")]
    Impossible {
        /// The problem, with the values.
        problem: String,
        /// The next action for the user.
        hint: String,
    },
    /// A worker needs more memory than there is.
    #[error("{}", does_not_fit(.estimate, *.needed_bytes, *.available_bytes, *.local_workers, .hint))]
    DoesNotFit {
        /// The memory that the worker with the most needs.
        estimate: Box<MemoryEstimate>,
        /// The bytes that all workers of this host need together.
        needed_bytes: u64,
        /// The bytes available on this host for all its workers.
        available_bytes: u64,
        /// The number of workers on this host.
        local_workers: u32,
        /// What fits instead.
        hint: String,
    },
    /// The task that the supervisor sent cannot be read.
    #[error("cannot read the task of this worker: {problem}")]
    BrokenTask {
        /// The problem.
        problem: String,
    },
    /// The group could not be connected.
    #[error("rank {rank} cannot join the group: {source}")]
    Connect {
        /// This worker.
        rank: u32,
        /// The transport's error.
        source: CollectiveError,
    },
    /// The run cannot be written as a run file.
    #[error("{}", .0.render(false))]
    Config(#[from] ConfigError),
    /// The data cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The model cannot be built.
    #[error("{}", model_problem(.0))]
    Model(EngineError),
    /// The engine cannot be used, or starts no more threads.
    #[error(transparent)]
    Engine(EngineError),
    /// A step failed.
    #[error("step {step}: {source}")]
    Step {
        /// The step.
        step: Step,
        /// The strategy's error.
        source: Box<ParallelError>,
    },
    /// The gradient or the loss is infinite or not a number.
    #[error(
        "training diverged at step {step}: {what} is not finite (learning rate {learning_rate:.3e})\n  \
         help: try a lower train.learning_rate, a longer schedule.warmup_steps, or train.clip_norm"
    )]
    NotFinite {
        /// The step.
        step: Step,
        /// The quantity that is not finite.
        what: String,
        /// The learning rate of the step.
        learning_rate: f64,
    },
    /// A learning rate that is negative, infinite or not a number.
    #[error(
        "invalid learning rate `{rate}` of step {step} by {name}: expected a number of at least 0"
    )]
    LearningRate {
        /// The step.
        step: Step,
        /// The name of the function of the learning rate.
        name: String,
        /// Its value.
        rate: f64,
    },
    /// The gradients of a custom loop could not be summed.
    #[error("cannot sum the gradients: {0}")]
    Reduce(CollectiveError),
    /// The vote on a step failed.
    #[error(transparent)]
    Session(#[from] TransactionError),
    /// The replicas differ.
    #[error("{report}")]
    Diverged {
        /// The last committed step.
        step: Step,
        /// The ranks and tensors that differ.
        report: String,
    },
    /// The model could not be evaluated on the test set.
    #[error("evaluation failed: {0}")]
    Evaluate(Box<ParallelError>),
    /// The outputs of the trained model could not be computed.
    #[error("cannot predict: {0}")]
    Predict(Box<ParallelError>),
    /// The results of an evaluation could not be gathered.
    #[error("evaluation failed: {0}")]
    EvaluateGather(CollectiveError),
    /// The times of the first steps could not be gathered.
    #[error("cannot agree on a bucket size: {0}")]
    BucketSize(CollectiveError),
    /// The state could not be transferred to a new worker.
    #[error("cannot transfer the state to another worker: {0}")]
    Heal(CollectiveError),
    /// The offsets between the clocks of the hosts could not be measured.
    #[error("cannot compare the clocks of the workers: {0}")]
    ClockAlignment(CollectiveError),
    /// Another worker failed before it reached the end of the run.
    #[error("the model is trained, but not all workers reached the end of the run: {0}")]
    Farewell(CollectiveError),
    /// The group has failed, and this worker cannot join another generation.
    #[error("the group has ended: {cause}")]
    NoNextGeneration {
        /// The cause of the failure.
        cause: String,
    },
    /// The members of a generation lack parts of the state that silent workers may have.
    #[error(
        "the remaining workers have only parts of the state before step {step}; waiting for {workers} without an answer"
    )]
    LacksState {
        /// The next step.
        step: Step,
        /// The number of silent workers.
        workers: u32,
    },
    /// More samples were skipped than the data set allows.
    #[error(
        "{skipped} of {of} samples were skipped up to step {step}, more than data.bad_record_limit = {limit} allows\n  \
         help: `ronde data inspect` lists bad records; use other files, or raise data.bad_record_limit"
    )]
    TooManySkipped {
        /// The last step.
        step: Step,
        /// The number of skipped samples of all ranks.
        skipped: u64,
        /// The number of samples of the steps so far, or of an epoch if that is more.
        of: u64,
        /// The share that may be skipped.
        limit: f64,
    },
    /// This worker has left the job.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// The socket for incoming connections of peers has failed.
    #[error("cannot listen for peers: {source}")]
    Listener {
        /// The system's error.
        source: std::io::Error,
    },
    /// The system starts no more threads for the rounds of parameter servers.
    #[error("cannot start a thread that serves workers: {source}")]
    Thread {
        /// The system's error.
        source: std::io::Error,
    },
    /// The checkpoints of the run cannot be used.
    #[error("cannot use the checkpoints: {0}")]
    Checkpoint(Box<CheckpointError>),
    /// The key of encrypted checkpoints cannot be used.
    #[error("invalid encryption key of the checkpoints: {problem}")]
    Key {
        /// The problem; it never contains the key.
        problem: String,
    },
    /// A checkpoint to resume from is missing.
    #[error(
        "there is no checkpoint in {address}\n  \
         help: remove --resume to start with the first step"
    )]
    NoCheckpoint {
        /// The address of the checkpoint store.
        address: String,
    },
    /// Rank 0 could not load the checkpoint to resume from.
    #[error("rank 0 cannot load the checkpoint")]
    NotLoaded,
    /// Another rank could not read the initial weights.
    #[error("rank {rank} cannot read the initial weights")]
    InitialWeightsNotRead {
        /// The rank that reads the file.
        rank: ronde_core::Rank,
    },
    /// The run stopped after a step, as requested.
    #[error("the run stopped before step {step}, as requested{}", saved_or_not(*.saved))]
    Stopped {
        /// The next step.
        step: Step,
        /// Whether a checkpoint was saved.
        saved: bool,
    },
    /// The weights cannot be serialised.
    #[error("cannot serialise the weights: {problem}")]
    Serialise {
        /// The error of the format.
        problem: String,
    },
    /// A saved model cannot be used.
    #[error(transparent)]
    SavedModel(Box<ModelError>),
    /// A file could not be written or read.
    #[error("cannot {action} {}: {source}", .path.display())]
    File {
        /// `"write"`, `"create"`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

fn saved_or_not(saved: bool) -> &'static str {
    if saved {
        "; a checkpoint was saved"
    } else {
        "; no checkpoint was saved"
    }
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(Box::new(error))
    }
}

impl From<ModelError> for TrainError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::File {
                action,
                path,
                source,
            } => Self::File {
                action,
                path,
                source,
            },
            error => Self::SavedModel(Box::new(error)),
        }
    }
}

/// Returns the message about a model that cannot be built.
fn model_problem(error: &EngineError) -> String {
    match error {
        EngineError::Model { .. } => error.to_string(),
        error => format!("cannot build the model: {error}"),
    }
}

fn does_not_fit(
    estimate: &MemoryEstimate,
    needed_bytes: u64,
    available_bytes: u64,
    local_workers: u32,
    hint: &str,
) -> String {
    let workers = match local_workers {
        1 => "1 worker needs".to_owned(),
        workers => format!("{workers} workers need"),
    };
    format!(
        "the model does not fit: {workers} {}, {} available on this host\n  \
         {} needs {}: parameters {}, gradients {}, optimizer {}, checkpoint copy {}, activations {} ({} samples in the largest shard), \
         prefetched samples {}\n  \
         help: {hint}",
        bytes(needed_bytes),
        bytes(available_bytes),
        if local_workers == 1 {
            "it"
        } else {
            "the one with the most"
        },
        bytes(estimate.total()),
        bytes(estimate.parameters),
        bytes(estimate.gradients),
        bytes(estimate.optimizer),
        bytes(estimate.checkpoint),
        bytes(estimate.activations),
        estimate.shard_samples,
        bytes(estimate.samples),
    )
}

impl From<RejoinError> for TrainError {
    fn from(error: RejoinError) -> Self {
        match error {
            RejoinError::Log(error) => error.into(),
            error => Self::Impossible {
                problem: format!("the members of a new generation contradict each other: {error}"),
                hint: "this is a bug of ronde; please report it".to_owned(),
            },
        }
    }
}

impl TrainError {
    /// Returns the error of a step or a round whose method has failed.
    pub(crate) fn of_step(step: Step, source: ParallelError) -> Self {
        Self::Step {
            step,
            source: Box::new(source),
        }
    }

    /// Does the same; a gradient that is not finite is reported with the learning rate.
    pub(crate) fn of_gradient(step: Step, learning_rate: f64, error: ParallelError) -> Self {
        match error {
            ParallelError::NotFinite { tensor } => Self::NotFinite {
                step,
                what: format!("the gradient of {tensor}"),
                learning_rate,
            },
            source => Self::of_step(step, source),
        }
    }

    /// Returns how to recover from the error.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Step { source, .. } => source.recovery(),
            Self::Session(source) => source.recovery(),
            Self::Connect { source, .. } => source.recovery(),
            Self::Data(source) => source.recovery(),
            Self::Evaluate(source) => source.recovery(),
            Self::EvaluateGather(source)
            | Self::Reduce(source)
            | Self::BucketSize(source)
            | Self::Heal(source)
            | Self::ClockAlignment(source)
            | Self::Farewell(source) => source.recovery(),
            Self::LacksState { .. } => Recovery::Rejoin,
            _ => Recovery::Abort,
        }
    }

    /// Returns whether this error is only a consequence of another worker's failure.
    #[must_use]
    pub fn is_secondary(&self) -> bool {
        matches!(
            self,
            Self::Membership(_)
                | Self::NotLoaded
                | Self::LacksState { .. }
                | Self::InitialWeightsNotRead { .. }
        ) || self.collective().is_some_and(saw_another)
    }

    /// Returns a hint, unless the message already contains one.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        if let Self::File { .. } = self {
            return Some(
                "check that the disk has space and the folder exists, or choose another with --set run.output=FOLDER"
                    .to_owned(),
            );
        }
        collective_hint(self.collective()?)
    }

    /// Returns the failed collective, if any.
    pub(crate) fn collective(&self) -> Option<&CollectiveError> {
        match self {
            Self::Step { source, .. } | Self::Evaluate(source) => match &**source {
                ParallelError::Collective { source, .. }
                | ParallelError::LayerSum { source, .. }
                | ParallelError::Exchange { source, .. } => Some(source),
                _ => None,
            },
            Self::EvaluateGather(source)
            | Self::Reduce(source)
            | Self::BucketSize(source)
            | Self::Heal(source)
            | Self::ClockAlignment(source)
            | Self::Farewell(source)
            | Self::Connect { source, .. }
            | Self::Session(TransactionError::Vote { source, .. }) => Some(source),
            _ => None,
        }
    }

    /// Returns whether the user's input caused the error; the command then exits with code 2.
    #[must_use]
    pub fn is_user_error(&self) -> bool {
        if let Self::Step { source, .. } | Self::Evaluate(source) | Self::Predict(source) = self {
            return source.is_user_error();
        }
        matches!(
            self,
            Self::Impossible { .. }
                | Self::LearningRate { .. }
                | Self::DoesNotFit { .. }
                | Self::Data(_)
                | Self::TooManySkipped { .. }
                | Self::Model(_)
                | Self::Engine(_)
                | Self::SavedModel(_)
                | Self::Checkpoint(_)
                | Self::Key { .. }
                | Self::NoCheckpoint { .. }
        )
    }
}

/// Returns whether a collective failed because another rank exited or aborted.
#[must_use]
pub fn saw_another(error: &CollectiveError) -> bool {
    matches!(
        error,
        CollectiveError::PeerLost { .. } | CollectiveError::Aborted { .. }
    )
}

/// Returns a hint for a failed collective, if there is one.
#[must_use]
pub fn collective_hint(error: &CollectiveError) -> Option<String> {
    match error {
        CollectiveError::Timeout { peer, .. } => Some(format!(
            "rank {peer} may be stopped, hung or slow, or waiting for another rank; \
             comm.timeout_s sets the time limit"
        )),
        CollectiveError::OtherPlan { .. } => {
            Some("start all ranks with the same program, run and data".to_owned())
        }
        _ => None,
    }
}
