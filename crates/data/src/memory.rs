//! [`MemoryDataset`]: samples that need no I/O, because they are in memory or computed from their number.

use std::sync::Arc;

use ronde_core::{DataSignature, Epoch};

use crate::dataset::{Dataset, SampleOrigin, Targets};
use crate::dataset::{DatasetDescription, FetchedSamples, FileContent, check_form};
use crate::decode::{DecodeScratch, RecordDecoder};
use crate::error::DataError;
use crate::read_limit::OpenedPart;

/// Samples by number, without I/O.
pub(crate) trait SampleSource: Send + Sync {
    /// Writes the features and the targets of a sample. The number and the lengths of the buffers are those of the set.
    /// Random changes depend on the epoch and the sample alone.
    fn write(&self, sample: u64, epoch: Epoch, out: &mut [f32], targets: &mut [u32]);
}

/// Samples that need no I/O, because they are in memory or computed from their number.
pub struct MemoryDataset {
    source: Arc<dyn SampleSource>,
    samples: u64,
    description: DatasetDescription,
    /// The file whose records are the samples, if any.
    file: Option<String>,
    /// The estimated number of samples, if only a part of the file was read.
    estimated: Option<u64>,
}

/// Features and targets, row-major. Memory: 4 bytes for each.
struct SampleTable {
    features: Vec<f32>,
    targets: Vec<u32>,
}

impl SampleSource for SampleTable {
    fn write(&self, sample: u64, _epoch: Epoch, out: &mut [f32], targets: &mut [u32]) {
        let index = sample as usize;
        out.copy_from_slice(&self.features[index * out.len()..][..out.len()]);
        targets.copy_from_slice(&self.targets[index * targets.len()..][..targets.len()]);
    }
}

impl MemoryDataset {
    /// Returns a set of `labels.len()` samples. Cost: one pass of blake3 over the content.
    ///
    /// # Errors
    /// An invalid shape or number of classes, inconsistent lengths, or a label that is not below `classes`.
    pub fn new(
        features: Vec<f32>,
        labels: Vec<u32>,
        shape: Vec<usize>,
        classes: u32,
    ) -> Result<Self, DataError> {
        let elements = check_form(&shape, classes)?;
        if labels.len().checked_mul(elements) != Some(features.len()) {
            return Err(DataError::Lengths {
                features: features.len(),
                labels: labels.len(),
                elements,
            });
        }
        if let Some(sample) = labels.iter().position(|&label| label >= classes) {
            return Err(DataError::Label {
                sample: sample as u64,
                label: labels[sample],
                classes,
            });
        }
        let identity = identity(&features, &labels, &shape, classes);
        let description = DatasetDescription::new(shape, classes, identity);
        Ok(Self::of_table(features, labels, description))
    }

    /// Returns the set of the first `samples` samples of a source.
    pub(crate) fn of(
        source: Arc<dyn SampleSource>,
        samples: u64,
        description: DatasetDescription,
    ) -> Self {
        Self {
            source,
            samples,
            description,
            file: None,
            estimated: None,
        }
    }

    fn of_table(features: Vec<f32>, targets: Vec<u32>, description: DatasetDescription) -> Self {
        let samples = (targets.len() / description.targets_per_sample) as u64;
        let table = SampleTable { features, targets };
        Self::of(Arc::new(table), samples, description)
    }

    /// Sets the name of the file that the samples were read from.
    #[must_use]
    pub(crate) fn with_file(mut self, name: String) -> Self {
        let hash = self.description.identity.clone();
        self.file = Some(name.clone());
        self.description.files = vec![FileContent { name, hash }];
        self
    }

    /// Sets the names in the heading of the table whose lines are the samples, the target last. An empty heading has none.
    #[must_use]
    pub(crate) fn with_heading(mut self, heading: &[String]) -> Self {
        let signature = &mut self.description.signature;
        if let Some((target, columns)) = heading.split_last() {
            signature.columns = columns.to_vec();
            if self.description.targets == Targets::Values {
                signature.value_names = vec![target.clone()];
            }
        }
        self
    }

