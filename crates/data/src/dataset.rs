//! [`Dataset`]: the interface of sources of samples.

use std::sync::Arc;

use ronde_core::{DataSignature, Epoch};

use crate::decode::ImageFeatures;
use crate::decode::scratch::DecodeScratch;
use crate::error::DataError;
use crate::read_limit::OpenedPart;
use crate::vocabulary::Vocabulary;

/// The maximum number of elements of a sample.
pub(crate) const SAMPLE_ELEMENTS_MAX: usize = 1 << 24;

/// The maximum number of axes of a sample.
pub(crate) const SAMPLE_AXES_MAX: usize = 8;

/// The maximum number of classes of a data set.
pub(crate) const CLASSES_MAX: u32 = 1 << 20;

/// The number of samples that [`DatasetExt::features`] holds in memory before they are decoded.
const SAMPLES_TOGETHER: usize = 256;

/// The kind of a sample's targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Targets {
    /// Class numbers, each below [`DatasetDescription::classes`], or [`IGNORED`].
    #[default]
    Classes,
    /// The bits of `f32` values, [`DatasetDescription::classes`] of them.
    Values,
    /// Boxes of objects in an image, five numbers each: the class number, and the bits of the `f32` values top, left, bottom
    /// and right, as shares of the image's height and width. A box of class [`IGNORED`] does not exist.
    Boxes,
}

/// The target of a position that does not count towards the loss, for example after the end of a text.
pub const IGNORED: u32 = u32::MAX;

/// Labelled samples of one shape, readable in any order and from several threads at once.
///
/// All sets are read in the same way, whether they are stored, in memory or computed: [`Dataset::fetch`] waits for I/O where
/// there is any, and [`FetchedSamples::decode`] writes a sample into the caller's buffer without a further copy. Reading is
/// deterministic: the same sample of the same epoch always has the same bits.
pub trait Dataset: Send + Sync {
    /// Returns the number of samples.
    fn len(&self) -> u64;

    /// Returns the form of the samples, and the identity of the set.
    fn description(&self) -> &DatasetDescription;

    /// Reads samples into memory, so that decoding them does not wait for I/O. Costs one allocation if they need no I/O.
    ///
    /// # Errors
    /// A sample number out of range, or a source that cannot be read.
    fn fetch(&self, samples: &[u64]) -> Result<Box<dyn FetchedSamples>, DataError>;

    /// Returns the bytes read so far in this process, for data that is read from other machines through a cache.
    fn traffic(&self) -> Option<Traffic> {
        None
    }

    /// Returns the record of a file from which a sample is read; `None` if it has none, as a computed sample, or there is no
    /// such sample.
    fn origin(&self, sample: u64) -> Option<SampleOrigin> {
        let _ = sample;
        None
    }

    /// Returns whether it is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Methods that every [`Dataset`] has.
pub trait DatasetExt: Dataset {
    /// Returns the features of a sample, row-major, and its targets. Training reads many samples at once; this is for single
    /// ones.
    ///
    /// # Errors
    /// As [`Dataset::fetch`] and [`FetchedSamples::decode`].
    fn sample(&self, number: u64) -> Result<(Vec<f32>, Vec<u32>), DataError> {
        let description = self.description();
        let mut features = vec![0.0; description.sample_elements()];
        let mut targets = vec![0; description.targets_per_sample];
        let scratch = &mut DecodeScratch::default();
        let fetched = self.fetch(&[number])?;
        fetched.decode(0, Epoch(0), scratch, &mut features, &mut targets)?;
        Ok((features, targets))
    }

    /// Returns the features of some samples, row-major, without bad records if these are skipped. Reads 256
    /// samples at a time.
    ///
    /// # Errors
    /// As [`Dataset::fetch`] and [`FetchedSamples::decode`].
    fn features(&self, numbers: &[u64]) -> Result<Vec<f32>, DataError> {
        let description = self.description();
        let skips = description.bad_records.skip_limit.is_some();
        let elements = description.sample_elements();
        let mut features = Vec::with_capacity(numbers.len() * elements);
        let mut targets = vec![0; description.targets_per_sample];
        let scratch = &mut DecodeScratch::default();
        for some in numbers.chunks(SAMPLES_TOGETHER) {
            let fetched = self.fetch(some)?;
            for index in 0..some.len() {
                let start = features.len();
                features.resize(start + elements, 0.0);
                let to = &mut features[start..];
                match fetched.decode(index, Epoch(0), scratch, to, &mut targets) {
                    Err(DataError::Record { .. }) if skips => features.truncate(start),
                    outcome => outcome?,
                }
            }
        }
        Ok(features)
    }
}

impl<D: Dataset + ?Sized> DatasetExt for D {}

/// The form of the samples of a [`Dataset`], its identity, and how it is best read.
#[derive(Debug, Clone, PartialEq)]
pub struct DatasetDescription {
    /// The shape of one sample without the batch axis: `[1, 8, 8]` for a grey image.
    pub shape: Vec<usize>,
    /// The number of classes (labels are below it), or of values if the targets are values.
    pub classes: u32,
    /// The kind of the targets.
    pub targets: Targets,
    /// The number of targets of each sample: one for each position of a text.
    pub targets_per_sample: usize,
    /// The identity of the content: a hash of it, or the parameters of a synthetic set. Equal identities mean equal bits; the
    /// identity is part of the plan's hash.
    pub identity: String,
    /// The set's files with a hash of the contents of each, so that a changed file can be named. Many files are combined into
    /// groups. Empty for sets without files.
    pub files: Vec<FileContent>,
    /// How samples are stored together, if reading neighbours together is cheaper than reading each alone. `None` if it makes
    /// no difference, as in memory.
    pub locality: Option<Locality>,
    /// The treatment of samples that fail with [`DataError::Record`].
    pub bad_records: BadRecordPolicy,
    /// The text of the tokens, for sets of texts whose text is known.
    pub vocabulary: Option<Arc<Vocabulary>>,
    /// The conversion of images, for sets of encoded images.
    pub images: Option<ImageFeatures>,
    /// The names and the units of the features and the targets. Not part of the identity: they do not change a bit.
    pub signature: DataSignature,
    /// The part of the set that was opened, if a limit has ended that.
    pub opened: Option<OpenedPart>,
}

impl DatasetDescription {
    /// Returns the description of samples with one class number each, without files, locality and bad records.
    #[must_use]
    pub fn new(shape: Vec<usize>, classes: u32, identity: String) -> Self {
        Self {
            shape,
            classes,
            targets: Targets::Classes,
            targets_per_sample: 1,
            identity,
            files: Vec::new(),
            locality: None,
            bad_records: BadRecordPolicy::default(),
            vocabulary: None,
            images: None,
            signature: DataSignature::default(),
            opened: None,
        }
    }

