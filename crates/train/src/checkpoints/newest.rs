//! Finds the newest published checkpoint of a store before training starts.

use std::path::PathBuf;
use std::sync::Arc;

use ronde_checkpoint::{Checkpoint, CheckpointStatus, list};
use ronde_core::{PlanIdentity, Step};
use ronde_store::Store;

use super::cursor::TrainingCursor;
use crate::TrainError;

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
    for listed in list(&**store)? {
        let Some(manifest) = listed
            .manifest
            .filter(|_| listed.status == CheckpointStatus::Complete)
        else {
            continue;
        };
        let cursor = match Checkpoint::open(store.clone(), listed.step).and_then(|c| c.cursor()) {
            Err(error) if error.is_damage() => continue,
            other => other?,
        };
        if let Ok(cursor) = TrainingCursor::decode(&cursor) {
            return Ok(Some(NewestCheckpoint {
                step: listed.step,
                name: manifest.run.clone(),
                identity: manifest.identity(),
                vectors: manifest.vectors.iter().map(|v| v.name.clone()).collect(),
                run: cursor.header.run,
                base: cursor.header.base,
            }));
        }
    }
    Ok(None)
}
