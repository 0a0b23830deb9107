//! [`DataConfig`]: the `[data]` section of a run file.

use std::path::{Path, PathBuf};

use ronde_store::KeySource;
use serde::{Deserialize, Serialize};

use crate::dataset::check_form;
use crate::decode::check_divisor;
use crate::demo::{RatingsConfig, SplitSizes, SquareImagesConfig};
use crate::error::DataError;
use crate::records::{Addresses, RecordsConfig};

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
        /// Whether the first line is a heading. If absent, it is a heading when none of its fields is a number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        header: Option<bool>,
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
        /// Whether the first line is a heading. If absent, it is a heading when none of its fields is a number.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        header: Option<bool>,
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
        /// The share of the letters to predict from all others, above 0 and below 1: in four of five cases the letter
        /// is hidden behind an additional token, in one of ten another letter takes its place. The choice is new in each epoch. Absent: the
        /// targets are the next letters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        masked: Option<f64>,
    },
    /// Synthetic images of discs and squares on noise, with a mask of their pixels as targets.
    SyntheticShapes(SquareImagesConfig),
    /// Synthetic ratings: the values that users give to items, from a matrix of low rank with biases and noise. Samples
    /// are the numbers of a user and an item.
    SyntheticRatings(RatingsConfig),
    /// Synthetic images of coloured ellipses, rectangles and triangles on noise, with their boxes as targets.
    SyntheticObjects(SquareImagesConfig),
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
            | Self::SyntheticShapes(_)
            | Self::SyntheticRatings(_)
            | Self::SyntheticObjects(_)
            | Self::Text { file: None, .. }
            | Self::NumberWords { .. } => Vec::new(),
        }
    }

    /// Returns the relative paths from which training and test data are read, up to their first wildcard.
    #[must_use]
    pub fn relative_paths(&self) -> Vec<PathBuf> {
        let mut paths: Vec<PathBuf> = self
            .files()
            .into_iter()
            .map(|(_, path)| path.to_owned())
            .collect();
        if let Self::Records(records) = self {
            let test = records.test.iter().flat_map(Addresses::all);
            let addresses = records.train.all().iter().chain(test);
            let addresses = addresses.filter(|address| !address.contains("://"));
            paths.extend(addresses.map(|address| {
                let address = address.strip_prefix('@').unwrap_or(address);
                let special = address.find(['*', '?', '[', '{']);
                let fixed = special.map_or(address, |special| {
                    let slash = address[..special].rfind('/');
                    slash.map_or(".", |slash| &address[..slash])
                });
                PathBuf::from(fixed)
            }));
        }
        paths.retain(|path| path.is_relative());
        paths
    }

    /// Returns all errors that can be found without reading a file, each with its key in the section.
    #[must_use]
    pub fn problems(&self) -> Vec<(String, String)> {
        let counts = |samples: u64, test_samples: u64| {
            ("samples", SplitSizes::new(samples, test_samples).err())
        };
        let shape = |shape: &[usize]| ("shape", check_form(shape, 1).err());
        let classes = |key, classes: u32| (key, check_form(&[1], classes).err());
        let context = |context: usize| ("context", check_form(&[context], 1).err());
        let checks = match self {
            Self::Records(records) => return records.problems(),
            Self::Digits {} => Vec::new(),
            Self::Csv {
                shape: axes,
                classes: count,
                scale,
                ..
            } => vec![
                shape(axes),
                classes("classes", *count),
                ("scale", check_divisor("scale", *scale).err()),
            ],
            Self::CsvValues { shape: axes, .. } => vec![shape(axes)],
            Self::Text {
                context: letters,
                masked,
                ..
            } => vec![
                context(*letters),
                ("masked", masked.and_then(|share| check_masked(share).err())),
            ],
            Self::SyntheticShapes(images) => images.problems(1),
            Self::SyntheticRatings(ratings) => vec![("samples", ratings.counts().err())],
            Self::SyntheticObjects(images) => images.problems(3),
            Self::SyntheticImages {
                samples,
                test_samples,
                shape: axes,
                classes: count,
            } => vec![
                counts(*samples, *test_samples),
                shape(axes),
                classes("classes", *count),
            ],
            Self::SyntheticText {
                samples,
                test_samples,
                context: letters,
                tokens,
            } => vec![
                counts(*samples, *test_samples),
                context(*letters),
                classes("tokens", *tokens),
            ],
            Self::NumberWords {
                samples,
                test_samples,
            } => vec![counts(*samples, *test_samples)],
        };
        let problem = |(key, error): (&str, Option<DataError>)| match error? {
            DataError::Schema { key, problem } => Some((key, problem)),
            other => Some((key.to_owned(), other.to_string())),
        };
        checks.into_iter().filter_map(problem).collect()
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

/// Checks the share of letters that are hidden.
pub(crate) fn check_masked(share: f64) -> Result<(), DataError> {
    if share > 0.0 && share < 1.0 {
        return Ok(());
    }
    Err(DataError::MaskedShare { share })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_end_before_a_wildcard() {
        let section = "source = 'records'\ntrain = ['a/b-*.csv', '*.csv', '/abs/c', 's3://x/y']\ntest = '@list/of.txt'\n\
                       features = { decode = 'numbers', field = '0..2', shape = [2] }\n\
                       label = { field = '2', classes = 2 }";
        let config: DataConfig = toml::from_str(section).unwrap();
        assert_eq!(
            config.relative_paths(),
            ["a", ".", "list/of.txt"].map(PathBuf::from)
        );
        let config: DataConfig =
            toml::from_str("source = 'csv_values'\ntrain = 'a'\ntest = 'b'\nshape = [2]").unwrap();
        assert_eq!(config.relative_paths(), ["a", "b"].map(PathBuf::from));
        assert!(DataConfig::default().relative_paths().is_empty());
    }

    #[test]
    fn invalid_parameters_are_found_without_reading_files() {
        for (section, expected) in [
            ("source = 'digits'", &[][..]),
            (
                "source = 'csv'\ntrain = 'a'\nshape = [2, 0]\nclasses = 0\nscale = 0.0",
                &[
                    ("shape", "invalid shape [2, 0]"),
                    ("classes", "invalid number of classes 0"),
                    ("scale", "invalid divisor 0"),
                ],
            ),
            (
                "source = 'csv_values'\ntrain = 'a'\nshape = [100000000]",
                &[("shape", "expected 1 to 16777216 elements")],
            ),
            (
                "source = 'text'\ncontext = 0",
                &[("context", "invalid shape [0]")],
            ),
            (
                "source = 'synthetic_text'\nsamples = 0\ncontext = 0\ntokens = 0",
                &[
                    ("samples", "invalid number of samples: 0"),
                    ("context", "invalid shape"),
                    ("tokens", "invalid number of classes 0"),
                ],
            ),
            (
                "source = 'synthetic_images'\nsamples = 1\nshape = [2]\nclasses = 3",
                &[],
            ),
            (
                "source = 'synthetic_ratings'\nsamples = 9\nusers = 2\nitems = 4\nfactors = 1",
                &[("samples", "at most 8")],
            ),
            (
                "source = 'synthetic_ratings'\nsamples = 9\nusers = 2\nitems = 0\nfactors = 1",
                &[("items", "invalid items `0`")],
            ),
            (
                "source = 'number_words'\nsamples = 0",
                &[("samples", "invalid number of samples: 0")],
            ),
        ] {
            let config: DataConfig = toml::from_str(section).unwrap();
            let found = config.problems();
            let keys: Vec<&str> = found.iter().map(|(key, _)| key.as_str()).collect();
            let expected_keys: Vec<&str> = expected.iter().map(|(key, _)| *key).collect();
            assert_eq!(keys, expected_keys, "{section}");
            for ((_, problem), (_, words)) in found.iter().zip(expected) {
                assert!(problem.contains(words), "{problem}");
            }
        }
    }
}
