//! The presets: how the `[data]` sections of a run file expand to a [`Pipeline`].

use std::path::Path;

use super::{DecodedRecords, FileOrigin, Pipeline, TestOrigin};
use crate::config::DataConfig;
use crate::config::check_masked;
use crate::dataset::check_form;
use crate::decode::{Features, Fields, Label, NumberFeatures, Schema};
use crate::demo::{DIGITS, DIGITS_FOR_TRAINING, Generator, NOVEL, SplitSizes, SquareImagesConfig};
use crate::error::DataError;
use crate::format::CsvLines;

/// The shape, the number of classes and the number of grey levels of the embedded digits.
const DIGIT_SHAPE: [usize; 3] = [1, 8, 8];
const DIGIT_CLASSES: u32 = 10;
const DIGIT_LEVELS: f32 = 16.0;

impl<'a> Pipeline<'a> {
    /// Returns the steps of a section. Reads no file.
    ///
    /// # Errors
    /// Invalid parameters.
    pub(crate) fn of(config: &'a DataConfig) -> Result<Self, DataError> {
        Ok(match config {
            DataConfig::Records(records) => Self::Stored(records),
            DataConfig::Digits {} => Self::Decoded(Box::new(digits()?)),
            DataConfig::Csv {
                train,
                test,
                shape,
                classes,
                scale,
                header,
            } => Self::Decoded(Box::new(labelled_lines(
                FileOrigin::Path(train),
                test_file(test.as_deref()),
                (shape, *scale),
                *header,
                *classes,
            )?)),
            DataConfig::CsvValues {
                train,
                test,
                shape,
                header,
            } => Self::Decoded(Box::new(lines(
                FileOrigin::Path(train),
                test_file(test.as_deref()),
                (shape, None),
                *header,
                Label::of_value,
            )?)),
            DataConfig::Text {
                file,
                context,
                masked,
            } => Self::letters(file.as_deref(), *context, *masked)?,
            DataConfig::SyntheticImages {
                samples,
                test_samples,
                shape,
                classes,
            } => {
                let (shape, classes) = (shape.clone(), *classes);
                let generator = Generator::Images { shape, classes };
                Self::computed(generator, *samples, *test_samples)?
            }
            DataConfig::SyntheticText {
                samples,
                test_samples,
                context,
                tokens,
            } => {
                let (context, tokens) = (*context, *tokens);
                Self::computed(Generator::Text { context, tokens }, *samples, *test_samples)?
            }
            DataConfig::SyntheticShapes(images) => {
                Self::square(Generator::Shapes { side: images.side }, images)?
            }
            DataConfig::SyntheticRatings(ratings) => Self::Computed {
                counts: ratings.counts()?,
                generator: Generator::Ratings(ratings.clone()),
            },
            DataConfig::SyntheticObjects(images) => {
                Self::square(Generator::Objects { side: images.side }, images)?
            }
            DataConfig::NumberWords {
                samples,
                test_samples,
            } => Self::computed(Generator::NumberWords, *samples, *test_samples)?,
        })
    }

    fn square(generator: Generator, images: &SquareImagesConfig) -> Result<Self, DataError> {
        Self::computed(generator, images.samples, images.test_samples)
    }

    fn computed(generator: Generator, train: u64, test: u64) -> Result<Self, DataError> {
        let counts = SplitSizes::new(train, test)?;
        Ok(Self::Computed { generator, counts })
    }

    /// Returns the letters of a file, or of the embedded novel.
    fn letters(
        file: Option<&'a Path>,
        context: usize,
        masked: Option<f64>,
    ) -> Result<Self, DataError> {
        check_form(&[context], 1)?;
        if let Some(share) = masked {
            check_masked(share)?;
        }
        Ok(Self::Letters {
            file: file.map_or(FileOrigin::Embedded(NOVEL), FileOrigin::Path),
            context,
            masked,
        })
    }
}

fn test_file(path: Option<&Path>) -> TestOrigin<'_> {
    path.map_or(TestOrigin::None, |path| {
        TestOrigin::File(FileOrigin::Path(path))
    })
}

/// Returns the records of the embedded handwritten digits.
fn digits() -> Result<DecodedRecords<'static>, DataError> {
    labelled_lines(
        FileOrigin::Embedded(DIGITS),
        TestOrigin::From(DIGITS_FOR_TRAINING),
        (&DIGIT_SHAPE, Some(DIGIT_LEVELS)),
        Some(false),
        DIGIT_CLASSES,
    )
}

/// Returns records that are lines of numbers, the class number last.
fn labelled_lines<'a>(
    train: FileOrigin<'a>,
    test: TestOrigin<'a>,
    (shape, scale): (&[usize], Option<f32>),
    header: Option<bool>,
    classes: u32,
) -> Result<DecodedRecords<'a>, DataError> {
    check_form(shape, classes)?;
    lines(train, test, (shape, scale), header, |column| Label {
        field: column,
        ..Label::of_classes(classes)
    })
}

/// Returns records that are lines of numbers: the features, and a last column with the label.
fn lines<'a>(
    train: FileOrigin<'a>,
    test: TestOrigin<'a>,
    (shape, scale): (&[usize], Option<f32>),
    header: Option<bool>,
    label: impl FnOnce(Fields) -> Label,
) -> Result<DecodedRecords<'a>, DataError> {
    let elements = check_form(shape, 1)?;
    let format = CsvLines::table(elements + 1, header);
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
        format,
        schema: Schema {
            features: Features::Numbers(features),
            label: Some(label(Fields::One(last))),
        },
    })
}
