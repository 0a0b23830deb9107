//! [`RecordDecoder`]: converts records to features and targets according to a [`Schema`].

mod error;
mod fields;
#[cfg(feature = "full")]
mod image;
mod label;
mod numbers;
mod schema;
pub(crate) mod scratch;

use ronde_core::DataSignature;
use ronde_core::seed::SeedTree;

use crate::dataset::{CLASSES_MAX, Targets, check_form};
use crate::error::DataError;
use crate::format::{FieldSelection, Record};
use crate::names::standard_names;
pub use error::DecodeError;
#[cfg(feature = "full")]
pub use image::{ImageDecoder, ImageError};
use label::LabelDecoder;
pub(crate) use numbers::check_divisor;
use numbers::{NumberDecoder, RawDecoder, TokenDecoder};
pub use schema::{
    Crop, Features, Fields, ImageFeatures, Label, NumberFeatures, RawFeatures, Schema,
    TokenFeatures,
};

pub use scratch::DecodeScratch;

/// The version of the decoder of images in the identity of data. It changes with the values of any decoded image.
pub(crate) const IMAGE_DECODER: &str = "image decoder version 2";

/// The purpose of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleUse {
    /// Training: images are augmented at random where the schema requests it.
    Train,
    /// Evaluation: samples are always the same.
    Test,
}

/// A converter from records to features and targets. Several threads may share it, each with its own [`DecodeScratch`].
#[derive(Debug)]
pub struct RecordDecoder {
    features: FeatureDecoder,
    label: LabelDecoder,
    shape: Vec<usize>,
    wanted: Vec<String>,
    seeds: SeedTree,
    role: SampleUse,
}

/// The conversion of features.
#[derive(Debug)]
enum FeatureDecoder {
    #[cfg(feature = "full")]
    Image(Box<ImageDecoder>),
    Numbers(NumberDecoder),
    Raw(RawDecoder),
    Tokens(TokenDecoder),
}

impl RecordDecoder {
    /// Creates a decoder for a schema. `seed` is the run's seed.
    ///
    /// # Errors
    /// Returns an error with the key if the schema is invalid, or if it needs images and this build has no support.
    pub fn new(schema: &Schema, role: SampleUse, seed: u64) -> Result<Self, DataError> {
        let (features, shape) = match &schema.features {
            #[cfg(feature = "full")]
            Features::Image(features) => {
                let step = ImageDecoder::new(features)?;
                (
                    FeatureDecoder::Image(Box::new(step)),
                    features.shape.clone(),
                )
            }
            #[cfg(not(feature = "full"))]
            Features::Image(_) => {
                let what = "decoding images (data.features.decode = \"image\")".to_owned();
                return Err(DataError::NotBuilt { what });
            }
            Features::Numbers(features) => {
                let step = NumberDecoder::new("features", &features.field, features.scale)?;
                (FeatureDecoder::Numbers(step), features.shape.clone())
            }
            Features::Raw(features) => {
                let step = RawDecoder::new(features)?;
                (FeatureDecoder::Raw(step), features.shape.clone())
            }
            Features::Tokens(features) => {
                let step = TokenDecoder::new(features)?;
                (FeatureDecoder::Tokens(step), vec![features.context])
            }
        };
        let label = LabelDecoder::new(schema)?;
        check_form(&shape, label.classes())?;
        let mut wanted = features.fields();
        wanted.extend(label.fields());
        Ok(Self {
            features,
            label,
            shape,
            wanted,
            seeds: SeedTree::new(seed),
            role,
        })
    }

    /// Sets that the run file has no keys for the label, so that messages do not name them.
    pub(crate) fn without_keys(mut self) -> Self {
        if let LabelDecoder::Number { has_keys, .. } = &mut self.label {
            *has_keys = false;
        }
        self
    }

    /// Returns the shape of one sample.
    #[must_use]
    pub fn sample_shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the number of classes, or of values where these are the targets.
    #[must_use]
    pub fn classes(&self) -> u32 {
        debug_assert!(self.label.classes() <= CLASSES_MAX);
        self.label.classes()
    }

