//! The presets: how the `[data]` sections of a run file expand to a [`Pipeline`].

use std::path::Path;
use std::sync::Arc;

use super::{DecodedRecords, FileOrigin, Pipeline, TestOrigin};
use crate::dataset::check_form;
use crate::decode::{Features, Fields, Label, NumberFeatures, Schema};
use crate::demo::{DIGITS, DIGITS_FOR_TRAINING, Generator, NOVEL, SplitSizes};
use crate::format::CsvLines;
use crate::{DataConfig, DataError};

/// The shape, the number of classes and the number of grey levels of the embedded digits.
const DIGIT_SHAPE: [usize; 3] = [1, 8, 8];
const DIGIT_CLASSES: u32 = 10;
const DIGIT_LEVELS: f32 = 16.0;

impl<'a> Pipeline<'a> {
    /// Returns the steps that a section stands for. Reads no file.
    ///
    /// # Errors
    /// Invalid parameters.
    pub(crate) fn of(config: &'a DataConfig) -> Result<Self, DataError> {
        Ok(match config {
            DataConfig::Records(records) => Self::Stored(records),
            DataConfig::Digits {} => Self::Decoded(Box::new(labelled_lines(
                FileOrigin::Embedded(DIGITS),
                TestOrigin::From(DIGITS_FOR_TRAINING),
                (&DIGIT_SHAPE, Some(DIGIT_LEVELS)),
                DIGIT_CLASSES,
            )?)),
            DataConfig::Csv {
                train,
                test,
                shape,
                classes,
                scale,
            } => Self::Decoded(Box::new(labelled_lines(
                FileOrigin::Path(train),
                test_file(test.as_deref()),
                (shape, *scale),
                *classes,
            )?)),
            DataConfig::CsvValues { train, test, shape } => Self::Decoded(Box::new(lines(
                FileOrigin::Path(train),
                test_file(test.as_deref()),
                (shape, None),
                Label::of_value,
            )?)),
            DataConfig::Text { file, context } => {
                check_form(&[*context], 1)?;
                Self::Letters {
                    file: match file {
                        Some(path) => FileOrigin::Path(path),
                        None => FileOrigin::Embedded(NOVEL),
                    },
                    context: *context,
                }
            }
            DataConfig::SyntheticImages {
                samples,
                test_samples,
                shape,
                classes,
            } => Self::Computed {
                counts: SplitSizes::new(*samples, *test_samples)?,
                generator: Generator::Images {
                    shape: shape.clone(),
                    classes: *classes,
                },
            },
            DataConfig::SyntheticText {
                samples,
                test_samples,
                context,
                tokens,
            } => Self::Computed {
                counts: SplitSizes::new(*samples, *test_samples)?,
                generator: Generator::Text {
                    context: *context,
                    tokens: *tokens,
                },
            },
            DataConfig::NumberWords {
                samples,
                test_samples,
            } => Self::Computed {
                counts: SplitSizes::new(*samples, *test_samples)?,
                generator: Generator::NumberWords,
            },
        })
    }
}

fn test_file(path: Option<&Path>) -> TestOrigin<'_> {
    path.map_or(TestOrigin::None, |path| {
        TestOrigin::File(FileOrigin::Path(path))
    })
}

/// Returns records that are lines of numbers, the class number last.
fn labelled_lines<'a>(
    train: FileOrigin<'a>,
    test: TestOrigin<'a>,
    (shape, scale): (&[usize], Option<f32>),
    classes: u32,
) -> Result<DecodedRecords<'a>, DataError> {
    check_form(shape, classes)?;
    lines(train, test, (shape, scale), |column| Label {
        field: column,
        ..Label::of_classes(classes)
    })
}

/// Returns records that are lines of numbers: the features, and a last column with the label.
fn lines<'a>(
    train: FileOrigin<'a>,
    test: TestOrigin<'a>,
    (shape, scale): (&[usize], Option<f32>),
    label: impl FnOnce(Fields) -> Label,
) -> Result<DecodedRecords<'a>, DataError> {
    let elements = check_form(shape, 1)?;
    let format = CsvLines::table(elements + 1);
    let mut columns = format.column_names();
    let last = columns.pop().unwrap_or_default();
    let features = NumberFeatures {
        field: Fields::Several(columns),
        shape: shape.to_vec(),
        scale,
    };
    Ok(DecodedRecords {
        train,
        test,
        format: Arc::new(format),
        schema: Schema {
            features: Features::Numbers(features),
            label: Some(label(Fields::One(last))),
        },
    })
}
