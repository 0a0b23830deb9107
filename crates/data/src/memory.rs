//! [`MemoryDataset`]: samples in memory.

use std::path::Path;

use crate::dataset::{check_form, check_read};
use crate::{DataError, Dataset, Targets};

/// Samples in memory, row-major. Cost: 4 bytes per feature and label.
pub struct MemoryDataset {
    features: Vec<f32>,
    labels: Vec<u32>,
    shape: Vec<usize>,
    elements: usize,
    classes: u32,
    targets: Targets,
    identity: String,
    file: Option<String>,
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
        Ok(Self {
            features,
            labels,
            shape,
            elements,
            classes,
            targets: Targets::Classes,
            identity,
            file: None,
        })
    }

    /// Sets the name of the file that the samples were read from.
    #[must_use]
    pub(crate) fn with_file(mut self, path: &Path) -> Self {
        self.file = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        self
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
        Ok(Self {
            features,
            labels: values,
            shape,
            elements,
            classes: 1,
            targets: Targets::Values,
            identity,
            file: None,
        })
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
        self.labels.len() as u64
    }

    fn sample_shape(&self) -> &[usize] {
        &self.shape
    }

    fn sample_elements(&self) -> usize {
        self.elements
    }

    fn classes(&self) -> u32 {
        self.classes
    }

    fn targets(&self) -> Targets {
        self.targets
    }

    fn read(&self, sample: u64, out: &mut [f32]) -> Result<u32, DataError> {
        check_read(self, sample, out)?;
        let index = sample as usize;
        let start = index * self.elements;
        out.copy_from_slice(&self.features[start..start + self.elements]);
        Ok(self.labels[index])
    }

    fn files(&self) -> Vec<(String, String)> {
        let file = self.file.iter();
        file.map(|name| (name.clone(), self.identity.clone()))
            .collect()
    }

    fn identity(&self) -> String {
        self.identity.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(features: &[f32], labels: &[u32]) -> Result<MemoryDataset, DataError> {
        MemoryDataset::new(features.to_vec(), labels.to_vec(), vec![2], 3)
    }

    #[test]
    fn samples_are_returned_and_invalid_requests_are_rejected() {
        let set = set(&[1.0, 2.0, 3.0, 4.0], &[2, 0]).unwrap();
        let mut out = [0.0; 2];
        assert_eq!(set.read(1, &mut out).unwrap(), 0);
        assert_eq!(out, [3.0, 4.0]);
        let error = set.read(2, &mut out).unwrap_err();
        assert_eq!(error.to_string(), "no sample 2: the data set has 2 samples");
        let error = set.read(0, &mut [0.0; 3]).unwrap_err();
        assert!(matches!(
            error,
            DataError::BufferLength {
                given: 3,
                needed: 2
            }
        ));
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
        let mut identities: Vec<String> = sets.map(|set| set.unwrap().identity()).to_vec();
        assert_eq!(identities[0], set(&[1.0, 2.0], &[0]).unwrap().identity());
        identities.sort();
        identities.dedup();
        assert_eq!(identities.len(), 7);
    }
}
