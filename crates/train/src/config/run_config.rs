//! [`RunConfig`]: all settings of a run file, typed, with their defaults.

use std::path::PathBuf;
use std::time::Duration;

use ronde_comm::TransportChoice;
use ronde_core::SuccessionPolicy;
use ronde_data::{DataConfig, Dataset, LoaderSettings};
use ronde_engine::{
    ModelConfig, OptimizerConfig, ParameterGroup, Precision, RateScaling, ScheduleConfig,
    WeightDecayOn,
};
use ronde_schedule::Algorithm;
use serde::{Deserialize, Serialize};

use super::{CheckpointSection, ConfigError, ConfigProblem};

/// The run file version that this program reads and writes.
pub(super) const VERSION: i64 = 1;

/// A complete run, with one field per section of the run file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The version of the format: 1.
    #[serde(default = "version")]
    pub version: i64,
    /// `[run]`: name, seed, output.
    #[serde(default)]
    pub run: RunSection,
    /// `[workers]`: processes and logical shards.
    #[serde(default)]
    pub workers: WorkersSection,
    /// `[train]`: length, batches and learning rate.
    #[serde(default)]
    pub train: TrainSection,
    /// `[comm]`: how gradients are exchanged.
    #[serde(default)]
    pub comm: CommSection,
    /// `[check]`: how replicas of the weights are compared.
    #[serde(default)]
    pub check: CheckSection,
    /// `[elastic]`: recovery from lost workers.
    #[serde(default)]
    pub elastic: ElasticSection,
    /// `[checkpoint]`: when and where the state of the run is saved.
    #[serde(default)]
    pub checkpoint: CheckpointSection,
    /// `[events]`: how much of the events of a run is written to its event file.
    #[serde(default)]
    pub events: EventsSection,
    /// `[loader]`: how samples are prefetched.
    #[serde(default)]
    pub loader: LoaderSection,
    /// `[data]`: the source of the samples.
    pub data: DataConfig,
    /// `[model]`: the model to train.
    pub model: ModelConfig,
    /// `[optimizer]`: how weights are updated; its learning rate is `train.learning_rate`.
    pub optimizer: OptimizerConfig,
    /// `[schedule]`: how the learning rate changes.
    pub schedule: ScheduleConfig,
}

fn version() -> i64 {
    VERSION
}

/// `[run]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunSection {
    /// The name of the run; default `run`.
    pub name: String,
    /// The seed of all random numbers; default 42.
    pub seed: u64,
    /// The folder for results; default `runs/<name>`, set by [`super::Document::load`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<PathBuf>,
}

impl Default for RunSection {
    fn default() -> Self {
        Self {
            name: "run".to_owned(),
            seed: 42,
            output: None,
        }
    }
}

impl RunSection {
    /// Returns the folder for results.
    #[must_use]
    pub fn output_folder(&self) -> PathBuf {
        let default = || PathBuf::from("runs").join(&self.name);
        self.output.clone().unwrap_or_else(default)
    }
}

/// `[workers]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersSection {
    /// The number of worker processes; default 1. The trained bits do not depend on it.
    pub count: u32,
    /// The number of parts of each global batch, at least one per worker; default 8.
    pub logical_shards: u32,
    /// Whether each worker's computing thread gets a dedicated core and its other threads share the rest, if the
    /// host has two cores for each of its workers; default false. For hosts that run nothing else.
    #[serde(skip_serializing_if = "is_default")]
    pub pin_cores: bool,
}

impl Default for WorkersSection {
    fn default() -> Self {
        Self {
            count: 1,
            logical_shards: 8,
            pin_cores: false,
        }
    }
}

/// The length of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrainLength {
    /// Passes over the data.
    Epochs(u64),
    /// Optimizer updates.
    Steps(u64),
}

/// `[train]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainSection {
    /// Passes over the data; either this or `steps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Optimizer updates; either this or `epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// The number of samples of one step, over all workers; default 64.
    pub global_batch_size: u64,
    /// Whether to skip the smaller last batch of an epoch; default false.
    pub drop_last: bool,
    /// Whether to visit the samples in a new order in each epoch; default true.
    pub shuffle: bool,
    /// The largest norm of the gradient; absent: gradients are not clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// The format of the weights and of the activations between layers; default `f32`. The master
    /// weights are always `f32`. With `f16` the loss is scaled dynamically.
    #[serde(skip_serializing_if = "is_default")]
    pub precision: Precision,
    /// Whether the backward pass recomputes activations instead of storing them; default false. The trained
    /// bits do not depend on it.
    #[serde(skip_serializing_if = "is_default")]
    pub recompute_activations: bool,
    /// The parameters to which weight decay applies; default `all`.
    #[serde(skip_serializing_if = "is_default")]
    pub weight_decay_on: WeightDecayOn,
    /// The base learning rate of the schedule, before scaling; default 0.001.
    pub learning_rate: f64,
    /// How the learning rate is scaled with the global batch size; default `none`.
    #[serde(skip_serializing_if = "is_default")]
    pub learning_rate_scaling: RateScaling,
    /// The global batch size for which `learning_rate` was chosen; required if it is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate_batch_size: Option<u64>,
    /// Evaluate on the test set every this many epochs; absent: only at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluate_every_epochs: Option<u64>,
    /// Parameters with settings of their own; a parameter belongs to the first group whose pattern matches its name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parameter_groups: Vec<ParameterGroup>,
}

