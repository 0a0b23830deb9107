//! [`verify_all`]: compares everything in a store with its digests.

use std::collections::BTreeMap;
use std::sync::Arc;

use ronde_core::Step;
use ronde_store::{Store, StoreError};

use crate::catalog::{Catalog, read_manifest};
use crate::catalog::{CheckpointEntry, CheckpointStatus};
use crate::checkpoint::Checkpoint;
use crate::error::CheckpointError;

/// The result of [`verify_all`].
#[derive(Debug)]
pub struct VerifyReport {
    /// The damage of `lineage.json`, if any.
    pub lineage_damage: Option<String>,
    /// All checkpoints and unfinished saves, the newest first.
    pub checkpoints: Vec<VerifiedCheckpoint>,
}

/// A checkpoint and the damage found in it.
#[derive(Debug)]
pub struct VerifiedCheckpoint {
    /// The entry of the store's listing.
    pub entry: CheckpointEntry,
    /// All damage; empty if the checkpoint is intact or was not read.
    pub damage: Vec<String>,
}

impl VerifyReport {
    /// Returns whether anything is damaged.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.lineage_damage.is_some() || self.checkpoints.iter().any(|c| !c.damage.is_empty())
    }

    /// Returns whether everything was verified and nothing is damaged. A checkpoint that is encrypted with another key, or has
    /// another format version, is not verified; damage of its header looks the same.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let is_unread = |c: &VerifiedCheckpoint| {
            matches!(
                c.entry.status,
                CheckpointStatus::Locked(_) | CheckpointStatus::OtherVersion(_)
            )
        };
        !self.is_damaged() && !self.checkpoints.iter().any(is_unread)
    }

    /// Returns the checkpoints whose bytes were all read and match its digest.
    pub fn intact(&self) -> impl Iterator<Item = &CheckpointEntry> {
        let intact = self.checkpoints.iter().filter(|c| c.damage.is_empty());
        intact.map(|c| &c.entry).filter(|entry| {
            matches!(
                entry.status,
                CheckpointStatus::Complete | CheckpointStatus::CutOff(_)
            )
        })
    }
}

/// The largest number of listings of a store whose checkpoints are removed or replaced meanwhile.
const LISTINGS_MAX: usize = 8;

/// Reads all checkpoints of a store with `threads` threads, also those that a later claim cuts off, and compares every byte
/// with its digest. A checkpoint that is removed meanwhile, as the retention of a running job does, is left out, and the
/// store is listed again.
///
/// # Errors
/// Errors other than damage, for example an unreachable store.
pub fn verify_all(store: &Arc<dyn Store>, threads: usize) -> Result<VerifyReport, CheckpointError> {
    let mut verified: BTreeMap<Step, VerifiedCheckpoint> = BTreeMap::new();
    let mut lineage_damage = None;
    for _ in 0..LISTINGS_MAX {
        let catalog = Catalog::read(&**store)?;
        let mut has_changed = false;
        for &step in catalog.steps.keys().rev() {
            if verified.contains_key(&step) {
                continue;
            }
            match verify(store, catalog.look(&**store, step)?, threads)? {
                Some(checkpoint) => drop(verified.insert(step, checkpoint)),
                None => has_changed = true,
            }
        }
        lineage_damage = catalog.lineage_damage;
        if !has_changed {
            break;
        }
    }
    Ok(VerifyReport {
        lineage_damage,
        checkpoints: verified.into_values().rev().collect(),
    })
}

/// Reads a checkpoint; `None` if it differs because it was removed or replaced after it was listed.
fn verify(
    store: &Arc<dyn Store>,
    entry: CheckpointEntry,
    threads: usize,
) -> Result<Option<VerifiedCheckpoint>, CheckpointError> {
    let damage = match (&entry.status, &entry.manifest) {
        (
            CheckpointStatus::Unpublished
            | CheckpointStatus::Locked(_)
            | CheckpointStatus::OtherVersion(_),
            _,
        ) => Vec::new(),
        (_, Some(manifest)) => {
            match Checkpoint::of(Arc::clone(store), manifest.clone()).verify(threads) {
                Ok(damage) => damage.iter().map(ToString::to_string).collect(),
                // Damage of a file that makes it look encrypted with another key.
                Err(error) if error.is_damage() => vec![error.to_string()],
                Err(error) => return Err(error),
            }
        }
        (CheckpointStatus::Damaged(problem), None) => vec![problem.clone()],
        (CheckpointStatus::Complete | CheckpointStatus::CutOff(_), None) => Vec::new(),
    };
    if !damage.is_empty() && has_changed(&**store, &entry)? {
        return Ok(None);
    }
    Ok(Some(VerifiedCheckpoint { entry, damage }))
}

/// Returns whether a checkpoint was removed or replaced after it was listed. Manifests are removed before other files.
fn has_changed(store: &dyn Store, entry: &CheckpointEntry) -> Result<bool, CheckpointError> {
    match read_manifest(store, entry.step) {
        Ok(manifest) => Ok(entry.manifest.as_ref() != Some(&manifest)),
        Err(CheckpointError::Store(StoreError::NotFound { .. })) => Ok(true),
        Err(error) if error.is_damage() => Ok(false),
        Err(error) => Err(error),
    }
}
