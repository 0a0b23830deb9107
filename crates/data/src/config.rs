//! [`DataConfig`]: the `[data]` section of a run file.

use std::path::{Path, PathBuf};

use ronde_store::KeySource;
use serde::{Deserialize, Serialize};

use crate::records::RecordsConfig;

/// The `[data]` section of a run file; the key `source` selects the variant.
///
/// [`open`](crate::open()) reads all of them in the same steps; the other sources than `records` are short forms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "source", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum DataConfig {
    /// The embedded handwritten digits: 1,437 for training, 360 for evaluation, `[1, 8, 8]`, values
    /// of 0 to 1 in steps of 1/16, ten classes.
    #[serde(rename = "digits")]
    Digits {},
    /// Lines of comma-separated numbers, the label last; `.csv` or `.csv.gz`.
    Csv {
        /// The training file; relative to the folder of the run file.
        #[serde(serialize_with = "ronde_core::outside_identity")]
        train: PathBuf,
        /// The file for evaluation.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            serialize_with = "ronde_core::outside_identity"
        )]
        test: Option<PathBuf>,
        /// The shape of a sample; its elements are the feature columns, row-major.
        shape: Vec<usize>,
        /// The number of classes; labels are `0..classes`.
        classes: u32,
        /// The divisor of the features.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scale: Option<f32>,
    },
    /// Synthetic images: noise over one random pattern per class, so that a model can learn.
    SyntheticImages {
        /// The number of training samples.
        samples: u64,
        /// The number of samples for evaluation.
        #[serde(default, serialize_with = "ronde_core::outside_identity")]
        test_samples: u64,
        /// The shape of a sample: `[channels, height, width]`.
        shape: Vec<usize>,
        /// The number of classes.
        classes: u32,
    },
    /// Synthetic text: token numbers, most of which follow from the previous one by a random table.
    SyntheticText {
        /// The number of training samples.
        samples: u64,
        /// The number of samples for evaluation.
        #[serde(default, serialize_with = "ronde_core::outside_identity")]
        test_samples: u64,
        /// The number of tokens of a sample.
        context: usize,
        /// The number of different tokens.
        tokens: u32,
    },
    /// Lines of comma-separated numbers, the target value last; `.csv` or `.csv.gz`.
    CsvValues {
        /// The training file; relative to the folder of the run file.
        #[serde(serialize_with = "ronde_core::outside_identity")]
        train: PathBuf,
        /// The file for evaluation.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            serialize_with = "ronde_core::outside_identity"
        )]
        test: Option<PathBuf>,
        /// The shape of a sample; its elements are the feature columns, row-major.
        shape: Vec<usize>,
    },
    /// Text as single letters, with the next letters as targets. The last tenth is for evaluation.
    Text {
        /// A text file; if absent, the embedded beginning of a novel: 115,575 letters, 74 different ones.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            serialize_with = "ronde_core::outside_identity"
        )]
        file: Option<PathBuf>,
        /// The number of letters of a sample.
        context: usize,
    },
    /// Files of records, local or remote.
    Records(Box<RecordsConfig>),
    /// Numbers in English words, to be translated to French: samples of 9 and 15 words.
    NumberWords {
        /// The number of training samples.
        samples: u64,
        /// The number of samples for evaluation; their numbers do not appear in training samples.
        #[serde(default, serialize_with = "ronde_core::outside_identity")]
        test_samples: u64,
    },
}

impl Default for DataConfig {
    fn default() -> Self {
        Self::Digits {}
    }
}

impl DataConfig {
    /// Returns the files that it names, each with its key in the section (`train`, `test`).
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, &Path)> {
        match self {
            Self::Csv { train, test, .. } | Self::CsvValues { train, test, .. } => {
                std::iter::once(("train", train.as_path()))
                    .chain(test.as_deref().map(|test| ("test", test)))
                    .collect()
            }
            Self::Text {
                file: Some(file), ..
            } => vec![("file", file.as_path())],
            Self::Digits {}
            | Self::Records(_)
            | Self::SyntheticImages { .. }
            | Self::SyntheticText { .. }
            | Self::Text { file: None, .. }
            | Self::NumberWords { .. } => Vec::new(),
        }
    }

    /// Returns the source of the encryption key of the cache, if it is encrypted.
    #[must_use]
    pub fn cache_key_source(&self) -> Option<KeySource> {
        match self {
            Self::Records(records) => records.cache_encrypt.as_deref()?.parse().ok(),
            _ => None,
        }
    }
}