    /// Returns the number of elements of one sample.
    #[must_use]
    pub fn sample_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the number of bytes of a decoded sample with its targets.
    #[must_use]
    pub fn decoded_bytes(&self) -> u64 {
        4 * (self.sample_elements() + self.targets_per_sample) as u64
    }
}

/// The record from which a sample is read.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct SampleOrigin {
    /// The location of the file.
    pub file: String,
    /// The number of the record among those of the file that were found when it was indexed, from 0.
    pub record: u64,
}

/// A file of a data set, or a group of files, with a hash of its contents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileContent {
    /// The name of the file, or of the first and the last one.
    pub name: String,
    /// The hash.
    pub hash: String,
}

/// How the samples of a set are stored together. Equal for equal sets wherever they are stored, because the order of
/// samples is derived from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locality {
    /// The number of samples that are read together.
    pub block_samples: u64,
    /// The number of blocks whose samples are mixed.
    pub window_blocks: u64,
    /// The average stored size of a sample in bytes.
    pub sample_bytes: u64,
    /// The preferred number of bytes of one read, small enough to stay in the processor's caches until they are used. `None`
    /// where few and long reads are faster.
    pub fetch_bytes: Option<u64>,
}

/// The treatment of bad records.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BadRecordPolicy {
    /// The share of bad records up to which they are left out of their batches; `None` if the first one is an error.
    pub skip_limit: Option<f64>,
    /// The number of records that were skipped when the set was opened.
    pub skipped: u64,
}

/// The origin of the bytes of samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// The bytes fetched from other machines.
    pub remote_bytes: u64,
    /// The bytes read from the cache.
    pub cached_bytes: u64,
}

/// Samples in memory that are not decoded yet.
pub trait FetchedSamples: Send + Sync {
    /// Writes the features of the sample at `index` of the requested ones to `out`, row-major, and all of its targets. Random
    /// augmentation depends on the epoch and the sample alone.
    ///
    /// # Errors
    /// [`DataError::Record`] for a sample that cannot be used, and an `index` or buffers of another length than the samples
    /// have.
    fn decode(
        &self,
        index: usize,
        epoch: Epoch,
        scratch: &mut DecodeScratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DataError>;

    /// Returns the bytes of memory that the samples occupy; 0 if they belong to the set itself.
    fn bytes(&self) -> u64;
}

/// A training set and a test set.
#[derive(Clone)]
pub struct Split {
    /// The training samples; at least one.
    pub train: Arc<dyn Dataset>,
    /// The samples for evaluation, with the same shape and classes.
    pub test: Option<Arc<dyn Dataset>>,
}

impl std::fmt::Debug for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Split")
            .field("train", &self.train.description().identity)
            .field(
                "test",
                &self.test.as_ref().map(|test| &test.description().identity),
            )
            .finish()
    }
}

/// Checks a shape and a number of classes, and returns the number of elements of a sample.
pub(crate) fn check_form(shape: &[usize], classes: u32) -> Result<usize, DataError> {
    let elements = shape
        .iter()
        .try_fold(1_usize, |product, &axis| product.checked_mul(axis))
        .filter(|&n| (1..=SAMPLE_ELEMENTS_MAX).contains(&n) && shape.len() <= SAMPLE_AXES_MAX)
        .ok_or_else(|| DataError::Shape {
            shape: shape.to_vec(),
            elements_max: SAMPLE_ELEMENTS_MAX,
            axes_max: SAMPLE_AXES_MAX,
        })?;
    if !(1..=CLASSES_MAX).contains(&classes) {
        return Err(DataError::Classes {
            classes,
            classes_max: CLASSES_MAX,
        });
    }
    Ok(elements)
}
