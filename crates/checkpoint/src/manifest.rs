//! [`Manifest`]: the description of a checkpoint's contents.

use std::collections::{BTreeMap, BTreeSet};

use ronde_core::{DataSignature, Epoch, PlanIdentity, Step};
use ronde_store::{ObjectName, StoreError};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::envelope::{self, DecodeProblem, FileFormat};
use crate::error::CheckpointError;
use crate::fence::Fence;
use crate::names;
use crate::vector::{StateVector, VectorError, check_all};

const KIND: FileFormat = FileFormat {
    format: ("ronde.checkpoint", 1),
    key: "manifest",
};

/// The maximum length of a manifest; a longer file is treated as damaged.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// A blake3 digest, written as 64 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Computes the digest of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        blake3::Hash::from_hex(digits)
            .map(|hash| Self(*hash.as_bytes()))
            .map_err(serde::de::Error::custom)
    }
}

/// A file with its length and digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// The name in the store.
    pub name: String,
    /// The length in bytes.
    pub bytes: u64,
    /// The digest of the whole file.
    pub blake3: Digest,
}

/// A file of slices, written by one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceFile {
    /// The name in the store.
    pub name: String,
    /// The rank that wrote the file.
    pub rank: u32,
    /// The length in bytes.
    pub bytes: u64,
    /// The slices, in order and without gaps.
    pub slices: Vec<SliceRecord>,
}

/// A contiguous range of a vector's elements in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceRecord {
    /// The name of the vector.
    pub vector: String,
    /// The first element in the vector.
    pub start: u64,
    /// The number of elements.
    pub elements: u64,
    /// The first byte in the file.
    pub offset: u64,
    /// The parts, in order and without gaps.
    pub parts: Vec<PartRecord>,
}

/// A range of elements with one digest: elements of one tensor and the padding after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartRecord {
    /// The name of the tensor; none for padding before the first tensor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// The number of elements.
    pub elements: u64,
    /// The digest of their bytes.
    pub blake3: Digest,
}

