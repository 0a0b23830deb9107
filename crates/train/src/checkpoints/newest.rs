//! Finds the newest published checkpoint of a store before training starts.

use std::path::PathBuf;
use std::sync::Arc;

use ronde_checkpoint::{Checkpoint, CheckpointError, CheckpointStatus, SkippedCheckpoint, list};
use ronde_core::{PlanIdentity, Step};
use ronde_store::Store;

use super::cursor::TrainingCursor;
use crate::error::TrainError;

/// The number of reading threads.
const THREADS: usize = 4;

/// The newest published checkpoint whose files all exist.
#[derive(Debug, Clone)]
pub struct NewestCheckpoint {
    /// The number of steps it contains, which is also the number of the next step.
    pub step: Step,
    /// The name of the run that saved it.
    pub name: String,
    /// The plan of the run that saved it.
    pub identity: PlanIdentity,
    /// The names of the vectors of its state.
    pub vectors: Vec<String>,
    /// The resolved run file; empty if a user's own program saved it.
    pub run: String,
    /// The folder that relative paths of the run file are resolved against.
    pub base: PathBuf,
}

/// Returns the newest checkpoint and skips those with a damaged cursor. Reads manifests and one cursor, but no
/// slices.
///
/// # Errors
/// The store cannot be read.
pub fn newest(store: &Arc<dyn Store>) -> Result<Option<NewestCheckpoint>, TrainError> {
    let (found, _) = find(store, |_| Ok(()))?;
    Ok(found)
}

/// Returns the newest checkpoint whose bytes all match their digests, and the newer ones that do not, the newest first.
/// Reads whole checkpoints.
///
/// # Errors
/// The store cannot be read.
pub fn newest_intact(
    store: &Arc<dyn Store>,
) -> Result<(Option<NewestCheckpoint>, Vec<SkippedCheckpoint>), TrainError> {
    find(store, |checkpoint| {
        let damage = checkpoint.verify(THREADS)?;
        damage.into_iter().next().map_or(Ok(()), Err)
    })
}

/// Returns the newest checkpoint that passes a check, and the newer ones that are damaged.
fn find(
    store: &Arc<dyn Store>,
    check: impl Fn(&Checkpoint) -> Result<(), CheckpointError>,
) -> Result<(Option<NewestCheckpoint>, Vec<SkippedCheckpoint>), TrainError> {
    let mut skipped = Vec::new();
    for listed in list(&**store)? {
        let step = listed.step;
        let mut skip = |reason: String| skipped.push(SkippedCheckpoint { step, reason });
        let manifest = match (listed.status, listed.manifest) {
            (CheckpointStatus::Complete, Some(manifest)) => manifest,
            (
                CheckpointStatus::Damaged(reason)
                | CheckpointStatus::CutOff(reason)
                | CheckpointStatus::OtherVersion(reason)
                | CheckpointStatus::Locked(reason),
                _,
            ) => {
                skip(reason);
                continue;
            }
            _ => continue,
        };
        let opened = Checkpoint::open(store.clone(), step);
        let cursor = opened.and_then(|checkpoint| {
            check(&checkpoint)?;
            checkpoint.cursor()
        });
        let cursor = match cursor {
            Err(error) if error.is_damage() => {
                skip(error.to_string());
                continue;
            }
            other => TrainingCursor::decode(&other?),
        };
        match cursor {
            Ok(cursor) => {
                let newest = NewestCheckpoint {
                    step,
                    name: manifest.run.clone(),
                    identity: manifest.identity(),
                    vectors: manifest.vectors.iter().map(|v| v.name.clone()).collect(),
                    run: cursor.header.run,
                    base: cursor.header.base,
                };
                return Ok((Some(newest), skipped));
            }
            Err(problem) => skip(problem),
        }
    }
    Ok((None, skipped))
}
