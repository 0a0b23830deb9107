//! Finds the checkpoint to resume from: the newest one that is neither damaged nor cut off.

use std::sync::Arc;

use ronde_core::PlanIdentity;
use ronde_store::Store;

use crate::catalog::Catalog;
use crate::catalog::{CheckpointEntry, CheckpointStatus};
use crate::checkpoint::Checkpoint;
use crate::error::{CheckpointError, SkippedCheckpoint};

/// The checkpoint to resume from.
#[derive(Debug, Clone)]
pub struct LastGood<T> {
    /// The checkpoint.
    pub checkpoint: Checkpoint,
    /// The result of the caller's check.
    pub checked: T,
    /// Newer checkpoints that cannot be used, the newest first. Callers should report them to the user.
    pub skipped: Vec<SkippedCheckpoint>,
    /// The damage of `lineage.json`, if any; no checkpoint was then treated as cut off. Callers should report it.
    pub warning: Option<String>,
}

/// Returns the newest checkpoint that is not cut off and whose files have the expected lengths. Verifies nothing else.
///
/// # Errors
/// As [`last_good`].
pub fn latest(
    store: &Arc<dyn Store>,
    plan: &PlanIdentity,
) -> Result<Option<LastGood<()>>, CheckpointError> {
    last_good_with(store, plan, |_| Ok(()))
}

/// Returns the newest checkpoint that is not cut off and whose bytes all match their digests, or `None` when the store
/// has no checkpoint. Reads the whole checkpoint.
///
/// # Errors
/// [`CheckpointError::NoneGood`] when all checkpoints are unusable; [`CheckpointError::OtherPlan`] when the newest one that
/// is not cut off belongs to another plan; [`CheckpointError::Store`].
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

/// As [`last_good`], but uses `check` to verify a checkpoint, for example by loading it. If `check` reports damage, the
/// next older checkpoint is tried.
///
/// # Errors
/// As [`last_good`], and errors of `check` other than damage.
pub fn last_good_with<T>(
    store: &Arc<dyn Store>,
    plan: &PlanIdentity,
    mut check: impl FnMut(&Checkpoint) -> Result<T, CheckpointError>,
) -> Result<Option<LastGood<T>>, CheckpointError> {
    let catalog = Catalog::read(&**store)?;
    let mut skipped = Vec::new();
    for &step in catalog.steps.keys().rev() {
        let reason = match catalog.look(&**store, step)? {
            CheckpointEntry {
                status: CheckpointStatus::Complete,
                manifest: Some(manifest),
                ..
            } => {
                let checkpoint = Checkpoint::of(Arc::clone(store), manifest);
                if let Some(reason) = unused_of_parent(&checkpoint, plan)? {
                    skipped.push(SkippedCheckpoint { step, reason });
                    continue;
                }
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
            CheckpointEntry {
                status:
                    CheckpointStatus::Damaged(reason)
                    | CheckpointStatus::CutOff(reason)
                    | CheckpointStatus::OtherVersion(reason)
                    | CheckpointStatus::Locked(reason),
                ..
            } => reason,
            // An unfinished save is not a checkpoint, so it is not reported as skipped.
            _ => continue,
        };
        skipped.push(SkippedCheckpoint { step, reason });
    }
    if skipped.is_empty() {
        return Ok(None);
    }
    Err(CheckpointError::NoneGood { skipped })
}

/// Returns why a checkpoint of the parent of a plan is not used, if the plan continues from an earlier step of its parent:
/// its damage, or that earlier step. Reads the whole checkpoint in this case only.
fn unused_of_parent(
    checkpoint: &Checkpoint,
    plan: &PlanIdentity,
) -> Result<Option<String>, CheckpointError> {
    let earlier = checkpoint.manifest().identity();
    let Some(left) = plan.left_before(&earlier, checkpoint.step()) else {
        return Ok(None);
    };
    let damage = checkpoint.verify(1)?.into_iter().next();
    Ok(Some(damage.map_or_else(
        || format!("the run continues from step {left}"),
        |damage| damage.to_string(),
    )))
}
