//! [`Event`]: the events of a run, as versioned values; and [`Tracker`], which records them.

use std::collections::BTreeMap;

use serde::de::{Error, IgnoredAny};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::histogram::{TensorValues, ValueHistogram};
use crate::rank::{Epoch, Generation, Rank, Step};
use crate::skipped_update::{SkippedUpdate, SkippedUpdates};
use crate::staleness::WorkerStaleness;

/// Reads a number. JSON cannot represent NaN and infinity: they are written as `null` and read as NaN.
fn is_zero(number: &u64) -> bool {
    *number == 0
}

fn number_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Reads a list of numbers; `null` is read as NaN.
fn list_of_numbers<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<f64>, D::Error> {
    let numbers = Vec::<Option<f64>>::deserialize(deserializer)?;
    Ok(numbers
        .into_iter()
        .map(|number| number.unwrap_or(f64::NAN))
        .collect())
}

/// Reads the numbers of a map; `null` is read as NaN, and anything else is left out.
fn numbers<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Field {
        Number(f64),
        Null(()),
        Other(IgnoredAny),
    }
    let fields = BTreeMap::<String, Field>::deserialize(deserializer)?;
    let number = |(name, field)| match field {
        Field::Number(number) => Some((name, number)),
        Field::Null(()) => Some((name, f64::NAN)),
        Field::Other(_) => None,
    };
    Ok(fields.into_iter().filter_map(number).collect())
}

/// The durations of the phases of one step on one worker, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// Forward pass, backward pass and optimizer.
    #[serde(deserialize_with = "number_or_null")]
    pub compute_s: f64,
    /// Communication that did not overlap with computation, including the wait for other ranks.
    #[serde(deserialize_with = "number_or_null")]
    pub communicate_s: f64,
    /// Waiting for the loader.
    #[serde(deserialize_with = "number_or_null")]
    pub wait_data_s: f64,
    /// The part of `compute_s` spent in the forward pass and the loss.
    #[serde(default, deserialize_with = "number_or_null")]
    pub forward_s: f64,
    /// The part of `compute_s` spent in the backward pass, including the sum over shards.
    #[serde(default, deserialize_with = "number_or_null")]
    pub backward_s: f64,
    /// The part of `compute_s` spent in the optimizer, including the copy of the weights into the model.
    #[serde(default, deserialize_with = "number_or_null")]
    pub optimizer_s: f64,
    /// Duration of the gradient reductions, whether they overlapped with computation or not.
    #[serde(default, deserialize_with = "number_or_null")]
    pub reducing_s: f64,
    /// The part of `reducing_s` during which the worker only waited.
    #[serde(default, deserialize_with = "number_or_null")]
    pub waited_s: f64,
}

impl PhaseTimes {
    /// Returns the sum of computation, communication and the wait for data.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.compute_s + self.communicate_s + self.wait_data_s
    }

    /// Returns the share of `reducing_s` that overlapped with computation; `None` if no gradients were reduced.
    #[must_use]
    pub fn hidden_share(&self) -> Option<f64> {
        let share = 1.0 - self.waited_s / self.reducing_s;
        (self.reducing_s > 0.0).then(|| share.clamp(0.0, 1.0))
    }

    /// Adds another step's times.
    pub fn add(&mut self, other: &Self) {
        self.compute_s += other.compute_s;
        self.communicate_s += other.communicate_s;
        self.wait_data_s += other.wait_data_s;
        self.forward_s += other.forward_s;
        self.backward_s += other.backward_s;
        self.optimizer_s += other.optimizer_s;
        self.reducing_s += other.reducing_s;
        self.waited_s += other.waited_s;
    }
}

/// A phase of a step, in which a rank can lose time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StepPhase {
    /// Waiting for the loader.
    Data,
    /// The forward pass and the loss.
    Forward,
    /// The backward pass.
    Backward,
    /// Reductions and votes.
    Communication,
    /// The optimizer and the hash of the weights.
    Optimizer,
    /// Between two steps, such as an evaluation or a checkpoint.
    Other,
}

impl std::fmt::Display for StepPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Data => "waiting for data",
            Self::Forward => "the forward pass",
            Self::Backward => "the backward pass",
            Self::Communication => "communication",
            Self::Optimizer => "the optimizer",
            Self::Other => "work between steps",
        })
    }
}