/// The reason why a manifest is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error(transparent)]
    Envelope(#[from] DecodeProblem),
    #[error("it belongs to step {step}")]
    OtherStep { step: Step },
    #[error(transparent)]
    Vector(#[from] VectorError),
    #[error(transparent)]
    Name(#[from] StoreError),
    #[error("file {file} does not belong to step {step} or is listed twice")]
    OtherFile { file: String, step: Step },
    #[error("expected one file for each of {world_size} ranks, in the order of ranks")]
    Ranks { world_size: u32 },
    #[error("a slice of {vector} in {file} has an invalid range")]
    Slice { vector: String, file: String },
    #[error("the slices of {file} have {slices_bytes} bytes, but the file has {bytes} bytes")]
    FileLength {
        file: String,
        slices_bytes: u64,
        bytes: u64,
    },
    #[error("vector {vector}: no slice has element {element}")]
    NoSlice { vector: String, element: u64 },
    #[error("vector {vector}: two slices have element {element}")]
    TwoSlices { vector: String, element: u64 },
}

/// The description of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The name of the training run.
    pub run: String,
    /// The number of committed steps, which is also the number of the next step.
    pub step: Step,
    /// The epoch of the next step.
    pub epoch: Epoch,
    /// The fence under which the checkpoint was published.
    pub fence: Fence,
    /// The number of ranks that saved it.
    pub world_size: u32,
    /// The time of the save, in milliseconds since 1970.
    pub saved_unix_ms: u64,
    /// The parts of the plan by name.
    pub plan: BTreeMap<String, String>,
    /// The names and the units of the model's inputs and outputs.
    #[serde(default, skip_serializing_if = "DataSignature::is_empty")]
    pub signature: DataSignature,
    /// The vectors of the state.
    pub vectors: Vec<StateVector>,
    /// The file with the training loop's cursor, which is opaque to this crate.
    pub cursor: FileRecord,
    /// One file of slices for each rank.
    pub files: Vec<SliceFile>,
}

impl Manifest {
    /// Returns the plan that the checkpoint belongs to.
    #[must_use]
    pub fn identity(&self) -> PlanIdentity {
        let mut identity = PlanIdentity::default();
        for (name, value) in &self.plan {
            identity.set(name, value);
        }
        identity
    }

    /// Returns the bytes of all slices.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the vector with a name.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`], which lists the existing names.
    pub fn vector(&self, name: &str) -> Result<&StateVector, CheckpointError> {
        self.vectors
            .iter()
            .find(|vector| vector.name == name)
            .ok_or_else(|| {
                let names: Vec<&str> = self.vectors.iter().map(|v| v.name.as_str()).collect();
                CheckpointError::invalid(
                    format!("vector `{name}`"),
                    format!(
                        "the checkpoint of step {} has {}",
                        self.step,
                        names.join(", ")
                    ),
                )
            })
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>, CheckpointError> {
        envelope::encode(KIND, self)
            .map_err(|error| CheckpointError::invalid("manifest", error.to_string()))
    }

    /// Decodes and checks the manifest of `step`.
    pub(crate) fn decode(step: Step, bytes: &[u8]) -> Result<Self, ManifestError> {
        let manifest: Self = envelope::decode(KIND, bytes)?;
        if manifest.step != step {
            return Err(ManifestError::OtherStep {
                step: manifest.step,
            });
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Returns the name and length of every file of the checkpoint.
    pub(crate) fn needed(&self) -> impl Iterator<Item = (&str, u64)> {
        let slices = self
            .files
            .iter()
            .map(|file| (file.name.as_str(), file.bytes));
        std::iter::once((self.cursor.name.as_str(), self.cursor.bytes)).chain(slices)
    }

    /// Checks that the slices cover each vector exactly once and that all files belong to the step.
    pub(crate) fn check(&self) -> Result<(), ManifestError> {
        check_all(&self.vectors)?;
        let mut names_seen = BTreeSet::new();
        for (name, _) in self.needed() {
            let object = ObjectName::new(name)?;
            if names::step_of(&object) != Some(self.step) || !names_seen.insert(name) {
                return Err(ManifestError::OtherFile {
                    file: name.to_owned(),
                    step: self.step,
                });
            }
        }
        let ranks = self.files.iter().map(|file| file.rank);
        if !ranks.eq(0..self.world_size) {
            return Err(ManifestError::Ranks {
                world_size: self.world_size,
            });
        }
        let mut covered: BTreeMap<&str, Vec<(u64, u64)>> = BTreeMap::new();
        for file in &self.files {
            let mut offset = 0;
            for slice in &file.slices {
                let vector = self.vectors.iter().find(|v| v.name == slice.vector);
                let bytes = vector.and_then(|vector| check_slice(vector, slice));
                match bytes {
                    Some(bytes) if slice.offset == offset => offset += bytes,
                    _ => {
                        return Err(ManifestError::Slice {
                            vector: slice.vector.clone(),
                            file: file.name.clone(),
                        });
                    }
                }
                let ranges = covered.entry(&slice.vector).or_default();
                ranges.push((slice.start, slice.elements));
            }
            if offset != file.bytes {
                return Err(ManifestError::FileLength {
                    file: file.name.clone(),
                    slices_bytes: offset,
                    bytes: file.bytes,
                });
            }
        }
        self.vectors.iter().try_for_each(|vector| {
            let ranges = covered.remove(vector.name.as_str()).unwrap_or_default();
            check_cover(vector, ranges)
        })
    }
}

/// Returns the bytes of a slice, or `None` when it exceeds its vector or its parts do not fill it.
fn check_slice(vector: &StateVector, slice: &SliceRecord) -> Option<u64> {
    let end = slice.start.checked_add(slice.elements)?;
    let parts = slice.parts.iter().try_fold(0_u64, |sum, part| {
        (part.elements > 0).then_some(())?;
        sum.checked_add(part.elements)
    })?;
    (end <= vector.elements && parts == slice.elements)
        .then_some(slice.elements * vector.dtype.size() as u64)
}

/// Checks that slices cover a vector exactly once.
fn check_cover(vector: &StateVector, mut ranges: Vec<(u64, u64)>) -> Result<(), ManifestError> {
    ranges.sort_unstable();
    let mut at = 0;
    for (start, elements) in ranges {
        if elements == 0 {
            continue;
        }
        if start != at {
            let (vector, element) = (vector.name.clone(), start.min(at));
            return Err(match start > at {
                true => ManifestError::NoSlice { vector, element },
                false => ManifestError::TwoSlices { vector, element },
            });
        }
        at += elements;
    }
    if at != vector.elements {
        return Err(ManifestError::NoSlice {
            vector: vector.name.clone(),
            element: at,
        });
    }
    Ok(())
}
