//! What happens in a run, as versioned values, and [`Tracker`], where they go.

use serde::{Deserialize, Serialize};

use crate::{Epoch, Generation, Rank, Step};

/// A number that JSON does not know (NaN, infinity) is written as `null` and read as NaN.
fn number_or_null<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Where a worker's time of one step went, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// Forward, backward, optimizer.
    #[serde(deserialize_with = "number_or_null")]
    pub compute_s: f64,
    /// Waiting for other ranks and moving bytes, as far as computation did not hide it.
    #[serde(deserialize_with = "number_or_null")]
    pub communicate_s: f64,
    /// Waiting for the loader.
    #[serde(deserialize_with = "number_or_null")]
    pub wait_data_s: f64,
    /// Of the computation: forward and the loss.
    #[serde(default, deserialize_with = "number_or_null")]
    pub forward_s: f64,
    /// Of the computation: backward, adding up shards included.
    #[serde(default, deserialize_with = "number_or_null")]
    pub backward_s: f64,
    /// Of the computation: the update, with the copy of the weights into the model.
    #[serde(default, deserialize_with = "number_or_null")]
    pub optimizer_s: f64,
    /// Time that the sums of gradients were under way, hidden behind computation or not.
    #[serde(default, deserialize_with = "number_or_null")]
    pub reducing_s: f64,
    /// Of which the worker did nothing but wait.
    #[serde(default, deserialize_with = "number_or_null")]
    pub waited_s: f64,
}

impl PhaseTimes {
    /// All phases together: computation, communication and data.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.compute_s + self.communicate_s + self.wait_data_s
    }

    /// The share of the time that gradients were under way in which the worker computed; `None` where
    /// nothing was.
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

/// What a sample is, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SampleUnit {
    /// Anything.
    #[default]
    Sample,
    /// Channels, height and width.
    Image,
}

impl SampleUnit {
    /// The word for several of them.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Self::Sample => "samples",
            Self::Image => "images",
        }
    }
}