/// The totals of a run over all its attempts. Steps that were computed again after a checkpoint was loaded count once.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RunTotals {
    /// The number of the current attempt; 0 and 1: the first.
    pub attempt: u32,
    /// The duration of all attempts up to this event, in seconds.
    #[serde(deserialize_with = "number_or_null")]
    pub elapsed_s: f64,
    /// The number of counted steps.
    pub steps: u64,
    /// Steps below this number are not counted when they are committed again.
    pub counted_until: u64,
    /// The number of samples used.
    pub samples: u64,
    /// The number of samples skipped because they cannot be read.
    pub skipped: u64,
    /// The counted steps that have updated no parameter.
    #[serde(default)]
    pub skipped_updates: SkippedUpdates,
    /// How often the run began again with its first step.
    #[serde(default)]
    pub restarts: u64,
    /// The sum of the durations of all steps, in seconds.
    #[serde(deserialize_with = "number_or_null")]
    pub steps_s: f64,
    /// The totals of each worker.
    pub workers: Vec<WorkerTotals>,
    /// The number of workers that failed in this attempt.
    #[serde(default)]
    pub failures: u64,
    /// The newest events of each kind that describe the state of the run.
    pub last: Vec<Event>,
}

/// The totals of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct WorkerTotals {
    /// The worker.
    pub rank: Rank,
    /// The durations of the phases, summed over all steps.
    pub times: PhaseTimes,
    /// Bytes sent to other workers.
    pub bytes_sent: u64,
    /// The part of `bytes_sent` that the worker's present process has sent: its counter continues from here.
    #[serde(default)]
    pub bytes_sent_by_process: u64,
}

/// The name of a sample in progress output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SampleUnit {
    /// A sample of any kind.
    #[default]
    Sample,
    /// An image: channels, height and width.
    Image,
}

impl SampleUnit {
    /// Returns the plural of the name.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Sample => "samples",
            Self::Image => "images",
        }
    }
}

