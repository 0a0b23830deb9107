//! [`Manifest`]: what a checkpoint consists of, as its file says.

use std::collections::{BTreeMap, BTreeSet};

use ronde_core::{Epoch, PlanIdentity, Step};
use ronde_store::ObjectName;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::envelope::{self, Kind};
use crate::vector::check_all;
use crate::{CheckpointError, Fence, Vector, names};

const KIND: Kind = Kind {
    format: ("ronde.checkpoint", 1),
    key: "manifest",
};

/// No manifest is longer; a bigger file is damaged.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 1 << 30;

/// A blake3 digest; 64 hexadecimal digits in files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of bytes.
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
    /// Its name in the store.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// blake3 of all of it.
    pub blake3: Digest,
}

/// A file of slices, as one rank wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceFile {
    /// Its name in the store.
    pub name: String,
    /// Who wrote it.
    pub rank: u32,
    /// Its length.
    pub bytes: u64,
    /// Its slices, one after the other, without gaps.
    pub slices: Vec<SliceRecord>,
}

/// A run of a vector's elements in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceRecord {
    /// Which vector.
    pub vector: String,
    /// Its first element in the vector.
    pub start: u64,
    /// Count of elements.
    pub elements: u64,
    /// Its first byte in the file.
    pub offset: u64,
    /// Its parts, one after the other, without gaps.
    pub parts: Vec<PartRecord>,
}

/// A run of elements that is verified at once: of one tensor, with the padding behind it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PartRecord {
    /// Which tensor; none before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor: Option<String>,
    /// Count of elements.
    pub elements: u64,
    /// blake3 of their bytes.
    pub blake3: Digest,
}

/// All that is known of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Name of the training run.
    pub run: String,
    /// Committed steps: the number of the next one.
    pub step: Step,
    /// The epoch in which the next step lies.
    pub epoch: Epoch,
    /// Under whose authority it was published.
    pub fence: Fence,
    /// How many ranks saved it.
    pub world_size: u32,
    /// When, in milliseconds since 1970.
    pub saved_unix_ms: u64,
    /// The parts of the plan by name.
    pub plan: BTreeMap<String, String>,
    /// The state's vectors.
    pub vectors: Vec<Vector>,
    /// What only the training loop understands.
    pub cursor: FileRecord,
    /// One file of slices for each rank.
    pub files: Vec<SliceFile>,
}

impl Manifest {
    /// The plan that the checkpoint belongs to.
    #[must_use]
    pub fn identity(&self) -> PlanIdentity {
        let mut identity = PlanIdentity::default();
        for (name, value) in &self.plan {
            identity.set(name, value);
        }
        identity
    }

    /// Bytes of all slices.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The vector of a name.
    ///
    /// # Errors
    /// [`CheckpointError::Invalid`], naming those that there are.
    pub fn vector(&self, name: &str) -> Result<&Vector, CheckpointError> {
        self.vectors
            .iter()
            .find(|vector| vector.name == name)
            .ok_or_else(|| {
                let names: Vec<&str> = self.vectors.iter().map(|v| v.name.as_str()).collect();
                CheckpointError::invalid(
                    format!("vector {name}"),
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

    /// Reads the manifest of `step`.
    pub(crate) fn decode(step: Step, bytes: &[u8]) -> Result<Self, String> {
        let manifest: Self = envelope::decode(KIND, bytes)?;
        if manifest.step != step {
            return Err(format!("it is that of step {}", manifest.step));
        }
        manifest.check()?;
        Ok(manifest)
    }

    /// Every file that the checkpoint needs, with its length.
    pub(crate) fn needed(&self) -> impl Iterator<Item = (&str, u64)> {
        let slices = self
            .files
            .iter()
            .map(|file| (file.name.as_str(), file.bytes));
        std::iter::once((self.cursor.name.as_str(), self.cursor.bytes)).chain(slices)
    }

    /// What is wrong with it, if anything: a gap, an overlap, a file of another step.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_all(&self.vectors)?;
        let mut names_seen = BTreeSet::new();
        for (name, _) in self.needed() {
            let object = ObjectName::new(name).map_err(|error| error.to_string())?;
            if names::step_of(&object) != Some(self.step) || !names_seen.insert(name) {
                return Err(format!("file {name} is not one of step {}", self.step));
            }
        }
        let ranks = self.files.iter().map(|file| file.rank);
        if !ranks.eq(0..self.world_size) {
            return Err(format!(
                "there is not one file for each of {} ranks, in their order",
                self.world_size
            ));
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
                        return Err(format!(
                            "a slice of {} in {} does not fit",
                            slice.vector, file.name
                        ));
                    }
                }
                let ranges = covered.entry(&slice.vector).or_default();
                ranges.push((slice.start, slice.elements));
            }
            if offset != file.bytes {
                return Err(format!(
                    "the slices of {} have {offset} of {} bytes",
                    file.name, file.bytes
                ));
            }
        }
        self.vectors.iter().try_for_each(|vector| {
            let ranges = covered.remove(vector.name.as_str()).unwrap_or_default();
            check_cover(vector, ranges)
        })
    }
}

/// Bytes of a slice, when it lies in its vector and its parts fill it.
fn check_slice(vector: &Vector, slice: &SliceRecord) -> Option<u64> {
    let end = slice.start.checked_add(slice.elements)?;
    let parts = slice.parts.iter().try_fold(0_u64, |sum, part| {
        (part.elements > 0).then_some(())?;
        sum.checked_add(part.elements)
    })?;
    (end <= vector.elements && parts == slice.elements)
        .then_some(slice.elements * vector.dtype.size() as u64)
}

/// Whether slices cover a vector once.
fn check_cover(vector: &Vector, mut ranges: Vec<(u64, u64)>) -> Result<(), String> {
    ranges.sort_unstable();
    let mut at = 0;
    for (start, elements) in ranges {
        if elements == 0 {
            continue;
        }
        if start != at {
            let what = if start > at { "nobody" } else { "two slices" };
            return Err(format!(
                "vector {}: {what} saved element {}",
                vector.name,
                start.min(at)
            ));
        }
        at += elements;
    }
    if at != vector.elements {
        return Err(format!("vector {}: nobody saved element {at}", vector.name));
    }
    Ok(())
}
