//! [`retain`]: old checkpoints go, but never the last good one.

use std::collections::BTreeSet;
use std::sync::Arc;

use ronde_core::Step;
use ronde_store::{ObjectName, Store};

use crate::catalog::Catalog;
use crate::{Checkpoint, CheckpointError, Manifest, Skipped, Standing, names};

/// How many checkpoints are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// The newest so many; one at least is always kept.
    pub keep_last: u32,
    /// Beside them, those whose step is a multiple of this; 0 for none.
    pub keep_every: u64,
    /// What is made sure of before anything is deleted.
    pub proof: Proof,
}

/// How a kept checkpoint is known to be good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// All files are there with their lengths. Reads manifests only.
    Lengths,
    /// One kept checkpoint is read whole and verified, by so many threads, each time.
    Hashes {
        /// Reading threads.
        threads: usize,
    },
}

/// What retention did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Removed {
    /// Checkpoints that are gone.
    pub steps: Vec<Step>,
    /// Objects deleted, leftovers of killed saves included.
    pub objects: u64,
    /// Bytes that they had.
    pub bytes: u64,
    /// Kept ones that turned out to be damaged.
    pub damaged: Vec<Skipped>,
}

/// Deletes what need not be kept: manifests first, then files; then leftovers of saves that never ended and are older than
/// the newest good checkpoint. Call it where checkpoints are published, after publishing.
///
/// # Errors
/// [`CheckpointError::Store`]; what was deleted until then is gone, and the rest is swept the next time.
pub fn retain(store: &Arc<dyn Store>, retention: &Retention) -> Result<Removed, CheckpointError> {
    let catalog = Catalog::read(&**store)?;
    let mut removed = Removed::default();
    let mut complete = Vec::new();
    let mut locked = BTreeSet::new();
    for &step in catalog.steps.keys().rev() {
        let listed = catalog.look(&**store, step)?;
        match (listed.standing, listed.manifest) {
            (Standing::Complete, Some(manifest)) => complete.push(manifest),
            (Standing::Locked(_), _) => {
                locked.insert(step);
            }
            _ => {}
        }
    }
    let Some((newest_good, mut kept)) = keep(store, retention, &complete, &mut removed)? else {
        return Ok(removed);
    };
    // What is newer than the newest good one is not judged: it may be a save under way.
    // What another key opens is not ours to judge either.
    kept.extend(locked);
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
    removed: &mut Removed,
) -> Result<(), CheckpointError> {
    store.delete(name)?;
    removed.objects += 1;
    removed.bytes = removed.bytes.saturating_add(bytes);
    Ok(())
}

/// The newest good step and all that are kept; `None` when none is good.
fn keep(
    store: &Arc<dyn Store>,
    retention: &Retention,
    complete: &[Manifest],
    removed: &mut Removed,
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
        removed.damaged.push(Skipped {
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
