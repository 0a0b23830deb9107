//! Measures training steps of the real command, in turns with PyTorch and with workers that do not talk.
//!
//! [`TrainingSettings`] name a [`TrainingCase`]; each round starts every [`Variant`] once, as processes of
//! their own, another one first in each round, reads what they report, and the medians over rounds make a
//! [`TrainingReport`].

mod case;
mod events;
mod memory;
mod peak;
mod report;
mod run;

pub use case::TrainingCase;
pub use events::RunTimes;
pub use peak::matrix_peak_flops;
pub use report::{TrainingReport, VariantReport};
pub use run::{Programs, Variant, measure};

/// What to measure, and how often.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct TrainingSettings {
    /// Model, data and batch.
    pub case: TrainingCase,
    /// Worker processes.
    pub workers: u32,
    /// Logical shards of the global batch.
    pub shards: u32,
    /// Steps of a run, the ones that are left out included.
    pub steps: u64,
    /// How often each variant has its turn.
    pub rounds: u32,
    /// Bytes up to which layers share a bucket; `None`: the run file's default.
    pub bucket_bytes: Option<u64>,
    /// What is measured.
    pub variants: Vec<Variant>,
}
