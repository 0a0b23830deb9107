//! [`RecordsConfig`]: samples in files of records, as they stand in a run file, and opening them.

use serde::{Deserialize, Serialize};

use crate::decode::{Features, Label};
use crate::format::FormatConfig;
use crate::index::OnBadRecord;

mod file;
mod open;

pub(crate) use file::RecordsFile;
pub(crate) use open::open;

/// One address or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "expected an address, such as \"s3://bucket/train-*\", or a list of addresses"
)]
pub enum Addresses {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

impl Addresses {
    /// All of them.
    #[must_use]
    pub fn all(&self) -> &[String] {
        match self {
            Self::One(address) => std::slice::from_ref(address),
            Self::Several(addresses) => addresses,
        }
    }
}

/// Samples in files of records, wherever they lie.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordsConfig {
    /// Files to train on: paths, folders, `s3://`, `az://`, `gs://` and `https://` addresses, with wildcards. Relative paths
    /// start from the folder of the run file.
    pub train: Addresses,
    /// Files to measure on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<Addresses>,
    /// Share of the samples of `train` that is kept apart to measure on, chosen by their files' names and their numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<f64>,
    /// What the files are; told by their names where those end so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<FormatConfig>,
    /// What of a record the model is given.
    pub features: Features,
    /// What it is to answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
    /// What is done about a record that cannot be used; default `error`.
    #[serde(default)]
    pub on_bad_record: OnBadRecord,
    /// Samples of so many KiB stay together in a shuffled order, so that they are read at once; default 1024.
    #[serde(default = "block_kib")]
    pub shuffle_block_kib: u64,
    /// Samples of so many MiB are mixed; default 64.
    #[serde(default = "window_mib")]
    pub shuffle_window_mib: u64,
    /// How long reading is tried again when a server does not answer, in seconds; default 60.
    #[serde(default = "retry_s")]
    pub retry_s: f64,
}

fn block_kib() -> u64 {
    1024
}

fn window_mib() -> u64 {
    64
}

fn retry_s() -> f64 {
    60.0
}