    /// Marks the set as a part of its file, which is `larger` times as large.
    pub(crate) fn with_part(mut self, larger: f64) -> Self {
        self.estimated = Some(((self.samples as f64 * larger) as u64).max(self.samples));
        self.description.opened = Some(OpenedPart {
            files: 1,
            unfinished: 1,
            files_total: 1,
            samples: self.samples,
        });
        self
    }

    /// Returns a set of samples that a decoder has written. Cost: as [`MemoryDataset::new`].
    pub(crate) fn of_decoded(
        features: Vec<f32>,
        targets: Vec<u32>,
        decoder: &RecordDecoder,
    ) -> Self {
        let (shape, classes) = (decoder.sample_shape().to_vec(), decoder.classes());
        let content = identity(&features, &targets, &shape, classes);
        let description = DatasetDescription {
            // The fields of these tables are positions.
            signature: DataSignature {
                columns: Vec::new(),
                value_names: Vec::new(),
                ..decoder.signature()
            },
            targets: decoder.targets(),
            targets_per_sample: decoder.targets_per_sample(),
            ..DatasetDescription::new(
                shape,
                classes,
                match decoder.targets() {
                    Targets::Classes => content,
                    Targets::Values => format!("values {content}"),
                    Targets::Boxes => format!("boxes {content}"),
                },
            )
        };
        Self::of_table(features, targets, description)
    }

    /// Returns a set with one value per sample as the target: `values` are the bits of `f32` numbers. Cost: as
    /// [`MemoryDataset::new`].
    ///
    /// # Errors
    /// As [`MemoryDataset::new`].
    pub fn of_values(
        features: Vec<f32>,
        values: Vec<u32>,
        shape: Vec<usize>,
    ) -> Result<Self, DataError> {
        let elements = check_form(&shape, 1)?;
        if values.len().checked_mul(elements) != Some(features.len()) {
            return Err(DataError::Lengths {
                features: features.len(),
                labels: values.len(),
                elements,
            });
        }
        let identity = format!("values {}", identity(&features, &values, &shape, 1));
        let description = DatasetDescription {
            targets: Targets::Values,
            ..DatasetDescription::new(shape, 1, identity)
        };
        Ok(Self::of_table(features, values, description))
    }
}

/// Returns the blake3 hash of shape, classes, labels and the bits of the features, little-endian.
fn identity(features: &[f32], labels: &[u32], shape: &[usize], classes: u32) -> String {
    const VALUES_AT_ONCE: usize = 16 * 1024;
    let mut hasher = blake3::Hasher::new_derive_key("ronde data set, version 1");
    hasher.update(&(shape.len() as u64).to_le_bytes());
    for &axis in shape {
        hasher.update(&(axis as u64).to_le_bytes());
    }
    hasher.update(&classes.to_le_bytes());
    hasher.update(&(labels.len() as u64).to_le_bytes());
    let mut bytes = Vec::with_capacity(4 * VALUES_AT_ONCE);
    for some in labels.chunks(VALUES_AT_ONCE) {
        bytes.clear();
        bytes.extend(some.iter().flat_map(|label| label.to_le_bytes()));
        hasher.update(&bytes);
    }
    for some in features.chunks(VALUES_AT_ONCE) {
        bytes.clear();
        bytes.extend(some.iter().flat_map(|value| value.to_le_bytes()));
        hasher.update(&bytes);
    }
    format!("blake3:{}", hasher.finalize().to_hex())
}

impl Dataset for MemoryDataset {
    fn len(&self) -> u64 {
        self.estimated.unwrap_or(self.samples)
    }

    fn description(&self) -> &DatasetDescription {
        &self.description
    }

    fn origin(&self, sample: u64) -> Option<SampleOrigin> {
        let file = self.file.as_ref().filter(|_| sample < self.samples)?;
        Some(SampleOrigin {
            file: file.clone(),
            record: sample,
        })
    }

    fn fetch(&self, samples: &[u64]) -> Result<Box<dyn FetchedSamples>, DataError> {
        if let Some(&sample) = samples.iter().find(|sample| **sample >= self.samples) {
            return Err(DataError::NoSuchSample {
                sample,
                samples: self.samples,
            });
        }
        Ok(Box::new(SamplesInMemory {
            source: Arc::clone(&self.source),
            samples: samples.to_vec(),
            elements: self.description.sample_elements(),
            targets: self.description.targets_per_sample,
        }))
    }
}

