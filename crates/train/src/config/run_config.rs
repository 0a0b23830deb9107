//! [`RunConfig`]: all settings of a run file, typed, with their defaults.

use ronde_data::DataConfig;
use ronde_engine::{OptimizerConfig, ScheduleConfig};
use serde::{Deserialize, Serialize};

use super::sections::{
    CheckSection, CheckpointSection, CommSection, CompressionSection, ElasticSection,
    EventsSection, JobSection, LoaderSection, ModelSection, ParallelSection, RunSection,
    SyncSection, TrackSection, TrainSection, WorkersSection,
};
use super::{ConfigError, ConfigProblem, identity};

/// The run file version that this program reads and writes.
pub(super) const VERSION: i64 = 1;

/// A complete run, with one field per section of the run file.
///
/// Sections and keys that are serialized with [`ronde_core::outside_identity`] do not change the trained bits. The
/// identity of the data set stands for the contents of the files of `[data]`, so their names are among them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
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
    /// `[data]`: the source of the samples.
    pub data: DataConfig,
    /// `[model]`: the model to train.
    pub model: ModelSection,
    /// `[train]`: length, batches and learning rate.
    #[serde(default)]
    pub train: TrainSection,
    /// `[optimizer]`: how weights are updated; its learning rate is `train.learning_rate`. Default `adamw`.
    #[serde(default)]
    pub optimizer: OptimizerConfig,
    /// `[schedule]`: how the learning rate changes. Default `constant`.
    #[serde(default)]
    pub schedule: ScheduleConfig,
    /// `[sync]`: when workers exchange what they have learned. Default `every_step`.
    #[serde(default, skip_serializing_if = "is_every_step")]
    pub sync: SyncSection,
    /// `[compression]`: the short form in which gradients are sent. Default `none`.
    #[serde(default, skip_serializing_if = "is_uncompressed")]
    pub compression: CompressionSection,
    /// `[comm]`: how gradients are exchanged.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub comm: CommSection,
    /// `[parallel]`: how the state is divided among the workers.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub parallel: ParallelSection,
    /// `[loader]`: how samples are prefetched.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub loader: LoaderSection,
    /// `[check]`: how replicas of the weights are compared.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub check: CheckSection,
    /// `[elastic]`: recovery from lost workers.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub elastic: ElasticSection,
    /// `[checkpoint]`: when and where the state of the run is saved.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub checkpoint: CheckpointSection,
    /// `[events]`: how much of the events of a run is written to its event file.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub events: EventsSection,
    /// `[track]`: trackers of other tools that receive the numbers of the run.
    #[serde(default, serialize_with = "ronde_core::outside_identity")]
    pub track: TrackSection,
    /// `[job]`: what the run needs where it is submitted to.
    #[serde(
        default,
        skip_serializing_if = "JobSection::is_empty",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub job: JobSection,
}

fn version() -> i64 {
    VERSION
}

fn is_every_step(sync: &SyncSection) -> bool {
    *sync == SyncSection::EveryStep
}

fn is_uncompressed(compression: &CompressionSection) -> bool {
    !compression.is_on()
}

impl RunConfig {
    /// Returns the number of parts of a step that workers divide among themselves: replicas of local SGD, places at parameter
    /// servers, senders of compressed gradients, or else logical shards. No more replicas of the model can take part.
    #[must_use]
    pub fn divided_parts(&self) -> u32 {
        self.parts_limit().0
    }

    /// Returns the number of these parts, their name, and the key that sets it.
    #[must_use]
    pub fn parts_limit(&self) -> (u32, &'static str, &'static str) {
        match self.compression.senders() {
            Some(senders) if self.sync.facts().replicas.is_none() => {
                (senders, "senders", "compression.senders")
            }
            _ => self.sync.facts().workers_max.unwrap_or((
                self.workers.logical_shards,
                "logical shards",
                "workers.logical_shards",
            )),
        }
    }

    /// Returns the number of logical shards that one worker computes together.
    #[must_use]
    pub fn shards_together(&self) -> u32 {
        let (senders, shards) = (self.compression.senders(), self.workers.logical_shards);
        match senders.filter(|_| self.sync.facts().replicas.is_none()) {
            Some(senders) => (shards / senders.max(1)).max(1),
            None => 1,
        }
    }

    /// Returns whether some of the state is on one worker only, or on a few: slices of a divided state, residuals of compressed
    /// gradients, or what replicas keep.
    #[must_use]
    pub fn has_slices(&self) -> bool {
        self.parallel.is_divided() || self.has_distributed_vectors()
    }

    /// Returns whether each worker has its own part of some vectors: residuals of compressed gradients, or what replicas keep.
    #[must_use]
    pub fn has_distributed_vectors(&self) -> bool {
        self.compression.is_on() || self.sync.kept_vectors(&self.optimizer) > 0
    }

    /// Returns the most workers with a task: each part of a step needs one replica of the model, which workers may divide among
    /// themselves, and some may serve.
    #[must_use]
    pub fn workers_max(&self) -> u32 {
        self.divided_parts()
            .saturating_mul(self.parallel.model_workers())
            .saturating_add(self.parallel.servers)
    }

    /// Returns the names of the states that have a value for each weight.
    #[must_use]
    pub fn state_names(&self) -> Vec<&'static str> {
        self.sync.state_names(&self.optimizer)
    }

    /// Returns the complete run as a run file, as it is saved with a model.
    ///
    /// # Errors
    /// A seed above 2^63 - 1, or a path that is not Unicode. Neither occurs in a run that was read from a file.
    pub fn to_toml(&self) -> Result<String, ConfigError> {
        let mut shown = self.clone();
        shown.run.leave_out_default();
        toml::to_string(&shown).map_err(|cause| {
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
        Ok(identity::parts(&table, &identity::paths_outside(self)))
    }
}
