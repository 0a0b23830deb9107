//! Loads the newest valid checkpoint into a replica.

use std::sync::Arc;

use ronde_checkpoint::{Checkpoint, CheckpointError, ReadRequest, last_good_with};
use ronde_core::{PlanIdentity, Step, weight_hash};
use ronde_store::Store;

use super::ReplicaLayout;
use super::cursor::TrainingCursor;
use crate::clock::LapTimer;

/// The number of reading threads.
const THREADS: usize = 4;

/// A checkpoint that was loaded.
#[derive(Debug)]
pub(crate) struct LoadedCheckpoint {
    pub(crate) step: Step,
    /// The number of ranks that saved it.
    pub(crate) world_size: u32,
    pub(crate) bytes: u64,
    pub(crate) session: Vec<u8>,
    /// Newer checkpoints that are unusable, with the reason, and a warning about damaged claims.
    pub(crate) skipped: Vec<String>,
    pub(crate) duration_s: f64,
}

/// Loads the newest published and valid checkpoint into `replica` and verifies every byte. Returns `None`
/// without a change if there is no checkpoint at all. After an error the contents of `replica` are unspecified.
///
/// # Errors
/// There are checkpoints, but none is valid and of this plan; or the store cannot be read.
pub(crate) fn load(
    store: &Arc<dyn Store>,
    identity: &PlanIdentity,
    shape: &ReplicaLayout,
    replica: &mut [&mut [f32]],
) -> Result<Option<LoadedCheckpoint>, CheckpointError> {
    let watch = LapTimer::start();
    let found = last_good_with(store, identity, |checkpoint| {
        fill(checkpoint, shape, replica)
    })?;
    Ok(found.map(|found| LoadedCheckpoint {
        step: found.checkpoint.step(),
        world_size: found.checkpoint.manifest().world_size,
        bytes: found.checkpoint.manifest().bytes(),
        session: found.checked,
        skipped: found
            .skipped
            .iter()
            .map(|skipped| format!("step {}: {}", skipped.step, skipped.reason))
            .chain(found.warning)
            .collect(),
        duration_s: watch.total_s(),
    }))
}

/// Reads one checkpoint and returns the session's cursor.
fn fill(
    checkpoint: &Checkpoint,
    shape: &ReplicaLayout,
    replica: &mut [&mut [f32]],
) -> Result<Vec<u8>, CheckpointError> {
    let what = || format!("checkpoint of step {}", checkpoint.step());
    let invalid = |problem: String| CheckpointError::Invalid {
        what: what(),
        problem,
    };
    let cursor = TrainingCursor::decode(&checkpoint.cursor()?).map_err(invalid)?;
    if checkpoint.manifest().vectors != *shape.vectors {
        return Err(invalid(
            "its tensors differ from those of this run".to_owned(),
        ));
    }
    let mut requests: Vec<ReadRequest<'_>> = shape
        .vectors
        .iter()
        .zip(replica.iter_mut())
        .map(|(vector, values)| ReadRequest {
            vector: &vector.name,
            start: 0,
            into: bytemuck::cast_slice_mut(values),
        })
        .collect();
    checkpoint.read_into(&mut requests, THREADS)?;
    let weights = replica
        .first()
        .map_or(0, |weights| weight_hash::hash(weights));
    if format!("{weights:016x}") != cursor.header.weights {
        return Err(invalid(format!(
            "the weights have the hash {weights:016x}, expected {}",
            cursor.header.weights
        )));
    }
    Ok(cursor.session)
}
