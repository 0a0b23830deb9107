//! [`retain`]: removes old checkpoints, but never the last good one.

use std::collections::BTreeSet;
use std::sync::Arc;

use ronde_core::Step;
use ronde_store::{ObjectName, Store};

use crate::catalog::Catalog;
use crate::catalog::CheckpointStatus;
use crate::checkpoint::Checkpoint;
use crate::error::{CheckpointError, SkippedCheckpoint};
use crate::manifest::Manifest;
use crate::names;

/// The number of checkpoints to keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Number of recent checkpoints to keep; at least one is always kept.
    pub keep_last: u32,
    /// Additionally keeps the checkpoints whose step is a multiple of this; 0 for none.
    pub keep_every: u64,
    /// The check of the kept checkpoints before others are deleted.
    pub proof: Proof,
}

/// The check that a kept checkpoint must pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// All files exist with the expected lengths. Reads only manifests.
    Lengths,
    /// The newest good checkpoint is read and verified in each call.
    Hashes {
        /// The number of reading threads.
        threads: usize,
    },
}

/// The result of [`retain`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RetentionReport {
    /// The removed checkpoints.
    pub steps: Vec<Step>,
    /// The number of deleted objects, including leftovers of failed saves.
    pub objects: u64,
    /// The bytes of the deleted objects.
    pub bytes: u64,
    /// Kept checkpoints that were found to be damaged.
    pub damaged: Vec<SkippedCheckpoint>,
}

/// Deletes old checkpoints, manifests before files, then the leftovers of failed saves that are older than the newest good
/// checkpoint. Call it on the rank that publishes, after publishing.
///
/// # Errors
/// [`CheckpointError::Store`]; objects deleted before the error stay deleted, and the next call deletes the rest.
pub fn retain(
    store: &Arc<dyn Store>,
    retention: &Retention,
) -> Result<RetentionReport, CheckpointError> {
    let catalog = Catalog::read(&**store)?;
    let mut removed = RetentionReport::default();
    let mut complete = Vec::new();
    let mut unreadable = BTreeSet::new();
    for &step in catalog.steps.keys().rev() {
        let listed = catalog.look(&**store, step)?;
        match (listed.status, listed.manifest) {
            (CheckpointStatus::Complete, Some(manifest)) => complete.push(manifest),
            (CheckpointStatus::Locked(_) | CheckpointStatus::OtherVersion(_), _) => {
                unreadable.insert(step);
            }
            _ => {}
        }
    }
    let Some((newest_good, mut kept)) = keep(store, retention, &complete, &mut removed)? else {
        return Ok(removed);
    };
    // Steps newer than the newest good checkpoint stay: they may be saves that are still running.
    // Checkpoints that were encrypted with another key or have another format version cannot be checked, so they stay.
    kept.extend(unreadable);
    kept.extend(catalog.steps.keys().filter(|step| **step > newest_good));
    for (&step, files) in &catalog.steps {
        let manifest = names::manifest(step)?;
        let mut needed = BTreeSet::new();
        if kept.contains(&step) {
            if step >= newest_good {
                continue;
            }
            let Some(manifest) = complete.iter().find(|manifest| manifest.step == step) else {
                continue;
            };
            needed.extend(manifest.needed().map(|(name, _)| name.to_owned()));
            needed.insert(names::manifest(step)?.to_string());
        } else if files.contains_key(&manifest) {
            store.delete(&manifest)?;
            removed.steps.push(step);
        }
        for (name, bytes) in files {
            if !needed.contains(name.as_str()) {
                delete(&**store, name, *bytes, &mut removed)?;
            }
        }
    }
    removed.objects += store.sweep()?;
    Ok(removed)
}

fn delete(
    store: &dyn Store,
    name: &ObjectName,
    bytes: u64,
    removed: &mut RetentionReport,
) -> Result<(), CheckpointError> {
    store.delete(name)?;
    removed.objects += 1;
    removed.bytes = removed.bytes.saturating_add(bytes);
    Ok(())
}

/// Returns the newest good step and all steps to keep; `None` when no checkpoint is good.
fn keep(
    store: &Arc<dyn Store>,
    retention: &Retention,
    complete: &[Manifest],
    removed: &mut RetentionReport,
) -> Result<Option<(Step, BTreeSet<Step>)>, CheckpointError> {
    let last = retention.keep_last.max(1) as usize;
    let every = retention.keep_every;
    let mut kept: BTreeSet<Step> = complete
        .iter()
        .enumerate()
        .filter(|(index, manifest)| {
            *index < last || every > 0 && manifest.step.0.is_multiple_of(every)
        })
        .map(|(_, manifest)| manifest.step)
        .collect();
    for manifest in complete {
        let Some(reason) = damage(store, retention.proof, manifest)? else {
            kept.insert(manifest.step);
            return Ok(Some((manifest.step, kept)));
        };
        removed.damaged.push(SkippedCheckpoint {
            step: manifest.step,
            reason,
        });
    }
    Ok(None)
}

fn damage(
    store: &Arc<dyn Store>,
    proof: Proof,
    manifest: &Manifest,
) -> Result<Option<String>, CheckpointError> {
    let Proof::Hashes { threads } = proof else {
        return Ok(None);
    };
    let checkpoint = Checkpoint::of(Arc::clone(store), manifest.clone());
    let damage = checkpoint.verify(threads)?;
    Ok(damage.first().map(ToString::to_string))
}
