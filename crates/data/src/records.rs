//! [`RecordsConfig`]: samples in files of records, as they stand in a run file, and opening them.

use std::path::PathBuf;

use ronde_store::KeySource;
use serde::{Deserialize, Serialize};

use crate::DataError;
use crate::cache::CacheMode;
use crate::decode::{Decoder, Features, Label, Role, Schema};
use crate::format::FormatConfig;
use crate::index::OnBadRecord;

mod file;
mod open;

pub(crate) use file::RecordsFile;
pub(crate) use open::open;

/// A day.
const RETRY_S_MAX: f64 = 86_400.0;
/// Smallest and largest cache.
const CACHE_LIMIT_GIB_MIN: f64 = 0.01;
const CACHE_LIMIT_GIB_MAX: f64 = 1e9;
/// Largest block in KiB, and window in MiB.
const SHUFFLE_SIZE_MAX: u64 = 1 << 30;

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
    /// What is kept of files on other machines; default `stream`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub cache: CacheMode,
    /// Where it is kept; a relative path starts from the folder of the run file. Absent: a folder of the user, the same for
    /// all runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_folder: Option<PathBuf>,
    /// How much is kept in that folder, in GiB; default 64. What was not used for longest goes first.
    #[serde(default = "cache_limit_gib")]
    pub cache_limit_gib: f64,
    /// Where the key is with which it is encrypted, `file:PATH` or `variable:NAME`; absent: it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_encrypt: Option<String>,
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

fn cache_limit_gib() -> f64 {
    64.0
}

fn is_default(mode: &CacheMode) -> bool {
    *mode == CacheMode::default()
}

fn retry_s() -> f64 {
    60.0
}

impl RecordsConfig {
    /// What cannot be, each with its key in the section: all that can be told without looking at a file.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: String| problems.push((key.to_owned(), problem));
        if let Some(share) = self.validation
            && !(share > 0.0 && share < 1.0)
        {
            wrong("validation", format!("{share} is no share between 0 and 1"));
        }
        if self.validation.is_some() && self.test.is_some() {
            let problem = "it would be of no use beside `test`".to_owned();
            wrong("validation", problem);
        }
        if !(0.0..=RETRY_S_MAX).contains(&self.retry_s) {
            let problem = format!("{} is no time of 0 seconds to a day", self.retry_s);
            wrong("retry_s", problem);
        }
        let sizes = [
            ("shuffle_block_kib", self.shuffle_block_kib),
            ("shuffle_window_mib", self.shuffle_window_mib),
        ];
        for (key, size) in sizes {
            if !(1..=SHUFFLE_SIZE_MAX).contains(&size) {
                wrong(key, format!("{size} is not 1 to {SHUFFLE_SIZE_MAX}"));
            }
        }
        if !(CACHE_LIMIT_GIB_MIN..=CACHE_LIMIT_GIB_MAX).contains(&self.cache_limit_gib) {
            let limit = self.cache_limit_gib;
            let problem = format!("{limit} is not {CACHE_LIMIT_GIB_MIN} to {CACHE_LIMIT_GIB_MAX}");
            wrong("cache_limit_gib", problem);
        }
        if let Some(Err(problem)) = self.cache_encrypt.as_deref().map(str::parse::<KeySource>) {
            wrong("cache_encrypt", problem);
        }
        // The label of images in folders is known when the folders are.
        let is_whole = match &self.features {
            // The tokenizer may tell the vocabulary.
            Features::Tokens(tokens) => tokens.vocabulary.is_some(),
            _ => self.label.is_some(),
        };
        if is_whole {
            let schema = Schema {
                features: self.features.clone(),
                label: self.label.clone(),
            };
            match Decoder::new(&schema, Role::Train, 0) {
                Err(DataError::Schema { key, problem }) => wrong(&key, problem),
                Err(other) => wrong("features", other.to_string()),
                Ok(_) => {}
            }
        }
        problems
    }
}
