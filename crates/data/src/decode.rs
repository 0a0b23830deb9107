//! [`Decoder`]: records to features and targets, as a [`Schema`] says.

#[cfg(feature = "full")]
mod image;
mod label;
mod numbers;
mod schema;

use ronde_core::seed::SeedTree;

use crate::DataError;
use crate::dataset::{CLASSES_MAX, Targets, check_form};
use crate::format::{Record, Value, Wanted};
pub use schema::{
    Crop, Features, Fields, ImageFeatures, Label, NumberFeatures, RawFeatures, Schema,
    TokenFeatures,
};

/// What samples are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// To train on: images are changed at random where the schema says so.
    Train,
    /// To measure on: always the same.
    Test,
}

/// Memory of one thread that decodes, used again and again.
#[derive(Debug, Default)]
pub struct Scratch {
    #[cfg(feature = "full")]
    image: image::Memory,
}

impl Scratch {
    /// Without any memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

/// Turns records into features and targets. May be used by several threads, each with a [`Scratch`].
#[derive(Debug)]
pub struct Decoder {
    features: Step,
    label: label::Step,
    shape: Vec<usize>,
    wanted: Vec<String>,
    seeds: SeedTree,
    role: Role,
}

/// How features are made.
#[derive(Debug)]
enum Step {
    #[cfg(feature = "full")]
    Image(Box<image::Step>),
    Numbers(numbers::Step),
    Raw(numbers::RawStep),
    Tokens(numbers::TokenStep),
}

impl Decoder {
    /// A decoder for a schema. `seed` is the run's.
    ///
    /// # Errors
    /// A schema that cannot be, with the key; images where this build has none.
    pub fn new(schema: &Schema, role: Role, seed: u64) -> Result<Self, DataError> {
        let (features, shape) = match &schema.features {
            #[cfg(feature = "full")]
            Features::Image(features) => {
                let step = image::Step::new(features)?;
                (Step::Image(Box::new(step)), features.shape.clone())
            }
            #[cfg(not(feature = "full"))]
            Features::Image(_) => {
                let what = "decoding images (data.features.decode = \"image\")".to_owned();
                return Err(DataError::NotBuilt { what });
            }
            Features::Numbers(features) => {
                let step = numbers::Step::new("features", &features.field, features.scale)?;
                (Step::Numbers(step), features.shape.clone())
            }
            Features::Raw(features) => {
                let step = numbers::RawStep::new(features)?;
                (Step::Raw(step), features.shape.clone())
            }
            Features::Tokens(features) => {
                let step = numbers::TokenStep::new(features)?;
                (Step::Tokens(step), vec![features.context])
            }
        };
        let label = label::Step::new(schema)?;
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

    /// Shape of one sample.
    #[must_use]
    pub fn sample_shape(&self) -> &[usize] {
        &self.shape
    }

    /// Count of classes, or of values where these are the targets.
    #[must_use]
    pub fn classes(&self) -> u32 {
        debug_assert!(self.label.classes() <= CLASSES_MAX);
        self.label.classes()
    }

    /// What the targets are.
    #[must_use]
    pub fn targets(&self) -> Targets {
        self.label.targets()
    }

    /// Targets of each sample.
    #[must_use]
    pub fn targets_per_sample(&self) -> usize {
        match &self.features {
            Step::Tokens(_) => self.shape[0],
            _ => self.label.per_sample(),
        }
    }

    /// The fields that records must have.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        Wanted::fields(self.wanted.iter().cloned())
    }

    /// Writes features and targets of a record. `epoch` and `sample` are the key of all randomness: what comes out does
    /// not depend on what was decoded before, nor on the thread.
    ///
    /// # Errors
    /// What is wrong with the record, for who knows where it lies.
    pub fn decode(
        &self,
        record: &Record<'_>,
        epoch: u64,
        sample: u64,
        scratch: &mut Scratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), String> {
        let elements = self.shape.iter().product::<usize>();
        if out.len() != elements || targets.len() != self.targets_per_sample() {
            return Err(format!(
                "buffers of {} and {} elements for {elements} features and {} targets",
                out.len(),
                targets.len(),
                self.targets_per_sample()
            ));
        }
        match &self.features {
            #[cfg(feature = "full")]
            Step::Image(step) => {
                let random = match self.role {
                    Role::Train => Some(
                        self.seeds
                            .stream(ronde_core::seed::Purpose::Augmentation, &[epoch, sample]),
                    ),
                    Role::Test => None,
                };
                step.decode(record, random.as_ref(), &mut scratch.image, out)?;
            }
            Step::Numbers(step) => step.decode(record, out)?,
            Step::Raw(step) => step.decode(record, out)?,
            Step::Tokens(step) => return step.decode(record, out, targets),
        }
        // Only images are changed at random.
        let _ = (epoch, sample, scratch, self.role, &self.seeds);
        self.label.decode(record, targets)
    }
}

impl Step {
    fn fields(&self) -> Vec<String> {
        match self {
            #[cfg(feature = "full")]
            Self::Image(step) => vec![step.field().to_owned()],
            Self::Numbers(step) => step.fields(),
            Self::Raw(step) => vec![step.field.clone()],
            Self::Tokens(step) => vec![step.field.clone()],
        }
    }
}

/// The value of a field that must be there.
fn field<'r, 'a>(record: &'r Record<'a>, name: &str) -> Result<&'r Value<'a>, String> {
    record.get(name).ok_or_else(|| {
        let mut there: Vec<_> = record.fields.iter().map(|(name, _)| &**name).collect();
        there.truncate(20);
        format!("it has no field {name:?}, of those that are wanted it has {there:?}")
    })
}

/// A record of a set of images has one of them in a field.
fn one_of<'r>(record: &'r Record<'_>, name: &str) -> Result<&'r [u8], String> {
    match field(record, name)? {
        Value::Bytes(bytes) => Ok(bytes),
        other => Err(format!("field {name:?} holds {}, not bytes", other.kind())),
    }
}

fn wrong(key: &str, problem: impl Into<String>) -> DataError {
    DataError::Schema {
        key: key.to_owned(),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests;
