//! Measurement of training steps of the real command, in turns with PyTorch and with workers that
//! do not communicate.
//!
//! [`TrainingSettings`] specify a [`TrainingCase`]; each round runs every [`Variant`] once in
//! separate processes, with another one first in each round, and reads their reports. The medians
//! over rounds make a [`TrainingReport`].

mod case;
mod events;
mod memory;
mod report;
mod run;

pub use case::TrainingCase;
pub use events::RunTimes;
pub use report::{TrainingReport, VariantReport};
pub use run::{Programs, Variant, bytes_without_model, measure};

/// The settings of the measurement.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct TrainingSettings {
    /// The model, data and batch.
    pub case: TrainingCase,
    /// The number of worker processes.
    pub workers: u32,
    /// The number of logical shards of the global batch.
    pub shards: u32,
    /// The number of steps of a run, including those that are not counted.
    pub steps: u64,
    /// The number of turns of each variant.
    pub rounds: u32,
    /// The size up to which layers share a bucket, in bytes; `None`: the run file's default.
    pub bucket_bytes: Option<u64>,
    /// Whether only forward passes in evaluation mode are measured, as for inference; there is one worker.
    pub forward_only: bool,
    /// The precision of the models on both sides: a value of `train.precision`.
    pub precision: &'static str,
    /// Settings of this command's runs, such as `train.recompute_activations=true`.
    pub sets: Vec<String>,
    /// The measured variants.
    pub variants: Vec<Variant>,
}