impl Default for TrainSection {
    fn default() -> Self {
        Self {
            epochs: None,
            steps: None,
            global_batch_size: 64,
            drop_last: false,
            shuffle: true,
            clip_norm: None,
            precision: Precision::default(),
            recompute_activations: false,
            weight_decay_on: WeightDecayOn::default(),
            learning_rate: 0.001,
            learning_rate_scaling: RateScaling::default(),
            learning_rate_batch_size: None,
            evaluate_every_epochs: None,
            parameter_groups: Vec::new(),
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl TrainSection {
    /// Returns the base learning rate of the schedule, scaled to the global batch size.
    #[must_use]
    pub fn base_learning_rate(&self) -> f64 {
        let from = self.learning_rate_batch_size;
        let from = from.unwrap_or(self.global_batch_size);
        let scaling = self.learning_rate_scaling;
        self.learning_rate * scaling.factor(from, self.global_batch_size)
    }

    /// Describes the precision for users; `None` for `f32`.
    #[must_use]
    pub fn precision_note(&self) -> Option<String> {
        let format = match self.precision {
            Precision::F32 => return None,
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16 with loss scaling",
        };
        Some(format!(
            "precision: weights and activations between layers in {format}, master weights in f32; \
             on this CPU it is not faster than f32"
        ))
    }

    /// Describes how the learning rate was scaled; `None` if it was not.
    #[must_use]
    pub fn learning_rate_rule(&self) -> Option<String> {
        let rule = match self.learning_rate_scaling {
            RateScaling::None => return None,
            RateScaling::Linear => "linear",
            RateScaling::SquareRoot => "square root",
        };
        Some(format!(
            "learning rate: {} for batches of {}, scaled ({rule}) to batches of {}: {}",
            self.learning_rate,
            self.learning_rate_batch_size
                .unwrap_or(self.global_batch_size),
            self.global_batch_size,
            self.base_learning_rate(),
        ))
    }

    /// Returns the length of the run; `None` unless exactly one of `epochs` and `steps` is set.
    #[must_use]
    pub fn length(&self) -> Option<TrainLength> {
        match (self.epochs, self.steps) {
            (Some(epochs), None) => Some(TrainLength::Epochs(epochs)),
            (None, Some(steps)) => Some(TrainLength::Steps(steps)),
            _ => None,
        }
    }
}

/// `[comm]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommSection {
    /// The algorithm that sums gradients; default `auto`, the one with the shortest predicted time.
    #[serde(with = "super::algorithm")]
    pub algorithm: Option<Algorithm>,
    /// The transport between workers of one host; default `auto`.
    pub transport: TransportChoice,
    /// The largest bucket of gradients that are reduced together, in bytes; absent: the first steps try several
    /// sizes and choose one. The trained bits do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_bytes_max: Option<u64>,
    /// The longest wait for another worker, in seconds; default 30.
    pub timeout_s: f64,
}

impl Default for CommSection {
    fn default() -> Self {
        Self {
            algorithm: None,
            transport: TransportChoice::Auto,
            bucket_bytes_max: None,
            timeout_s: 30.0,
        }
    }
}

impl CommSection {
    /// Returns `timeout_s` as a duration; zero for a number that `check` rejects.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.timeout_s).unwrap_or_default()
    }
}

/// `[check]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckSection {
    /// The number of parts in which the weights are hashed, one part per step in turn; default 16.
    pub weight_hash_parts: u32,
    /// All weights are hashed every this many steps; default 50.
    pub weight_hash_full_every: u64,
}

impl Default for CheckSection {
    fn default() -> Self {
        Self {
            weight_hash_parts: 16,
            weight_hash_full_every: 50,
        }
    }
}