    /// Returns the kind of the targets.
    #[must_use]
    pub fn targets(&self) -> Targets {
        self.label.targets()
    }

    /// Returns the names and the units of the features and the targets, with the names of the fields as those of columns.
    #[must_use]
    pub fn signature(&self) -> DataSignature {
        let mut signature = DataSignature::default();
        match &self.features {
            FeatureDecoder::Numbers(step) => {
                let fields = step.fields();
                // A field with several numbers is not a column.
                let is_table = fields.len() > 1 || self.shape.iter().product::<usize>() == 1;
                signature.columns = if is_table {
                    standard_names(&fields)
                } else {
                    Vec::new()
                };
                signature.feature_scale = step.scale();
            }
            FeatureDecoder::Raw(step) => signature.feature_scale = step.scale(),
            #[cfg(feature = "full")]
            FeatureDecoder::Image(_) => {}
            FeatureDecoder::Tokens(_) => {}
        }
        self.label.describe(&mut signature);
        signature
    }

    /// Returns the conversion of images; `None` if the features are not encoded images.
    #[must_use]
    pub fn images(&self) -> Option<&ImageFeatures> {
        match &self.features {
            #[cfg(feature = "full")]
            FeatureDecoder::Image(step) => Some(step.features()),
            _ => None,
        }
    }

    /// Returns the identity of samples, from the identity of their records.
    pub(crate) fn identity(&self, records: String) -> String {
        match self.images() {
            Some(_) => format!("{records}, {IMAGE_DECODER}"),
            None => records,
        }
    }

    /// Returns the number of targets per sample.
    #[must_use]
    pub fn targets_per_sample(&self) -> usize {
        match &self.features {
            FeatureDecoder::Tokens(_) => self.shape[0],
            _ => self.label.per_sample(),
        }
    }

    /// Returns the fields that records must have.
    #[must_use]
    pub fn wanted(&self) -> FieldSelection {
        FieldSelection::fields(self.wanted.iter().cloned())
    }

    /// Writes features and targets of a record. All randomness is keyed by `epoch` and `sample`: the result depends neither
    /// on previously decoded records nor on the thread.
    ///
    /// # Errors
    /// Returns the reason why the record cannot be decoded; the caller adds its position.
    pub fn decode(
        &self,
        record: &Record<'_>,
        epoch: u64,
        sample: u64,
        scratch: &mut DecodeScratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DecodeError> {
        let elements = self.shape.iter().product::<usize>();
        if out.len() != elements || targets.len() != self.targets_per_sample() {
            return Err(DecodeError::Buffers {
                features: out.len(),
                targets: targets.len(),
                features_needed: elements,
                targets_needed: self.targets_per_sample(),
            });
        }
        match &self.features {
            #[cfg(feature = "full")]
            FeatureDecoder::Image(step) => {
                let random = match self.role {
                    SampleUse::Train => Some(
                        self.seeds
                            .stream(ronde_core::seed::Purpose::Augmentation, &[epoch, sample]),
                    ),
                    SampleUse::Test => None,
                };
                let encoded = fields::one_of(record, &step.features().field)?;
                step.decode(encoded, random.as_ref(), &mut scratch.image, out)?;
            }
            FeatureDecoder::Numbers(step) => step.decode(record, out)?,
            FeatureDecoder::Raw(step) => step.decode(record, out)?,
            FeatureDecoder::Tokens(step) => return step.decode(record, out, targets),
        }
        // Only images are augmented.
        let _ = (epoch, sample, scratch, self.role, &self.seeds);
        self.label.decode(record, targets)
    }
}

impl FeatureDecoder {
    fn fields(&self) -> Vec<String> {
        match self {
            #[cfg(feature = "full")]
            Self::Image(step) => vec![step.features().field.clone()],
            Self::Numbers(step) => step.fields(),
            Self::Raw(step) => vec![step.field.clone()],
            Self::Tokens(step) => vec![step.field.clone()],
        }
    }
}

#[cfg(test)]
mod tests;
