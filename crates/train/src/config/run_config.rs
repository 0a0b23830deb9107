//! [`RunConfig`]: everything that a run file can say, typed, with its defaults.

use std::path::PathBuf;
use std::time::Duration;

use ronde_data::{DataConfig, Dataset, LoaderSettings};
use ronde_engine::{
    ModelConfig, OptimizerConfig, Precision, RateScaling, ScheduleConfig, WeightDecayOn,
};
use serde::{Deserialize, Serialize};

use super::{CheckpointSection, ConfigError, Problem};

/// Version of the run file that this ronde reads and writes.
pub(super) const VERSION: i64 = 1;

/// A whole run, one field per section of the run file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// Version of the format: 1.
    #[serde(default = "version")]
    pub version: i64,
    /// `[run]`: name, seed, output.
    #[serde(default)]
    pub run: RunSection,
    /// `[workers]`: processes and logical shards.
    #[serde(default)]
    pub workers: WorkersSection,
    /// `[train]`: how long and in what batches.
    #[serde(default)]
    pub train: TrainSection,
    /// `[comm]`: how gradients travel.
    #[serde(default)]
    pub comm: CommSection,
    /// `[check]`: how copies of the weights are compared.
    #[serde(default)]
    pub check: CheckSection,
    /// `[elastic]`: what happens when a worker dies.
    #[serde(default)]
    pub elastic: ElasticSection,
    /// `[checkpoint]`: when and where the state of the run is saved.
    #[serde(default)]
    pub checkpoint: CheckpointSection,
    /// `[loader]`: how samples are fetched ahead.
    #[serde(default)]
    pub loader: LoaderSection,
    /// `[data]`: where samples come from.
    pub data: DataConfig,
    /// `[model]`: what is trained.
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
    /// Name of the run; default `run`.
    pub name: String,
    /// Root of all randomness; default 42.
    pub seed: u64,
    /// Folder for results; default `runs/<name>`. [`super::Document::load`] fills it in.
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
    /// The folder for results.
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
    /// Count of worker processes; default 1. The trained bits do not depend on it.
    pub count: u32,
    /// Parts that each global batch is cut into, at least one per worker; default 8.
    pub logical_shards: u32,
    /// The thread of a worker that computes gets a core of its own, its other threads the rest, where the
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

/// How long a run trains.
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
    /// Samples of one step over all workers; default 64.
    pub global_batch_size: u64,
    /// Leave out the smaller last batch of an epoch; default false.
    pub drop_last: bool,
    /// Visit samples in a new order each epoch; default true.
    pub shuffle: bool,
    /// Largest norm of the gradient; absent: not clipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Format of the weights and of the activations between stages; default `f32`. The master
    /// weights are `f32` always. With `f16` the loss is scaled by a factor that follows the gradients.
    #[serde(skip_serializing_if = "is_default")]
    pub precision: Precision,
    /// Stages compute what backward needs again in place of keeping it; default false. The trained
    /// bits do not depend on it.
    #[serde(skip_serializing_if = "is_default")]
    pub recompute_activations: bool,
    /// Which parameters are decayed; default `all`.
    #[serde(skip_serializing_if = "is_default")]
    pub weight_decay_on: WeightDecayOn,
    /// Learning rate that the schedule starts from, before it is scaled; default 0.001.
    pub learning_rate: f64,
    /// How the learning rate follows from the global batch; default `none`.
    #[serde(skip_serializing_if = "is_default")]
    pub learning_rate_scaling: RateScaling,
    /// Global batch for which `learning_rate` is right; needed where it is scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate_batch_size: Option<u64>,
    /// Measure on the test set after this many epochs; absent: at the end only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evaluate_every_epochs: Option<u64>,
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
        }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl TrainSection {
    /// The learning rate that the schedule starts from: scaled to the global batch.
    #[must_use]
    pub fn base_learning_rate(&self) -> f64 {
        let from = self.learning_rate_batch_size;
        let from = from.unwrap_or(self.global_batch_size);
        let scaling = self.learning_rate_scaling;
        self.learning_rate * scaling.factor(from, self.global_batch_size)
    }

    /// What the precision means here, for people; `None` for `f32`.
    #[must_use]
    pub fn precision_note(&self) -> Option<String> {
        let format = match self.precision {
            Precision::F32 => return None,
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16, the loss scaled",
        };
        Some(format!(
            "precision: weights and activations between stages in {format}, master weights in f32; \
             no kernel for this CPU is faster for it"
        ))
    }

    /// How the learning rate was scaled, for people; `None` where it was not.
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

    /// How long the run trains; `None` unless exactly one of `epochs` and `steps` is given.
    #[must_use]
    pub fn length(&self) -> Option<TrainLength> {
        match (self.epochs, self.steps) {
            (Some(epochs), None) => Some(TrainLength::Epochs(epochs)),
            (None, Some(steps)) => Some(TrainLength::Steps(steps)),
            _ => None,
        }
    }
}

