//! [`Dataset`]: the interface of sources of samples.

use std::sync::Arc;

use ronde_core::Epoch;

use crate::DataError;
use crate::decode::DecodeScratch;

/// The maximum number of elements of a sample.
pub(crate) const SAMPLE_ELEMENTS_MAX: usize = 1 << 24;

/// The maximum number of axes of a sample.
pub(crate) const SAMPLE_AXES_MAX: usize = 8;

/// The maximum number of classes of a data set.
pub(crate) const CLASSES_MAX: u32 = 1 << 20;

/// The kind of a sample's targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Targets {
    /// Class numbers, each below [`Dataset::classes`], or [`IGNORED`].
    Classes,
    /// The bits of `f32` values, [`Dataset::classes`] of them.
    Values,
}

/// The target of a position that does not count towards the loss, for example after the end of a text.
pub const IGNORED: u32 = u32::MAX;

/// Labelled samples of one shape, readable in any order and from several threads at once.
///
/// Reading is deterministic: the same sample always has the same bits.
pub trait Dataset: Send + Sync {
    /// Returns the number of samples.
    fn len(&self) -> u64;

    /// Returns the shape of one sample without the batch axis: `[1, 8, 8]` for a grey image.
    fn sample_shape(&self) -> &[usize];

    /// Returns the number of classes (labels are below it), or of values if the targets are values.
    fn classes(&self) -> u32;

    /// Returns the kind of the targets.
    fn targets(&self) -> Targets {
        Targets::Classes
    }

    /// Returns the number of targets of each sample: one for each position of a text.
    fn targets_per_sample(&self) -> usize {
        1
    }

    /// Writes the features of a sample to `out`, row-major, and all of its targets.
    ///
    /// # Errors
    /// As [`Dataset::read`]; also for `targets` of another length than a sample has.
    fn read_all(&self, sample: u64, out: &mut [f32], targets: &mut [u32]) -> Result<(), DataError> {
        let label = self.read(sample, out)?;
        match targets {
            [target] => *target = label,
            _ => {
                return Err(DataError::BufferLength {
                    given: targets.len(),
                    needed: 1,
                });
            }
        }
        Ok(())
    }

    /// Writes the features of a sample to `out`, row-major, and returns its label (the first of several targets).
    ///
    /// # Errors
    /// A sample number out of range, an `out` whose length is not the number of elements of a sample, or a source that cannot
    /// be read.
    fn read(&self, sample: u64, out: &mut [f32]) -> Result<u32, DataError>;

    /// Returns the identity of the content: a hash of it, or the parameters of a synthetic set. Equal identities mean equal
    /// bits; the identity is part of the plan's hash.
    fn identity(&self) -> String;

    /// Returns the names of the set's files with a hash of the contents of each, so that a changed file can be named. Many
    /// files are combined into groups. Empty for sets without files.
    fn files(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns how samples are stored together, if reading neighbours together is cheaper than reading each alone. `None`
    /// if it makes no difference, as in memory.
    fn locality(&self) -> Option<Locality> {
        None
    }

    /// Reads samples into memory, so that decoding them does not wait for I/O. `None` if the set is already in memory; then
    /// [`Dataset::read_all`] reads and decodes.
    ///
    /// # Errors
    /// A sample number out of range, or a source that cannot be read.
    fn fetch(&self, _samples: &[u64]) -> Result<Option<Box<dyn FetchedSamples>>, DataError> {
        Ok(None)
    }

    /// Returns the bytes read so far in this process, for data that is read from other machines through a cache.
    fn traffic(&self) -> Option<Traffic> {
        None
    }

    /// Returns the treatment of samples that fail with [`DataError::Record`].
    fn bad_records(&self) -> BadRecordPolicy {
        BadRecordPolicy::default()
    }

    /// Returns whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of elements of one sample.
    fn sample_elements(&self) -> usize {
        self.sample_shape().iter().product()
    }
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
    /// Decodes the sample at `index` of the requested ones, as [`Dataset::read_all`] does. Random augmentation depends on the
    /// epoch and the sample alone.
    ///
    /// # Errors
    /// [`DataError::Record`] for a sample that cannot be used; as [`Dataset::read_all`].
    fn decode(
        &self,
        index: usize,
        epoch: Epoch,
        scratch: &mut DecodeScratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DataError>;

    /// Returns the bytes of memory that the samples occupy.
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
            .field("train", &self.train.identity())
            .field("test", &self.test.as_ref().map(|test| test.identity()))
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

/// Checks the arguments of [`Dataset::read_all`].
pub(crate) fn check_read_all(
    dataset: &dyn Dataset,
    sample: u64,
    out: &[f32],
    targets: &[u32],
) -> Result<(), DataError> {
    check_read(dataset, sample, out)?;
    if targets.len() != dataset.targets_per_sample() {
        return Err(DataError::BufferLength {
            given: targets.len(),
            needed: dataset.targets_per_sample(),
        });
    }
    Ok(())
}

/// Checks the arguments of [`Dataset::read`].
pub(crate) fn check_read(dataset: &dyn Dataset, sample: u64, out: &[f32]) -> Result<(), DataError> {
    if sample >= dataset.len() {
        return Err(DataError::NoSuchSample {
            sample,
            samples: dataset.len(),
        });
    }
    if out.len() != dataset.sample_elements() {
        return Err(DataError::BufferLength {
            given: out.len(),
            needed: dataset.sample_elements(),
        });
    }
    Ok(())
}
