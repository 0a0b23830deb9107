//! The sections of a run file that belong to the training run. Each has its keys with their documentation and
//! defaults, and checks what its types cannot exclude.
//!
//! A new key is a new field: its doc comment is its description, `Default` has its default, and
//! `#[serde(serialize_with = "ronde_core::outside_identity")]` marks it if the trained bits do not depend on it.

mod algorithm;
mod checkpoint;
mod comm;
mod compression;
mod cuts;
mod elastic;
mod events;
mod job;
mod loader;
mod model;
mod parallel;
mod predicted;
mod recomputation;
mod run;
mod selection;
mod shards_together;
mod sync;
mod track;
mod train;
mod weight_check;
mod workers;

pub use checkpoint::CheckpointSection;
pub use comm::CommSection;
pub use compression::CompressionSection;
pub use elastic::ElasticSection;
pub use events::EventsSection;
pub use job::JobSection;
pub use loader::LoaderSection;
pub use model::{ModelSection, StartSection};
pub use parallel::{OrderName, ParallelSection, ScheduleName};
pub use recomputation::RecomputedLayers;
pub use run::RunSection;
pub use selection::{EarlyStoppingSection, PlateauSection};
pub use shards_together::ShardsTogether;
pub use sync::{InnerStateName, OuterFormatName, RoundSamples, SyncFacts, SyncMethod, SyncSection};
pub use track::{TensorboardTarget, TrackSection};
pub use train::{MetricName, TrainLength, TrainSection};
pub use weight_check::CheckSection;
pub use workers::{BalanceMode, WorkersSection};

use super::ConfigProblem;

/// The longest time limit that can be set, in seconds: one day.
const TIMEOUT_S_MAX: f64 = 86_400.0;

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Adds a problem if a value is zero.
pub(super) fn at_least_one(path: &str, value: u64, problems: &mut Vec<ConfigProblem>) {
    if value == 0 {
        problems.push(ConfigProblem::error(
            path,
            format!("`{path}` must be at least 1"),
        ));
    }
}

fn not_negative(path: &str, value: f64, problems: &mut Vec<ConfigProblem>) {
    if !(value.is_finite() && value >= 0.0) {
        let message = format!("`{path}` is {value}, but must be a finite number of 0 or more");
        problems.push(ConfigProblem::error(path, message));
    }
}

/// Returns the JSON Schema of a word that selects a variant of `T`, for a type of a crate without schemas.
#[cfg(feature = "schema")]
fn words<T: serde::de::DeserializeOwned>(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    // The error about a word that does not exist lists those that do.
    let error = T::deserialize(toml::Value::String(String::new())).err();
    let error = error.map(|error| error.message().to_owned());
    let known = match super::message::SerdeMessage::parse(error.as_deref().unwrap_or_default()) {
        super::message::SerdeMessage::UnknownWord { known, .. } => known,
        _ => Vec::new(),
    };
    schemars::json_schema!({ "type": "string", "enum": known })
}
