//! Lists the checkpoints of a store, from the newest to the oldest, with the status of each.

use std::collections::BTreeMap;

use ronde_core::Step;
use ronde_store::{ObjectName, Store, StoreError, StoreExt};

use crate::envelope::DecodeProblem;
use crate::error::CheckpointError;
use crate::lineage::Lineage;
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::manifest::Manifest;
use crate::manifest::ManifestError;
use crate::names;

/// Whether training may resume from a checkpoint. Judged by file lengths and claims; digests are not compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CheckpointStatus {
    /// Usable: all files exist with the expected lengths.
    Complete,
    /// Without a manifest: a save that failed or is still running.
    Unpublished,
    /// The manifest or a file is missing or differs from the saved one. Holds the cause.
    Damaged(String),
    /// Published under a fence that had been superseded. Holds the cause.
    CutOff(String),
    /// Written by a version of ronde with another format. Holds the found and the supported version.
    OtherVersion(String),
    /// Encrypted with another key. Holds the store's message.
    Locked(String),
}

/// One checkpoint in a store's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// The number of committed steps.
    pub step: Step,
    /// Whether the checkpoint can be used.
    pub status: CheckpointStatus,
    /// The manifest, if it can be read.
    pub manifest: Option<Manifest>,
    /// The bytes of all files in its folder, including leftovers of failed saves.
    pub bytes: u64,
}

/// Lists all checkpoints of a store, the newest first. Reads manifests, but not slices.
///
/// # Errors
/// [`CheckpointError::Store`]. Damage is not an error here; it is part of each entry's status.
pub fn list(store: &dyn Store) -> Result<Vec<CheckpointEntry>, CheckpointError> {
    let catalog = Catalog::read(store)?;
    catalog
        .steps
        .keys()
        .rev()
        .map(|&step| catalog.look(store, step))
        .collect()
}

/// One listing of a store, with the claims read after it.
pub(crate) struct Catalog {
    pub(crate) lineage: Lineage,
    /// The damage of `lineage.json`, if any. No checkpoint is then treated as cut off.
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
        // Read after the listing, so that a claim that cuts off a listed checkpoint is not missed.
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

    /// Returns the entry of a step.
    pub(crate) fn look(
        &self,
        store: &dyn Store,
        step: Step,
    ) -> Result<CheckpointEntry, CheckpointError> {
        let none = BTreeMap::new();
        let files = self.steps.get(&step).unwrap_or(&none);
        let name = names::manifest(step)?;
        let (status, manifest) = if files.contains_key(&name) {
            match read_manifest(store, step) {
                Ok(manifest) => (self.status(files, &manifest), Some(manifest)),
                // The checkpoint was removed after the listing.
                Err(CheckpointError::Store(StoreError::NotFound { .. })) => {
                    (CheckpointStatus::Unpublished, None)
                }
                Err(error @ CheckpointError::Store(StoreError::OtherKey { .. })) => {
                    (CheckpointStatus::Locked(error.to_string()), None)
                }
                Err(error @ CheckpointError::OtherVersion { .. }) => {
                    (CheckpointStatus::OtherVersion(error.to_string()), None)
                }
                Err(error) if error.is_damage() => {
                    (CheckpointStatus::Damaged(error.to_string()), None)
                }
                Err(error) => return Err(error),
            }
        } else {
            (CheckpointStatus::Unpublished, None)
        };
        Ok(CheckpointEntry {
            step,
            status,
            manifest,
            bytes: files
                .values()
                .fold(0, |sum, bytes| sum.saturating_add(*bytes)),
        })
    }

    fn status(&self, files: &BTreeMap<ObjectName, u64>, manifest: &Manifest) -> CheckpointStatus {
        if let Some(by) = self.lineage.cut_off_by(manifest.fence, manifest.step) {
            return CheckpointStatus::CutOff(format!(
                "it was published under {}, but {by} had resumed from an earlier step",
                manifest.fence
            ));
        }
        missing(files, manifest).map_or(CheckpointStatus::Complete, |error| {
            CheckpointStatus::Damaged(error.to_string())
        })
    }
}

/// Returns the damage of the first file that is missing or has an unexpected length.
pub(crate) fn missing(
    files: &BTreeMap<ObjectName, u64>,
    manifest: &Manifest,
) -> Option<CheckpointError> {
    manifest.needed().find_map(|(name, bytes)| {
        let found = ObjectName::new(name).ok().and_then(|name| files.get(&name));
        match found {
            None => Some(CheckpointError::damaged(name, "the file is missing")),
            Some(found) if *found != bytes => Some(CheckpointError::damaged(
                name,
                format!("expected {bytes} bytes, found {found}"),
            )),
            Some(_) => None,
        }
    })
}

/// Reads and checks a manifest.
pub(crate) fn read_manifest(store: &dyn Store, step: Step) -> Result<Manifest, CheckpointError> {
    let name = names::manifest(step)?;
    let bytes = store.get(&name, MANIFEST_BYTES_MAX)?;
    Manifest::decode(step, &bytes).map_err(|problem| match problem {
        ManifestError::Envelope(DecodeProblem::OtherVersion { found, supported }) => {
            CheckpointError::OtherVersion {
                file: name.to_string(),
                found,
                supported,
            }
        }
        damage => CheckpointError::damaged(name, damage),
    })
}