/// `[elastic]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ElasticSection {
    /// Whether training continues when a worker is lost; default true.
    pub enabled: bool,
    /// The smallest number of workers that train; fewer wait for more. Default 1.
    pub min_workers: u32,
    /// The largest number of workers that the job can be scaled to while it runs; default 0: the number of
    /// logical shards.
    pub max_workers: u32,
    /// How often a failed worker is restarted within `restart_window_s` before the job continues without it;
    /// default 5. 0: no restarts.
    pub max_restarts: u32,
    /// Failures longer ago are not counted; default 600 seconds. The delay before a restart doubles with each
    /// failure within this window, from half a second to a minute.
    pub restart_window_s: f64,
    /// A worker that sends no heartbeat for this long is considered lost; default 1 second.
    pub silence_s: f64,
    /// How long a failed coordinator's lease prevents another one from taking over; default 3 seconds.
    pub lease_s: f64,
    /// Which workers continue when others are unreachable; default `lease`. With `majority`, two halves that
    /// cannot reach each other both wait.
    pub succession: SuccessionPolicy,
    /// How long the job waits for `min_workers` before it ends; default 600 seconds.
    pub wait_s: f64,
}

impl Default for ElasticSection {
    fn default() -> Self {
        Self {
            enabled: true,
            min_workers: 1,
            max_workers: 0,
            max_restarts: 5,
            restart_window_s: 600.0,
            silence_s: 1.0,
            lease_s: 3.0,
            succession: SuccessionPolicy::Lease,
            wait_s: 600.0,
        }
    }
}

/// `[events]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EventsSection {
    /// Write the events of every this many steps; default 1. The summary covers all steps.
    pub every_steps: u64,
    /// The largest size of the event files of a run, in MiB; default 256. When half of it is reached, older events
    /// are moved to `events.1.jsonl`, replacing those that are there. 0: not limited.
    pub limit_mib: u64,
}

impl Default for EventsSection {
    fn default() -> Self {
        Self {
            every_steps: 1,
            limit_mib: 256,
        }
    }
}

/// `[loader]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderSection {
    /// The number of threads of a worker that fetch and decode samples; absent: one if the samples are in memory,
    /// else one for each core that the workers of the host leave free, at least one for each worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// The memory of a worker for prefetched samples, both as stored and decoded, in MiB; default 256.
    pub memory_mib: u64,
}

impl Default for LoaderSection {
    fn default() -> Self {
        Self {
            threads: None,
            memory_mib: 256,
        }
    }
}

impl LoaderSection {
    /// Returns the threads and memory of a worker's loader; `free` is its share of the cores not used for
    /// computation.
    #[must_use]
    pub fn settings(&self, dataset: &dyn Dataset, free: usize) -> LoaderSettings {
        let usual = if dataset.locality().is_some() {
            free
        } else {
            1
        };
        LoaderSettings {
            threads: self.threads.unwrap_or(usual).max(1),
            memory_bytes: self.memory_mib.saturating_mul(1 << 20),
        }
    }
}

/// Sections and keys that do not change the trained bits. The identity of the data set stands for the
/// contents of the files of `[data]`, so their names are excluded.
const NOT_IDENTITY: [&str; 21] = [
    "check",
    "checkpoint",
    "comm",
    "data.bad_record_limit",
    "data.cache",
    "data.cache_encrypt",
    "data.cache_folder",
    "data.cache_limit_gib",
    "data.file",
    "data.retry_s",
    "data.test",
    "data.test_samples",
    "data.train",
    "elastic",
    "events",
    "loader",
    "run.name",
    "run.output",
    "train.evaluate_every_epochs",
    "train.recompute_activations",
    "workers.count",
];

impl RunConfig {
    /// Returns the complete run as a run file, as it is saved with a model.
    ///
    /// # Errors
    /// A seed above 2^63 - 1, or a path that is not Unicode. Neither occurs in a run that was read from a file.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|cause| {
            let message = format!("cannot write the run as TOML: {cause}");
            ConfigError::without_source(vec![ConfigProblem::error("", message)])
        })
    }

    /// Returns the dotted path and value of every setting that the trained bits depend on. The number of workers,
    /// names, folders, communication and checks are excluded.
    ///
    /// # Errors
    /// As [`RunConfig::to_toml`].
    pub fn identity_parts(&self) -> Result<Vec<(String, String)>, ConfigError> {
        // The text keeps the short form of 32-bit numbers that the run file has.
        let text = self.to_toml()?;
        let table: toml::Table = toml::from_str(&text).map_err(|cause| {
            let message = format!("cannot read the written run: {cause}");
            ConfigError::without_source(vec![ConfigProblem::error("", message)])
        })?;
        let mut parts = Vec::new();
        flatten("", &table, &mut parts);
        parts.sort_unstable();
        Ok(parts)
    }
}

fn flatten(prefix: &str, table: &toml::Table, parts: &mut Vec<(String, String)>) {
    for (key, value) in table {
        let path = super::text::join(prefix, key);
        if NOT_IDENTITY.contains(&path.as_str()) {
            continue;
        }
        match value {
            toml::Value::Table(table) => flatten(&path, table, parts),
            value => parts.push((path, value.to_string())),
        }
    }
}
