//! [`Dataset`]: what a source of samples must give.

use std::sync::Arc;

use ronde_core::Epoch;

use crate::DataError;
use crate::decode::Scratch;

/// Most elements that one sample may have.
pub(crate) const SAMPLE_ELEMENTS_MAX: usize = 1 << 24;

/// Most axes that a sample may have.
pub(crate) const SAMPLE_AXES_MAX: usize = 8;

/// Most classes that a data set may have.
pub(crate) const CLASSES_MAX: u32 = 1 << 20;

/// What a sample is to be answered with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Targets {
    /// Numbers of classes, each below [`Dataset::classes`], or [`IGNORED`].
    Classes,
    /// The bits of `f32` values, [`Dataset::classes`] of them.
    Values,
}

/// A target of a place that is not to be answered, as after the end of a text.
pub const IGNORED: u32 = u32::MAX;

/// Labelled samples of one shape, readable in any order and from several threads at once.
///
/// Reading is deterministic: the same sample always has the same bits.
pub trait Dataset: Send + Sync {
    /// Count of samples.
    fn len(&self) -> u64;

    /// Shape of one sample, without the batch: `[1, 8, 8]` for a grey image.
    fn sample_shape(&self) -> &[usize];

    /// Count of classes; labels are below it. Of values, where these are the targets.
    fn classes(&self) -> u32;

    /// What the targets are.
    fn targets(&self) -> Targets {
        Targets::Classes
    }

    /// Targets of each sample: one for each place of a text.
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

    /// Writes the features of a sample to `out`, row-major, and returns its label: of several
    /// targets the first.
    ///
    /// # Errors
    /// A sample that is not there, an `out` of another length than the shape has elements, or a
    /// source that cannot be read.
    fn read(&self, sample: u64, out: &mut [f32]) -> Result<u32, DataError>;

    /// What the content is: a hash of it, or the parameters of a made-up set. Equal identities
    /// mean equal bits; it is part of the hash of a plan.
    fn identity(&self) -> String;

    /// How samples lie together, where reading neighbours at once is cheaper than reading each by itself. `None`: it
    /// makes no difference, as in memory.
    fn locality(&self) -> Option<Locality> {
        None
    }

    /// Brings samples into memory, so that decoding them waits for nothing. `None` where there is nothing to bring:
    /// [`Dataset::read_all`] does it all.
    ///
    /// # Errors
    /// A sample that is not there, or a source that cannot be read.
    fn fetch(&self, _samples: &[u64]) -> Result<Option<Box<dyn Fetched>>, DataError> {
        Ok(None)
    }

    /// What was read up to now in this process, where it comes from another machine through a cache.
    fn traffic(&self) -> Option<Traffic> {
        None
    }

    /// Whether a sample that is told as [`DataError::Record`] is to be left out of its batch.
    fn skips_bad_records(&self) -> bool {
        false
    }

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Count of elements of one sample.
    fn sample_elements(&self) -> usize {
        self.sample_shape().iter().product()
    }
}

/// How the samples of a set lie together. Equal for equal sets, wherever they lie: orders are made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Locality {
    /// Samples that are read at once.
    pub block_samples: u64,
    /// Blocks whose samples are mixed.
    pub window_blocks: u64,
    /// Bytes of a sample as it is stored, on average.
    pub sample_bytes: u64,
    /// Bytes that are best fetched at once: so few that they stay in the processor's caches until they are used. Absent
    /// where what matters is that reads are few and long.
    pub fetch_bytes: Option<u64>,
}

/// Where bytes of samples came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes that were fetched from other machines.
    pub remote_bytes: u64,
    /// Bytes that were read from the cache.
    pub cached_bytes: u64,
}

/// Samples in memory as they were stored, not decoded yet.
pub trait Fetched: Send + Sync {
    /// Decodes the sample at `place` of those that were asked for, as [`Dataset::read_all`] does. What is changed at
    /// random in it depends on the epoch and the sample alone.
    ///
    /// # Errors
    /// [`DataError::Record`] for a sample that cannot be used; as [`Dataset::read_all`].
    fn decode(
        &self,
        place: usize,
        epoch: Epoch,
        scratch: &mut Scratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DataError>;

    /// Bytes of memory that it holds.
    fn bytes(&self) -> u64;
}

/// What is trained on and what is only measured on.
#[derive(Clone)]
pub struct Split {
    /// Samples to train on; at least one.
    pub train: Arc<dyn Dataset>,
    /// Samples to measure on, of the same shape and classes.
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

/// Refuses shapes and class counts that no data set can have, with the product of the shape.
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
