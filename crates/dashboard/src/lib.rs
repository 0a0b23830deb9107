//! The runs of a folder as a web page and in the terminal.
//!
//! A [`RunLibrary`] follows the event files of the runs in a folder on a separate thread and keeps a [`RunHistory`] of each
//! run that is shown. [`serve`] shows it in a browser, [`show`] in a terminal.

mod buckets;
mod error;
mod follow;
mod history;
mod library;
mod server;
mod settings;
mod terminal;

pub use buckets::{Buckets, SeriesBucket, ValueRange};
pub use error::DashboardError;
pub use follow::{EventFollower, ReadProgress};
pub use history::{
    CheckpointRecord, ConfusionRecord, EvaluationRecord, MemberRecord, MemoryBucket, MessageRecord,
    RankBucket, RankHistory, RunHistory, StepBucket,
};
pub use library::{RunLibrary, RunSnapshot, RunSummary};
pub use server::{ServerSettings, serve};
pub use settings::{flat_settings, masked};
pub use terminal::{print_lines, restore_input, show};