/// Some samples of a source.
struct SamplesInMemory {
    source: Arc<dyn SampleSource>,
    samples: Vec<u64>,
    elements: usize,
    targets: usize,
}

impl FetchedSamples for SamplesInMemory {
    fn decode(
        &self,
        index: usize,
        epoch: Epoch,
        _scratch: &mut DecodeScratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DataError> {
        let sample = *self.samples.get(index).ok_or(DataError::NoSuchSample {
            sample: index as u64,
            samples: self.samples.len() as u64,
        })?;
        for (given, needed) in [(out.len(), self.elements), (targets.len(), self.targets)] {
            if given != needed {
                return Err(DataError::BufferLength { given, needed });
            }
        }
        self.source.write(sample, epoch, out, targets);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::DatasetExt;

    fn set(features: &[f32], labels: &[u32]) -> Result<MemoryDataset, DataError> {
        MemoryDataset::new(features.to_vec(), labels.to_vec(), vec![2], 3)
    }

    #[test]
    fn samples_are_returned_and_invalid_requests_are_rejected() {
        let set = set(&[1.0, 2.0, 3.0, 4.0], &[2, 0]).unwrap();
        assert_eq!(set.sample(1).unwrap(), (vec![3.0, 4.0], vec![0]));
        let error = set.sample(2).unwrap_err();
        assert_eq!(error.to_string(), "no sample 2: the data set has 2 samples");
        let fetched = set.fetch(&[1, 0]).unwrap();
        let decode = |index, elements, targets| {
            let (mut out, mut targets) = (vec![0.0; elements], vec![0; targets]);
            let scratch = &mut DecodeScratch::default();
            fetched.decode(index, Epoch(0), scratch, &mut out, &mut targets)
        };
        assert!(decode(1, 2, 1).is_ok());
        let error = decode(2, 2, 1).unwrap_err();
        assert!(matches!(error, DataError::NoSuchSample { sample: 2, .. }));
        for (elements, targets, expected) in [(3, 1, (3, 2)), (2, 0, (0, 1))] {
            match decode(0, elements, targets).unwrap_err() {
                DataError::BufferLength { given, needed } => assert_eq!((given, needed), expected),
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn inconsistent_contents_are_rejected() {
        assert!(matches!(
            set(&[1.0; 3], &[0, 1]),
            Err(DataError::Lengths { .. })
        ));
        assert!(matches!(
            set(&[1.0; 4], &[0, 3]),
            Err(DataError::Label {
                sample: 1,
                label: 3,
                classes: 3
            })
        ));
        for shape in [vec![0], vec![usize::MAX, 2], vec![1; 9]] {
            let error = MemoryDataset::new(Vec::new(), Vec::new(), shape, 3);
            assert!(matches!(error, Err(DataError::Shape { .. })));
        }
        let error = MemoryDataset::new(Vec::new(), Vec::new(), vec![1], 0);
        assert!(matches!(error, Err(DataError::Classes { .. })));
    }

    #[test]
    fn every_bit_of_the_content_changes_the_identity() {
        let sets = [
            set(&[1.0, 2.0], &[0]),
            set(&[1.0, 2.000_000_2], &[0]),
            set(&[1.0, 2.0], &[1]),
            set(&[-0.0, 2.0], &[0]),
            set(&[0.0, 2.0], &[0]),
            MemoryDataset::new(vec![1.0, 2.0], vec![0], vec![1, 2], 3),
            MemoryDataset::new(vec![1.0, 2.0], vec![0], vec![2], 4),
        ];
        let identity = |set: Result<MemoryDataset, DataError>| set.unwrap().description.identity;
        let mut identities: Vec<String> = sets.map(identity).to_vec();
        assert_eq!(identities[0], identity(set(&[1.0, 2.0], &[0])));
        identities.sort();
        identities.dedup();
        assert_eq!(identities.len(), 7);
    }
}
