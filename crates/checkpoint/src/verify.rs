//! [`verify_all`]: compares everything in a store with its digests.

use std::sync::Arc;

use ronde_store::Store;

use crate::catalog::Catalog;
use crate::{Checkpoint, CheckpointEntry, CheckpointError, CheckpointStatus};

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

    /// Returns whether everything was verified and nothing is damaged. A checkpoint that is encrypted with another key is
    /// not verified; damage of its header looks the same.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let is_locked =
            |c: &VerifiedCheckpoint| matches!(c.entry.status, CheckpointStatus::Locked(_));
        !self.is_damaged() && !self.checkpoints.iter().any(is_locked)
    }

    /// Returns the checkpoints of which every byte was read and matches its digest.
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

/// Reads all checkpoints of a store with `threads` threads, also those that a later claim cuts off, and compares every byte
/// with its digest.
///
/// # Errors
/// Errors other than damage, for example an unreachable store.
pub fn verify_all(store: &Arc<dyn Store>, threads: usize) -> Result<VerifyReport, CheckpointError> {
    let catalog = Catalog::read(&**store)?;
    let mut checkpoints = Vec::new();
    for &step in catalog.steps.keys().rev() {
        let entry = catalog.look(&**store, step)?;
        let damage = match (&entry.status, &entry.manifest) {
            (CheckpointStatus::Unpublished | CheckpointStatus::Locked(_), _) => Vec::new(),
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
        checkpoints.push(VerifiedCheckpoint { entry, damage });
    }
    Ok(VerifyReport {
        lineage_damage: catalog.lineage_damage,
        checkpoints,
    })
}