/// Something that happened. Recorded by workers and supervisors, shown and kept by sinks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// Rank 0 is about to train.
    RunStarted {
        /// The run's name.
        name: String,
        /// Hash of the plan, 64 hexadecimal digits.
        plan: String,
        /// Workers.
        world_size: u32,
        /// Logical shards of the global batch.
        logical_shards: u32,
        /// Trainable parameters.
        parameters: u64,
        /// Steps of the whole run.
        steps: u64,
        /// Epochs of the whole run.
        epochs: u64,
        /// Samples of the training set.
        samples: u64,
        /// What a sample is.
        #[serde(default)]
        unit: SampleUnit,
    },
    /// A step is final on all ranks. Recorded by rank 0.
    StepCommitted {
        /// Which.
        step: Step,
        /// Pass over the data that it belongs to.
        epoch: Epoch,
        /// Membership that computed it.
        generation: Generation,
        /// Mean loss over the global batch.
        #[serde(deserialize_with = "number_or_null")]
        loss: f64,
        /// Samples of the global batch.
        samples: u64,
        /// Learning rate that was applied.
        #[serde(deserialize_with = "number_or_null")]
        learning_rate: f64,
        /// Global norm of the gradient before clipping.
        #[serde(deserialize_with = "number_or_null")]
        gradient_norm: f64,
        /// Seconds since the commit before.
        #[serde(deserialize_with = "number_or_null")]
        duration_s: f64,
    },
    /// One worker's view of a step that it committed.
    StepTimes {
        /// Who.
        rank: Rank,
        /// Which step.
        step: Step,
        /// Where the time went.
        #[serde(flatten)]
        times: PhaseTimes,
        /// Bytes that the worker has sent to others since the run began.
        bytes_sent: u64,
    },
    /// The process of a worker was started. Recorded by the supervisor.
    WorkerStarted {
        /// Where it runs: the rank that a job begins with, if nobody has died.
        place: u32,
        /// The machine.
        host: String,
        /// Its process there.
        pid: u32,
    },
    /// A new generation begins, for a reason. Recorded by the supervisor.
    MembershipChanged {
        /// The new membership.
        generation: Generation,
        /// Its members.
        world_size: u32,
        /// Why, in one sentence.
        reason: String,
    },
    /// After a loss the first step is committed. Recorded by the supervisor.
    Recovered {
        /// The new membership.
        generation: Generation,
        /// Which step.
        step: Step,
        /// Seconds since the loss was noticed.
        #[serde(deserialize_with = "number_or_null")]
        duration_s: f64,
    },
    /// The members of a new generation are level and go on. Recorded by its rank 0.
    Resumed {
        /// The new membership.
        generation: Generation,
        /// Its members.
        world_size: u32,
        /// The step that comes next.
        step: Step,
        /// Members that committed the step before only now, with the gradient that they held.
        applied: u32,
        /// Members that take the state over from the others.
        healed: u32,
    },
    /// A pass over the data is complete. Recorded by rank 0.
    EpochFinished {
        /// Which.
        epoch: Epoch,
        /// Samples used exactly once.
        used_once: u64,
        /// Samples not used.
        missing: u64,
        /// Samples used more than once.
        repeated: u64,
    },
    /// Where a worker's samples of an epoch came from, when they are on another machine. What was read ahead for the next
    /// epoch is in it. Recorded by each worker.
    DataRead {
        /// Who.
        rank: Rank,
        /// The epoch that is complete.
        epoch: Epoch,
        /// Bytes that were fetched from other machines.
        remote_bytes: u64,
        /// Bytes that were read from the cache.
        cached_bytes: u64,
    },
    /// The workers have tried sizes of buckets and go on with one. Recorded by rank 0.
    BucketSizeChosen {
        /// The step that comes next.
        step: Step,
        /// Gradients are reduced together up to this many bytes.
        bucket_bytes_max: u64,
        /// How many buckets that makes.
        buckets: u64,
    },
    /// The model was tried on data that it was not trained on. Recorded by rank 0.
    Evaluated {
        /// After which step.
        step: Step,
        /// Mean loss.
        #[serde(deserialize_with = "number_or_null")]
        loss: f64,
        /// Share of right answers, 0 to 1; NaN where values are learnt, not classes.
        #[serde(deserialize_with = "number_or_null")]
        accuracy: f64,
        /// Share of targets among the five likeliest answers, where there are more than five classes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        accuracy_top5: Option<f64>,
        /// `exp` of the mean loss, for texts.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        perplexity: Option<f64>,
        /// Samples tried.
        samples: u64,
    },
    /// The trained model is on disk. Recorded by rank 0.
    ModelSaved {
        /// Weights, as safetensors.
        path: String,
        /// Its configuration.
        config_path: String,
        /// blake3 of the weights file, 64 hexadecimal digits.
        blake3: String,
    },
    /// A checkpoint is published: the run can go on from it. Recorded by rank 0.
    CheckpointSaved {
        /// Steps that are in it: the number of the next one.
        step: Step,
        /// Membership at that time.
        generation: Generation,
        /// Bytes of all slices.
        bytes: u64,
        /// Seconds that training was held up for, on the rank where it took longest.
        #[serde(deserialize_with = "number_or_null")]
        held_up_s: f64,
        /// Seconds from the step's end until it counted.
        #[serde(deserialize_with = "number_or_null")]
        total_s: f64,
        /// Where it is.
        address: String,
    },
    /// A checkpoint could not be saved; training goes on, and earlier ones stay. Recorded by rank 0.
    CheckpointFailed {
        /// Steps that would have been in it.
        step: Step,
        /// Who failed.
        rank: Rank,
        /// Why.
        message: String,
    },
    /// The run goes on from a checkpoint. Recorded by the rank that loaded it.
    CheckpointLoaded {
        /// Steps that are in it: the number of the next one.
        step: Step,
        /// Ranks that saved it.
        world_size: u32,
        /// Bytes of all slices.
        bytes: u64,
        /// Seconds that it took.
        #[serde(deserialize_with = "number_or_null")]
        duration_s: f64,
        /// Where it is.
        address: String,
        /// Newer ones that cannot be used, and why.
        skipped: Vec<String>,
    },
    /// The run stopped after a step because it was asked to. Recorded by rank 0.
    RunStopped {
        /// Steps committed: the number of the next one.
        step: Step,
        /// Whether a checkpoint of that step was saved.
        saved: bool,
    },
    /// Something that a user should read.
    Notice {
        /// Who says it, if a worker does.
        rank: Option<Rank>,
        /// What.
        message: String,
    },
    /// A worker ended with an error of its own.
    WorkerFailed {
        /// Who.
        rank: Rank,
        /// The error in full, several lines.
        message: String,
        /// Last step that it committed.
        last_step: Option<Step>,
        /// Whether the worker only saw another one's failure.
        secondary: bool,
        /// Whether the user's input is to blame (exit code 2).
        user_error: bool,
    },
    /// The run is over and all is well. Recorded by rank 0.
    RunFinished {
        /// Steps committed.
        steps: u64,
        /// Samples used, over all epochs.
        samples: u64,
        /// Seconds from the first step to the end.
        #[serde(deserialize_with = "number_or_null")]
        duration_s: f64,
    },
}

/// Where events go. Cannot fail and must not block: a full sink drops and counts.
pub trait Tracker: Send + Sync {
    /// Takes note of an event.
    fn record(&self, event: Event);
}

/// Keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NullTracker;

impl Tracker for NullTracker {
    fn record(&self, _event: Event) {}
}
