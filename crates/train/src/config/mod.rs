//! The run file: from TOML, environment and flags to a typed [`RunConfig`], with errors that point
//! at the line or the argument that is wrong.
//!
//! ```text
//! defaults < file < environment < --set a.b=c < flags      layers: Document::load
//!      |  merged per key, each with its Origin
//!      v
//! sections read one by one, every mistake collected         section: unknown keys, wrong types
//!      v
//! check::run(&RunConfig) -> [Problem]                       check: pure, what a type cannot say
//!      v
//! (RunConfig, Document) or ConfigError::render(colour)      render: annotated snippets
//! ```
//!
//! A later layer wins key by key, with two rules on top: `train.epochs` and `train.steps` displace
//! each other, and a later layer that names another `source` or `kind` drops what earlier layers
//! said in that section, as keys of one kind mean nothing to the other.
//!
//! Nothing here reads a file, the environment or the clock.

pub mod check;
mod checkpoint;
mod document;
mod error;
mod layers;
mod message;
mod origin;
mod problem;
mod run_config;
mod section;
mod suggest;
mod text;

pub use checkpoint::CheckpointSection;
pub use document::Document;
pub use error::ConfigError;
pub use layers::{ENVIRONMENT_PREFIX, Override};
pub use origin::Origin;
pub use problem::{Problem, Severity};
pub use run_config::{
    CheckSection, CommAlgorithm, CommSection, CommTransport, ElasticSection, LoaderSection,
    RunConfig, RunSection, SuccessionKind, TrainLength, TrainSection, WorkersSection,
};

/// The commented run file of the embedded example.
pub const DEFAULT_RUN_FILE: &str = include_str!("default.toml");

#[cfg(test)]
mod tests;
