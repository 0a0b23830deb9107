//! Finding the checkpoint to resume from: the newest that counts and is good, and what was passed over.

use std::sync::Arc;

use ronde_core::PlanIdentity;
use ronde_store::Store;

use crate::catalog::Catalog;
use crate::{Checkpoint, CheckpointError, Listed, Skipped, Standing};

/// The checkpoint to resume from.
#[derive(Debug, Clone)]
pub struct LastGood<T> {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// What the caller's check gave.
    pub checked: T,
    /// Newer ones that cannot be used, the newest first. To be told to the user.
    pub skipped: Vec<Skipped>,
    /// A damage of the claims, because of which everything counts. To be told, too.
    pub warning: Option<String>,
}

/// The newest checkpoint that counts and whose files are there with their lengths; nothing else is verified.
///
/// # Errors
/// As [`last_good`].
pub fn latest(
    store: &Arc<dyn Store>,
    plan: &PlanIdentity,
) -> Result<Option<LastGood<()>>, CheckpointError> {
    last_good_with(store, plan, |_| Ok(()))
}

/// The newest checkpoint that counts and is good in every byte; `None` when there is none at all. Reads it whole.
///
/// # Errors
/// [`CheckpointError::NoneGood`] when there are some, but none is good; [`CheckpointError::OtherPlan`] when the newest that
/// counts belongs to another plan; [`CheckpointError::Store`].
pub fn last_good(
    store: &Arc<dyn Store>,
    plan: &PlanIdentity,
    threads: usize,
) -> Result<Option<LastGood<()>>, CheckpointError> {
    last_good_with(store, plan, |checkpoint| {
        checkpoint
            .verify(threads)?
            .into_iter()
            .next()
            .map_or(Ok(()), Err)
    })
}

/// As [`last_good`], with another way to find out whether a checkpoint is good: loading it at once, for example.
/// When `check` says damage, the next older one is tried.
///
/// # Errors
/// As [`last_good`], and what `check` says that is no damage.
pub fn last_good_with<T>(
    store: &Arc<dyn Store>,
    plan: &PlanIdentity,
    mut check: impl FnMut(&Checkpoint) -> Result<T, CheckpointError>,
) -> Result<Option<LastGood<T>>, CheckpointError> {
    let catalog = Catalog::read(&**store)?;
    let mut skipped = Vec::new();
    for &step in catalog.steps.keys().rev() {
        let reason = match catalog.look(&**store, step)? {
            Listed {
                standing: Standing::Complete,
                manifest: Some(manifest),
                ..
            } => {
                let checkpoint = Checkpoint::of(Arc::clone(store), manifest);
                checkpoint.check_plan(plan)?;
                match check(&checkpoint) {
                    Ok(checked) => {
                        return Ok(Some(LastGood {
                            checkpoint,
                            checked,
                            skipped,
                            warning: catalog.lineage_damage,
                        }));
                    }
                    Err(error) if error.is_damage() => error.to_string(),
                    Err(error) => return Err(error),
                }
            }
            Listed {
                standing:
                    Standing::Damaged(reason) | Standing::CutOff(reason) | Standing::Locked(reason),
                ..
            } => reason,
            // A save that never ended was never a checkpoint.
            _ => continue,
        };
        skipped.push(Skipped { step, reason });
    }
    if skipped.is_empty() {
        return Ok(None);
    }
    Err(CheckpointError::NoneGood { skipped })
}
