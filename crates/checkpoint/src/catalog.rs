//! What a store holds: steps from the newest to the oldest, and which of them count.

use std::collections::BTreeMap;

use ronde_core::Step;
use ronde_store::{ObjectName, Store, StoreError, StoreExt};

use crate::manifest::MANIFEST_BYTES_MAX;
use crate::{CheckpointError, Lineage, Manifest, names};

/// Whether a checkpoint may be resumed from, as far as lengths and terms tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It counts, and all files are there with their lengths.
    Complete,
    /// It has no manifest: a save that never ended, or has not yet.
    Unpublished,
    /// Its manifest or a file is missing or not what it should be.
    Damaged(String),
    /// It was published under an authority that had been replaced.
    CutOff(String),
    /// It was encrypted with another key.
    Locked(String),
}

/// One step of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Committed steps.
    pub step: Step,
    /// Whether it can be used.
    pub standing: Standing,
    /// Its manifest, if that can be read.
    pub manifest: Option<Manifest>,
    /// Bytes of all files in its folder, leftovers included.
    pub bytes: u64,
}

/// All steps of a store, the newest first. Reads the manifests, but no slices.
///
/// # Errors
/// [`CheckpointError::Store`]. Damage is no error here; it is told of each step.
pub fn list(store: &dyn Store) -> Result<Vec<Listed>, CheckpointError> {
    let catalog = Catalog::read(store)?;
    catalog
        .steps
        .keys()
        .rev()
        .map(|&step| catalog.look(store, step))
        .collect()
}

/// One listing of a store, and the claims at that time.
pub(crate) struct Catalog {
    pub(crate) lineage: Lineage,
    /// What is wrong with the claims' file; then everything counts.
    pub(crate) lineage_damage: Option<String>,
    pub(crate) steps: BTreeMap<Step, BTreeMap<ObjectName, u64>>,
}

impl Catalog {
    pub(crate) fn read(store: &dyn Store) -> Result<Self, CheckpointError> {
        let mut steps: BTreeMap<Step, BTreeMap<ObjectName, u64>> = BTreeMap::new();
        for entry in store.list(None)? {
            if let Some(step) = names::step_of(&entry.name) {
                let files = steps.entry(step).or_default();
                files.insert(entry.name, entry.bytes);
            }
        }
        // After the listing: a claim that cuts off what is in it is seen.
        let (lineage, lineage_damage) = match Lineage::read(store) {
            Ok(lineage) => (lineage, None),
            Err(error) if error.is_damage() => (Lineage::default(), Some(error.to_string())),
            Err(error) => return Err(error),
        };
        Ok(Self {
            lineage,
            lineage_damage,
            steps,
        })
    }

    /// How a step stands.
    pub(crate) fn look(&self, store: &dyn Store, step: Step) -> Result<Listed, CheckpointError> {
        let none = BTreeMap::new();
        let files = self.steps.get(&step).unwrap_or(&none);
        let name = names::manifest(step)?;
        let (standing, manifest) = if files.contains_key(&name) {
            match read_manifest(store, step) {
                Ok(manifest) => (self.standing(files, &manifest), Some(manifest)),
                // Removed since it was listed.
                Err(CheckpointError::Store(StoreError::NotFound { .. })) => {
                    (Standing::Unpublished, None)
                }
                Err(error @ CheckpointError::Store(StoreError::OtherKey { .. })) => {
                    (Standing::Locked(error.to_string()), None)
                }
                Err(error) if error.is_damage() => (Standing::Damaged(error.to_string()), None),
                Err(error) => return Err(error),
            }
        } else {
            (Standing::Unpublished, None)
        };
        Ok(Listed {
            step,
            standing,
            manifest,
            bytes: files
                .values()
                .fold(0, |sum, bytes| sum.saturating_add(*bytes)),
        })
    }

    fn standing(&self, files: &BTreeMap<ObjectName, u64>, manifest: &Manifest) -> Standing {
        if let Some(by) = self.lineage.cut_off_by(manifest.fence, manifest.step) {
            return Standing::CutOff(format!(
                "it was published under {}, but {by} had gone on from an earlier step",
                manifest.fence
            ));
        }
        missing(files, manifest).map_or(Standing::Complete, |error| {
            Standing::Damaged(error.to_string())
        })
    }
}

/// The first file that is missing or has another length.
pub(crate) fn missing(
    files: &BTreeMap<ObjectName, u64>,
    manifest: &Manifest,
) -> Option<CheckpointError> {
    manifest.needed().find_map(|(name, bytes)| {
        let there = ObjectName::new(name).ok().and_then(|name| files.get(&name));
        match there {
            None => Some(CheckpointError::damaged(name, "it is missing")),
            Some(there) if *there != bytes => Some(CheckpointError::damaged(
                name,
                format!("it has {there} bytes instead of {bytes}"),
            )),
            Some(_) => None,
        }
    })
}

/// Reads and checks a manifest.
pub(crate) fn read_manifest(store: &dyn Store, step: Step) -> Result<Manifest, CheckpointError> {
    let name = names::manifest(step)?;
    let bytes = store.get(&name, MANIFEST_BYTES_MAX)?;
    Manifest::decode(step, &bytes).map_err(|problem| CheckpointError::damaged(name, problem))
}
