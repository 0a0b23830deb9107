//! The run file: parses TOML, environment and flags into a typed [`RunConfig`]. Errors point at the invalid line
//! or argument.
//!
//! ```text
//! defaults < file < environment < --set a.b=c < flags      merged: Document::load
//!      |  merged per key, each with its ValueOrigin
//!      v
//! read into RunConfig, all errors collected                 read: unknown keys, wrong types
//!      v
//! check::run(&RunConfig) -> [ConfigProblem]                 check: pure, constraints beyond types
//!      v
//! (RunConfig, Document) or ConfigError::render(colour)      render: annotated snippets
//! ```
//!
//! A later source wins key by key, with two rules on top: `train.epochs` and `train.steps` displace
//! each other, and a later source that names another `source` or `kind` drops what earlier sources
//! set in that section, because the keys of one kind do not apply to another.
//!
//! The sections that belong to the run are in `sections`; those of the data, the model, the optimizer and the
//! schedule are beside what they configure, in other crates. Each key is one field there.
//!
//! Only [`RunConfig::load`] reads a file; no function reads environment variables or the clock.

pub mod check;
mod document;
mod error;
mod identity;
mod load;
mod merge;
mod message;
mod origin;
mod problem;
mod read;
mod run_config;
#[cfg(feature = "schema")]
pub mod schema;
mod sections;
mod suggest;
mod text;

pub(crate) use suggest::nearest;

pub use document::Document;
pub use error::ConfigError;
pub use merge::{ENVIRONMENT_PREFIX, Override};
pub use origin::ValueOrigin;
pub use problem::{ConfigProblem, Severity};
pub use run_config::RunConfig;
pub use sections::{
    BalanceMode, CheckSection, CheckpointSection, CommSection, CompressionSection,
    EarlyStoppingSection, ElasticSection, EventsSection, InnerStateName, JobSection, LoaderSection,
    MetricName, ModelSection, OrderName, OuterFormatName, ParallelSection, PlateauSection,
    RecomputedLayers, RoundSamples, RunSection, ScheduleName, ShardsTogether, StartSection,
    SyncFacts, SyncMethod, SyncSection, TensorboardTarget, TrackSection, TrainLength, TrainSection,
    WorkersSection,
};

/// The commented run file of the embedded example.
pub const DEFAULT_RUN_FILE: &str = include_str!("default.toml");

#[cfg(test)]
mod tests;
