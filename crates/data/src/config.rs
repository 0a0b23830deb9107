//! [`DataConfig`]: where samples come from, as it stands in a run file, and opening it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::csv::{CsvForm, read_file};
use crate::records::{self, RecordsConfig};
use crate::synthetic::SyntheticImages;
use crate::synthetic_text::SyntheticText;
use crate::{DataError, Opening, Split, digits, number_words, text};

/// Where samples come from: the `[data]` section of a run file, told apart by `source`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "source", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum DataConfig {
    /// The embedded handwritten digits: 1,437 to train on, 360 to measure on, `[1, 8, 8]`, values
    /// of 0 to 1 in steps of 1/16, ten classes.
    #[serde(rename = "digits")]
    Digits {},
    /// Lines of comma-separated numbers, the label last; `.csv` or `.csv.gz`.
    Csv {
        /// File to train on; relative to the folder of the run file.
        train: PathBuf,
        /// File to measure on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        test: Option<PathBuf>,
        /// Shape of a sample; its elements are the feature columns, row-major.
        shape: Vec<usize>,
        /// Count of classes; labels are `0..classes`.
        classes: u32,
        /// Features are divided by this.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scale: Option<f32>,
    },
    /// Made-up images: noise over one random pattern per class, so that there is something to learn.
    SyntheticImages {
        /// Count of samples to train on.
        samples: u64,
        /// Count of samples to measure on.
        #[serde(default)]
        test_samples: u64,
        /// Shape of a sample: `[channels, height, width]`.
        shape: Vec<usize>,
        /// Count of classes.
        classes: u32,
    },
    /// Made-up text: token numbers of which most follow from the one before by a random table.
    SyntheticText {
        /// Count of samples to train on.
        samples: u64,
        /// Count of samples to measure on.
        #[serde(default)]
        test_samples: u64,
        /// Tokens of a sample.
        context: usize,
        /// Different tokens.
        tokens: u32,
    },
    /// Lines of comma-separated numbers, the value to be learnt last; `.csv` or `.csv.gz`.
    CsvValues {
        /// File to train on; relative to the folder of the run file.
        train: PathBuf,
        /// File to measure on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        test: Option<PathBuf>,
        /// Shape of a sample; its elements are the feature columns, row-major.
        shape: Vec<usize>,
    },
    /// Text, letter by letter: the letters that follow are to be told. Its last tenth is for the test.
    Text {
        /// A text; absent: the embedded beginning of a novel, 115,575 letters, 74 different ones.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        file: Option<PathBuf>,
        /// Letters of a sample.
        context: usize,
    },
    /// Files of records, wherever they lie.
    Records(Box<RecordsConfig>),
    /// Numbers in English words, to be said in French ones: samples of 9 words and 15.
    NumberWords {
        /// Count of samples to train on.
        samples: u64,
        /// Count of samples to measure on; their numbers are in none to train on.
        #[serde(default)]
        test_samples: u64,
    },
}

impl Default for DataConfig {
    fn default() -> Self {
        Self::Digits {}
    }
}

impl DataConfig {
    /// The files that it names, each with its key in the section (`train`, `test`).
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
}

/// Opens a source. Cost: files are read and decoded whole.
///
/// # Errors
/// Files that are missing or hold no samples, and parameters that are not possible.
pub fn open(config: &DataConfig, opening: &Opening) -> Result<Split, DataError> {
    let (base, seed) = (&opening.base, opening.seed);
    match config {
        DataConfig::Digits {} => digits::open(),
        DataConfig::Csv {
            train,
            test,
            shape,
            classes,
            scale,
        } => {
            let form = CsvForm::new(shape, *classes, *scale)?;
            let read = |path: &Path| read_file(&base.join(path), &form);
            Ok(Split {
                train: Arc::new(read(train)?),
                test: match test {
                    Some(test) => Some(Arc::new(read(test)?)),
                    None => None,
                },
            })
        }
        DataConfig::CsvValues { train, test, shape } => {
            let form = CsvForm::values(shape)?;
            let read = |path: &Path| read_file(&base.join(path), &form);
            Ok(Split {
                train: Arc::new(read(train)?),
                test: match test {
                    Some(test) => Some(Arc::new(read(test)?)),
                    None => None,
                },
            })
        }
        DataConfig::Text { file, context } => {
            let path = file.as_ref().map(|file| base.join(file));
            text::open(path.as_deref(), *context)
        }
        DataConfig::Records(config) => records::open(config, opening),
        DataConfig::NumberWords {
            samples,
            test_samples,
        } => number_words::split(*samples, *test_samples, seed),
        DataConfig::SyntheticText {
            samples,
            test_samples,
            context,
            tokens,
        } => SyntheticText::split(*samples, *test_samples, *context, *tokens, seed),
        DataConfig::SyntheticImages {
            samples,
            test_samples,
            shape,
            classes,
        } => SyntheticImages::split(*samples, *test_samples, shape, *classes, seed),
    }
}