/// How gradients are summed over workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommAlgorithm {
    /// Whichever is forecast to be fastest.
    #[default]
    Auto,
    /// Every worker sends each other worker its slice.
    Direct,
    /// Recursive halving, then doubling.
    HalvingDoubling,
    /// Up a binary tree, and down again.
    Tree,
    /// One worker collects, sums and sends back.
    Driver,
}

/// How workers of one host reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommTransport {
    /// Shared memory where all workers are on one host, TCP otherwise.
    #[default]
    Auto,
    /// Shared memory, or the run does not start.
    SharedMemory,
    /// TCP.
    Tcp,
}

/// `[comm]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommSection {
    /// How gradients are summed; default `auto`.
    pub algorithm: CommAlgorithm,
    /// How workers of one host reach each other; default `auto`.
    pub transport: CommTransport,
    /// Gradients are reduced together up to this many bytes; absent: the best of several sizes, which the
    /// first steps try. The bits do not depend on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_bytes_max: Option<u64>,
    /// Seconds that any wait for another worker may take; default 30.
    pub timeout_s: f64,
}

impl Default for CommSection {
    fn default() -> Self {
        Self {
            algorithm: CommAlgorithm::Auto,
            transport: CommTransport::Auto,
            bucket_bytes_max: None,
            timeout_s: 30.0,
        }
    }
}

impl CommSection {
    /// The limit of a wait; zero for a number that `check` refuses.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::try_from_secs_f64(self.timeout_s).unwrap_or_default()
    }
}

/// `[check]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CheckSection {
    /// The weights are hashed in this many parts, one part each step in turn; default 16.
    pub weight_hash_parts: u32,
    /// All of the weights are hashed each so many steps; default 50.
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

/// Who goes on when workers cannot be reached and may still run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SuccessionKind {
    /// Those whom the coordinator reaches that holds the job's lease.
    #[default]
    Lease,
    /// More than half of the members that are not known to have ended.
    Majority,
}

/// `[elastic]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ElasticSection {
    /// Whether the others go on when a worker dies; default true.
    pub enabled: bool,
    /// Fewer workers do not train but wait for more; default 1.
    pub min_workers: u32,
    /// More never train together, whatever is asked for while the job runs; default 0: as many as there
    /// are logical shards.
    pub max_workers: u32,
    /// How often a worker that died is started again within `restart_window_s` before its place is
    /// given up; default 5. 0: the others go on without it.
    pub max_restarts: u32,
    /// Deaths longer ago are forgotten; default 600 seconds. The pause before a restart doubles with
    /// each death within it, from half a second to a minute.
    pub restart_window_s: f64,
    /// A worker that was not heard for this long is lost; default 1 second.
    pub silence_s: f64,
    /// How long a coordinator that vanished keeps others from taking its place; default 3 seconds.
    pub lease_s: f64,
    /// Who goes on when others cannot be reached; default `lease`. With `majority` two halves that do not
    /// see each other both wait.
    pub succession: SuccessionKind,
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
            succession: SuccessionKind::Lease,
            wait_s: 600.0,
        }
    }
}

/// `[loader]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoaderSection {
    /// Threads of a worker that fetch and decode samples; absent: one where samples are in memory, else one
    /// for each core that the workers of the host leave free, at least one for each worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<usize>,
    /// Memory of a worker for samples that wait, as they are stored and decoded, in MiB; default 256.
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
    /// Threads and memory of a worker's loader; `free` is its share of cores that nobody computes on.
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

/// What the trained bits do not depend on: sections, and keys of other sections. What is in the
/// files of `[data]` is told by the identity of the data set, not by their names.
const NOT_IDENTITY: [&str; 19] = [
    "check",
    "checkpoint",
    "comm",
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
    "loader",
    "run.name",
    "run.output",
    "train.evaluate_every_epochs",
    "train.recompute_activations",
    "workers.count",
];

impl RunConfig {
    /// The whole run as a run file: what is saved with a model.
    ///
    /// # Errors
    /// A seed above 2^63 - 1, or a path that is no Unicode: neither comes out of a run file.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        toml::to_string(self).map_err(|cause| {
            let message = format!("the run cannot be written as TOML: {cause}");
            ConfigError::without_source(vec![Problem::error("", message)])
        })
    }

    /// Dotted path and value of everything that the trained bits depend on: not the count of
    /// workers, names, folders, communication and checks.
    ///
    /// # Errors
    /// As [`RunConfig::to_toml`].
    pub fn identity_parts(&self) -> Result<Vec<(String, String)>, ConfigError> {
        // Through the text, in which a 32-bit number is as short as it was in the run file.
        let text = self.to_toml()?;
        let table: toml::Table = toml::from_str(&text).map_err(|cause| {
            let message = format!("the run cannot be read back: {cause}");
            ConfigError::without_source(vec![Problem::error("", message)])
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
