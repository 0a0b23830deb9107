//! What is in a place of checkpoints, before anybody trains: the newest that counts.

use std::path::PathBuf;
use std::sync::Arc;

use ronde_checkpoint::{Checkpoint, Standing, list};
use ronde_core::{PlanIdentity, Step};
use ronde_store::Store;

use super::cursor::Cursor;
use crate::TrainError;

/// The newest checkpoint that counts and whose files are there.
#[derive(Debug, Clone)]
pub struct Newest {
    /// Steps that are in it: the number of the next one.
    pub step: Step,
    /// The plan that it belongs to.
    pub identity: PlanIdentity,
    /// The resolved run file; empty when a program of the user's own saved it.
    pub run: String,
    /// The folder that the run file's paths start from.
    pub base: PathBuf,
}

impl Newest {
    /// What differs from a plan whose model has not been built, in words.
    #[must_use]
    pub fn difference(&self, mine: &PlanIdentity) -> Option<String> {
        let mut theirs = self.identity.clone();
        theirs.remove_under("model.tensors");
        mine.difference(&theirs)
    }
}

/// Looks for the newest checkpoint; one whose cursor is damaged is passed over. Reads manifests and a
/// cursor, no slices.
///
/// # Errors
/// The place cannot be read.
pub fn newest(store: &Arc<dyn Store>) -> Result<Option<Newest>, TrainError> {
    for listed in list(&**store)? {
        let Some(manifest) = listed
            .manifest
            .filter(|_| listed.standing == Standing::Complete)
        else {
            continue;
        };
        let cursor = match Checkpoint::open(store.clone(), listed.step).and_then(|c| c.cursor()) {
            Err(error) if error.is_damage() => continue,
            other => other?,
        };
        if let Ok(cursor) = Cursor::decode(&cursor) {
            return Ok(Some(Newest {
                step: listed.step,
                identity: manifest.identity(),
                run: cursor.about.run,
                base: cursor.about.base,
            }));
        }
    }
    Ok(None)
}