/// An event of a run. Recorded by workers and supervisors; displayed and stored by sinks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case", remote = "Self")]
#[non_exhaustive]
pub enum Event {
    /// A run is resumed. Recorded by the launcher at the beginning of the second and later attempts.
    AttemptStarted {
        /// The number of the attempt, from 2.
        attempt: u32,
    },
    /// A run continues from a checkpoint of an earlier plan. Recorded by the rank that loaded it.
    RunExtended {
        /// The number of steps in the checkpoint.
        step: Step,
        /// Hash of the earlier plan, 64 hexadecimal digits.
        parent: String,
        /// The settings that changed, in one sentence.
        changes: String,
    },
    /// The totals of all earlier events, in event files from which events were removed.
    RunTotals(Box<RunTotals>),
    /// Training begins. Recorded by rank 0.
    RunStarted {
        /// The run's name.
        name: String,
        /// Hash of the plan, 64 hexadecimal digits.
        plan: String,
        /// The number of workers.
        world_size: u32,
        /// The number of logical shards of a global batch.
        logical_shards: u32,
        /// The number of trainable parameters.
        parameters: u64,
        /// The number of steps of the whole run.
        steps: u64,
        /// The number of epochs of the whole run.
        epochs: u64,
        /// The number of samples of the training set.
        samples: u64,
        /// The name of a sample in progress output.
        #[serde(default)]
        unit: SampleUnit,
    },
    /// A step is final on all ranks. Recorded by rank 0.
    StepCommitted {
        /// The step.
        step: Step,
        /// The pass over the data that the step belongs to.
        epoch: Epoch,
        /// The membership that computed the step.
        generation: Generation,
        /// Mean loss over the counted targets of the global batch; NaN without any.
        #[serde(deserialize_with = "number_or_null")]
        loss: f64,
        /// Samples of the global batch.
        samples: u64,
        /// Targets of the global batch that the loss counts.
        #[serde(default)]
        targets: u64,
        /// Samples of the global batch that were skipped because they cannot be read.
        #[serde(default)]
        skipped: u64,
        /// Learning rate that was applied.
        #[serde(deserialize_with = "number_or_null")]
        learning_rate: f64,
        /// Global norm of the gradient before clipping; not a finite number if no parameter was updated.
        #[serde(deserialize_with = "number_or_null")]
        gradient_norm: f64,
        /// Why the step has updated no parameter; `None` if it has.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        skipped_update: Option<SkippedUpdate>,
        /// Seconds since the previous commit.
        #[serde(deserialize_with = "number_or_null")]
        duration_s: f64,
    },
    /// The losses within a committed round, if replicas of the model train alone between exchanges. Recorded by rank 0.
    InnerLosses {
        /// The round, which is a step of the run.
        step: Step,
        /// The number of the first inner step, among all that a replica makes.
        first: u64,
        /// The mean loss of each inner step, over the samples of all replicas.
        #[serde(deserialize_with = "list_of_numbers")]
        losses: Vec<f64>,
    },
    /// How stale the gradients of each worker were in a committed round, in a run with parameter servers. Recorded by rank 0.
    Staleness {
        /// The round, which is a step of the run.
        step: Step,
        /// The gradients of each worker by the updates that were applied between their pull and their push.
        workers: Vec<WorkerStaleness>,
    },
    /// The exchanges of a committed round in which replicas average in pairs. Recorded by rank 0.
    ReplicasAveraged {
        /// The round, which is a step of the run.
        step: Step,
        /// The root mean square distance of the replicas from their mean at the end of the round, divided by the norm of the mean.
        #[serde(deserialize_with = "number_or_null")]
        distance: f64,
        /// The number of exchanges between two replicas.
        exchanges: u64,
        /// The number of exchanges without an effect: the partner was waiting for another one, or has begun the same one.
        missed: u64,
        /// The bytes of weights that were sent for both.
        exchanged_bytes: u64,
        /// The number of updates that each worker has computed, by rank.
        updates: Vec<u64>,
    },
    /// How well the predictors of gradients have predicted in a committed round. Recorded by rank 0.
    GradientsPredicted {
        /// The round, which is a step of the run.
        step: Step,
        /// The cosine of the angle between the predictions and the gradients of the next stage, for each predictor in the order of the
        /// stages.
        #[serde(deserialize_with = "list_of_numbers")]
        cosines: Vec<f64>,
        /// The norm of the errors, divided by that of the gradients.
        #[serde(deserialize_with = "list_of_numbers")]
        errors: Vec<f64>,
    },
    /// One worker's durations of a committed step.
    StepTimes {
        /// The worker.
        rank: Rank,
        /// The step.
        step: Step,
        /// The durations of the phases.
        #[serde(flatten)]
        times: PhaseTimes,
        /// When the worker arrived at the last gradient reduction of the step, in seconds on a monotonic clock that all
        /// workers of the generation share; `None` for a worker without peers, and for a step that was applied late.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        arrived_s: Option<f64>,
        /// Bytes that the worker has sent to other workers since the run began.
        bytes_sent: u64,
    },
    /// The memory of a worker's process. Recorded by each worker after its first step and then every two seconds.
    MemoryUsed {
        /// The worker.
        rank: Rank,
        /// The step.
        step: Step,
        /// Bytes in physical memory.
        resident_bytes: u64,
        /// The largest number of bytes in physical memory since the process started.
        peak_bytes: u64,
    },
    /// The process of a worker was started. Recorded by the supervisor.
    WorkerStarted {
        /// The worker slot: equal to the rank as long as no worker was lost.
        place: u32,
        /// The host name.
        host: String,
        /// The process id on that host.
        pid: u32,
    },
    /// A new generation begins. Recorded by the supervisor.
    MembershipChanged {
        /// The new membership.
        generation: Generation,
        /// The number of its members.
        world_size: u32,
        /// The reason, in one sentence.
        reason: String,
    },
    /// The first step after a loss was committed. Recorded by the supervisor.
    Recovered {
        /// The new membership.
        generation: Generation,
        /// The step.
        step: Step,
        /// Seconds since the loss was detected.
        #[serde(deserialize_with = "number_or_null")]
        duration_s: f64,
    },
    /// All members of a new generation have the same state and continue. Recorded by its rank 0.
    Resumed {
        /// The new membership.
        generation: Generation,
        /// The number of its members.
        world_size: u32,
        /// The next step.
        step: Step,
        /// The number of members that committed the previous step late, with the gradient that they held.
        applied: u32,
        /// The number of members that copy the state from other members.
        healed: u32,
    },
    /// A worker delays the others: it is the last to arrive at the gradient reductions. Recorded by the supervisor; see
    /// `StragglerDetector` of `ronde-cluster`.
    StragglerDetected {
        /// The worker.
        rank: Rank,
        /// The first step since which it delays the others.
        step: Step,
        /// The phase in which it takes longer than the others.
        phase: StepPhase,
        /// The mean delay of a step in seconds.
        #[serde(deserialize_with = "number_or_null")]
        delay_s: f64,
        /// The share of the time that the delays take, from 0 to 1.
        #[serde(deserialize_with = "number_or_null")]
        share: f64,
    },
    /// A worker no longer delays the others. Recorded by the supervisor.
    StragglerRecovered {
        /// The worker.
        rank: Rank,
        /// The step at which this was decided.
        step: Step,
    },
    /// A pass over the data is complete. Recorded by rank 0.
    EpochFinished {
        /// The epoch.
        epoch: Epoch,
        /// The number of samples used exactly once.
        used_once: u64,
        /// The number of samples not used.
        missing: u64,
        /// The number of samples used more than once.
        repeated: u64,
    },
    /// The bytes that a worker read in an epoch, if the data is remote; includes data prefetched for the next epoch.
    /// Recorded by each worker.
    DataRead {
        /// The worker.
        rank: Rank,
        /// The completed epoch.
        epoch: Epoch,
        /// Bytes read from remote storage.
        remote_bytes: u64,
        /// Bytes read from the cache.
        cached_bytes: u64,
    },
    /// The workers have measured several bucket sizes and chosen one. Recorded by rank 0.
    BucketSizeChosen {
        /// The next step.
        step: Step,
        /// The largest number of gradient bytes that are reduced together.
        bucket_bytes_max: u64,
        /// The resulting number of buckets.
        buckets: u64,
    },
    /// The shards were apportioned to workers of different speed. Recorded by rank 0; see `Balance` of `ronde-train`.
    SharesChanged {
        /// The first step with these shares.
        step: Step,
        /// The number of shards of each worker, by rank.
        shares: Vec<u32>,
        /// The measured seconds of each worker for one shard, by rank.
        shard_s: Vec<f64>,
    },
    /// The distribution of the weights of a tensor after a step, or of its gradient. Recorded by rank 0, or for a divided gradient
    /// by each rank with a part of the tensor; the parts are to be merged.
    TensorHistogram {
        /// The step.
        step: Step,
        /// The name of the tensor.
        tensor: String,
        /// Weights or gradients.
        values: TensorValues,
        /// The number of elements of the whole tensor.
        elements: u64,
        /// The histogram of these elements, or of a part of them.
        histogram: ValueHistogram,
    },
    /// The model was evaluated on data that it was not trained on. Recorded by rank 0.
    Evaluated {
        /// The step after which the model was evaluated.
        step: Step,
        /// Mean loss.
        #[serde(deserialize_with = "number_or_null")]
        loss: f64,
        /// The number of evaluated samples.
        samples: u64,
        /// The values of the metrics by name, such as `accuracy`; fields beside the other ones.
        #[serde(flatten, deserialize_with = "numbers")]
        metrics: BTreeMap<String, f64>,
    },
    /// The model with the best evaluation so far, which the run saves at its end: see `train.keep_best`. Recorded by rank 0 after each
    /// evaluation that was better than all before it, and after the last one.
    BestModel {
        /// The last step that the model was trained on.
        step: Step,
        /// The metric that is best, or `loss`.
        metric: String,
        /// Its mean loss.
        #[serde(deserialize_with = "number_or_null")]
        loss: f64,
        /// The number of evaluated samples.
        samples: u64,
        /// The values of its metrics by name; fields beside the other ones.
        #[serde(flatten, deserialize_with = "numbers")]
        metrics: BTreeMap<String, f64>,
    },
    /// The classes that the model predicts after the last step. Recorded by rank 0 if the run measures them.
    ConfusionMeasured {
        /// The step after which the model was evaluated.
        step: Step,
        /// For each true class, how often each class was predicted.
        rows: Vec<Vec<u64>>,
        /// The names of the classes in the order of the rows; empty if they have none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        classes: Vec<String>,
    },
    /// The trained model was written. Recorded by rank 0.
    ModelSaved {
        /// Path of the weights, as safetensors.
        path: String,
        /// Path of the model's configuration.
        config_path: String,
        /// blake3 of the weights file, 64 hexadecimal digits.
        blake3: String,
    },
    /// A checkpoint was published: the run can resume from it. Recorded by rank 0.
    CheckpointSaved {
        /// The number of steps in the checkpoint, which is the number of the next step.
        step: Step,
        /// The membership at that time.
        generation: Generation,
        /// Bytes of all slices.
        bytes: u64,
        /// Seconds for which training paused, on the slowest rank.
        #[serde(deserialize_with = "number_or_null")]
        held_up_s: f64,
        /// Seconds from the end of the step until the checkpoint was published.
        #[serde(deserialize_with = "number_or_null")]
        total_s: f64,
        /// The address of the checkpoint.
        address: String,
    },
    /// A checkpoint could not be saved; earlier checkpoints remain. Recorded by rank 0.
    CheckpointFailed {
        /// The number of steps that the checkpoint would have contained.
        step: Step,
        /// The rank that failed.
        rank: Rank,
        /// The error.
        message: String,
        /// Whether it is the last checkpoint of a run that ends; otherwise training continues.
        #[serde(default)]
        is_last: bool,
    },
    /// The run resumed from a checkpoint, or from copies in the memory of its workers. Recorded by the rank that loaded it.
    CheckpointLoaded {
        /// The number of steps in the checkpoint, which is the number of the next step.
        step: Step,
        /// The number of ranks that saved the checkpoint.
        world_size: u32,
        /// Bytes of all slices.
        bytes: u64,
        /// Seconds for loading.
        #[serde(deserialize_with = "number_or_null")]
        duration_s: f64,
        /// The address of the checkpoint; absent for copies in memory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<String>,
        /// Newer checkpoints that cannot be used, with the reasons.
        skipped: Vec<String>,
    },
    /// The run began again with its first step, because its workers had no complete state and a checkpoint was missing.
    RunRestarted {
        /// The number of committed steps that are computed again.
        lost: Step,
        /// The reason.
        reason: String,
    },
    /// The run stopped after a step on request. Recorded by rank 0.
    RunStopped {
        /// The number of committed steps, which is the number of the next step.
        step: Step,
        /// Whether a checkpoint of that step was saved.
        saved: bool,
    },
    /// A message for the user.
    Notice {
        /// The worker that sent the message, if any.
        rank: Option<Rank>,
        /// The text.
        message: String,
    },
    /// A worker ended with an error.
    WorkerFailed {
        /// The worker.
        rank: Rank,
        /// The error in full, several lines.
        message: String,
        /// The last step that the worker committed.
        last_step: Option<Step>,
        /// Whether the error only reports the failure of another worker.
        secondary: bool,
        /// Whether the cause is the user's input (exit code 2).
        user_error: bool,
    },
    /// The run finished successfully. Recorded by rank 0.
    RunFinished {
        /// The number of committed steps.
        steps: u64,
        /// The number of samples used in all epochs.
        samples: u64,
        /// The number of bad records that were skipped when the data was opened, and of samples skipped while training.
        #[serde(default, skip_serializing_if = "is_zero")]
        skipped: u64,
        /// Seconds from the first step to the end.
        #[serde(deserialize_with = "number_or_null")]
        duration_s: f64,
    },
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Event::serialize(self, serializer)
    }
}

/// Reads a JSON value first. So the many functions that read the variants of an event are compiled once, not in every crate that reads one.
impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_value(Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Event {
    fn from_value(value: Value) -> serde_json::Result<Self> {
        Event::deserialize(value)
    }
}

/// A sink for events. It cannot fail and must not block: a full sink drops events and counts them.
pub trait Tracker: Send + Sync {
    /// Records an event.
    fn record(&self, event: Event);
}

/// A tracker that discards all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullTracker;

impl Tracker for NullTracker {
    fn record(&self, _event: Event) {}
}
