//! [`RecordsConfig`]: the run-file section for samples in files of records, and how they are opened.

use std::path::PathBuf;

use ronde_store::KeySource;
use serde::{Deserialize, Serialize};

use crate::cache::CacheMode;
use crate::decode::{Features, Label, RecordDecoder, SampleUse, Schema};
use crate::error::DataError;
use crate::format::FormatConfig;
use crate::index::OnBadRecord;

mod file;
mod open;

pub(crate) use file::RecordsFile;
pub(crate) use open::open;

/// The maximum of `retry_s`: a day.
const RETRY_S_MAX: f64 = 86_400.0;
/// The range of cache limits in GiB.
const CACHE_LIMIT_GIB_MIN: f64 = 0.01;
const CACHE_LIMIT_GIB_MAX: f64 = 1e9;
/// The maximum block size in KiB and window size in MiB.
const SHUFFLE_SIZE_MAX: u64 = 1 << 30;

/// One address or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(
    untagged,
    expecting = "expected an address, such as \"s3://bucket/train-*\", or a list of addresses"
)]
pub enum Addresses {
    /// One address.
    One(String),
    /// Several addresses.
    Several(Vec<String>),
}

impl Addresses {
    /// Returns all addresses.
    #[must_use]
    pub fn all(&self) -> &[String] {
        match self {
            Self::One(address) => std::slice::from_ref(address),
            Self::Several(addresses) => addresses,
        }
    }
}

/// The configuration of samples in files of records, local or remote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RecordsConfig {
    /// The training files: paths, folders, `s3://`, `az://`, `gs://` and `https://` addresses, with wildcards. Relative paths
    /// start from the folder of the run file.
    #[serde(serialize_with = "ronde_core::outside_identity")]
    pub train: Addresses,
    /// The files for evaluation.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub test: Option<Addresses>,
    /// The share of the samples of `train` that is used for evaluation instead, chosen by file name and record number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<f64>,
    /// The format of the files; detected from their extensions if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<FormatConfig>,
    /// The fields of a record that are the model's input.
    pub features: Features,
    /// The field of a record that is the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<Label>,
    /// The treatment of bad records; default `error`.
    #[serde(default)]
    pub on_bad_record: OnBadRecord,
    /// The share of bad records above which a run ends although `on_bad_record` is `skip`; default 0.01.
    #[serde(
        default = "bad_record_limit",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub bad_record_limit: f64,
    /// The KiB of samples that stay together in a shuffled order, so that they are read together; default 1024.
    #[serde(default = "block_kib")]
    pub shuffle_block_kib: u64,
    /// The MiB of samples that are mixed; default 64.
    #[serde(default = "window_mib")]
    pub shuffle_window_mib: u64,
    /// How files on other machines are cached; default `stream`.
    #[serde(
        default,
        skip_serializing_if = "is_default",
        serialize_with = "ronde_core::outside_identity"
    )]
    #[cfg_attr(feature = "schema", schemars(extend("default" = CacheMode::default())))]
    pub cache: CacheMode,
    /// The folder of the cache; a relative path starts from the folder of the run file. If absent, a folder of the user that
    /// all runs share.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub cache_folder: Option<PathBuf>,
    /// The size limit of the cache in GiB; default 64. The least recently used pages are evicted first.
    #[serde(
        default = "cache_limit_gib",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub cache_limit_gib: f64,
    /// The source of the encryption key of the cache, `file:PATH` or `variable:NAME`; if absent, the cache is not encrypted.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        serialize_with = "ronde_core::outside_identity"
    )]
    pub cache_encrypt: Option<String>,
    /// How long reads are retried when a server does not respond, in seconds; default 60.
    #[serde(default = "retry_s", serialize_with = "ronde_core::outside_identity")]
    pub retry_s: f64,
}

fn bad_record_limit() -> f64 {
    0.01
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
    /// Returns all errors that can be found without reading a file, each with its key in the section.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, problem: String| problems.push((key.to_owned(), problem));
        if let Some(share) = self.validation
            && !(share > 0.0 && share < 1.0)
        {
            wrong(
                "validation",
                format!("invalid share `{share}`: expected a number between 0 and 1"),
            );
        }
        if self.validation.is_some() && self.test.is_some() {
            let problem = "cannot be combined with `test`".to_owned();
            wrong("validation", problem);
        }
        if !(0.0..=1.0).contains(&self.bad_record_limit) {
            let limit = self.bad_record_limit;
            wrong(
                "bad_record_limit",
                format!("invalid share `{limit}`: expected 0 to 1"),
            );
        }
        if !(0.0..=RETRY_S_MAX).contains(&self.retry_s) {
            let problem = format!(
                "invalid time `{}`: expected 0 to {RETRY_S_MAX} seconds",
                self.retry_s
            );
            wrong("retry_s", problem);
        }
        let sizes = [
            ("shuffle_block_kib", self.shuffle_block_kib),
            ("shuffle_window_mib", self.shuffle_window_mib),
        ];
        for (key, size) in sizes {
            if !(1..=SHUFFLE_SIZE_MAX).contains(&size) {
                wrong(
                    key,
                    format!("invalid size `{size}`: expected 1 to {SHUFFLE_SIZE_MAX}"),
                );
            }
        }
        if !(CACHE_LIMIT_GIB_MIN..=CACHE_LIMIT_GIB_MAX).contains(&self.cache_limit_gib) {
            let limit = self.cache_limit_gib;
            let problem = format!(
                "invalid limit `{limit}`: expected {CACHE_LIMIT_GIB_MIN} to {CACHE_LIMIT_GIB_MAX}"
            );
            wrong("cache_limit_gib", problem);
        }
        if let Some(Err(problem)) = self.cache_encrypt.as_deref().map(str::parse::<KeySource>) {
            wrong("cache_encrypt", problem);
        }
        // The label of images in folders is known only after listing the folders.
        let is_whole = match &self.features {
            // The tokenizer may define the vocabulary.
            Features::Tokens(tokens) => tokens.vocabulary.is_some(),
            _ => self.label.is_some(),
        };
        if is_whole {
            let schema = Schema {
                features: self.features.clone(),
                label: self.label.clone(),
            };
            match RecordDecoder::new(&schema, SampleUse::Train, 0) {
                Err(DataError::Schema { key, problem }) => wrong(&key, problem),
                Err(other) => wrong("features", other.to_string()),
                Ok(_) => {}
            }
        }
        problems
    }
}
