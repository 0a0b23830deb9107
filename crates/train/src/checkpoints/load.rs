//! Loads the newest valid checkpoint into a replica.

use std::sync::Arc;

use ronde_checkpoint::{Checkpoint, CheckpointError, ReadRequest, last_good_with};
use ronde_clock::Stopwatch;
use ronde_core::{PlanIdentity, Step, weight_hash};
use ronde_parallel::HeldVectorMut;
use ronde_store::Store;

use super::ReplicaLayout;
use super::cursor::TrainingCursor;

/// The number of reading threads.
const THREADS: usize = 4;

/// A checkpoint that was loaded.
#[derive(Debug)]
pub(crate) struct LoadedCheckpoint {
    pub(crate) step: Step,
    /// The hash of the plan that it was saved under.
    pub(crate) plan: String,
    /// The number of ranks that saved it.
    pub(crate) world_size: u32,
    pub(crate) bytes: u64,
    pub(crate) session: Vec<u8>,
    /// The progress of the run; absent in checkpoints of earlier releases.
    pub(crate) progress: Option<String>,
    /// Newer checkpoints that are unusable, with the reason, and a warning about damaged claims.
    pub(crate) skipped: Vec<String>,
    pub(crate) duration_s: f64,
}

/// Loads the newest published and valid checkpoint before step `end` into `state` and verifies every byte that it reads.
/// Returns `None` without a change if no checkpoint exists. After an error the contents of `state` are
/// unspecified.
///
/// # Errors
/// There are checkpoints, but none is valid and of this plan; or the store cannot be read.
pub(crate) fn load(
    store: &Arc<dyn Store>,
    identity: &PlanIdentity,
    shape: &ReplicaLayout,
    state: &mut [HeldVectorMut<'_>],
    end: u64,
) -> Result<Option<LoadedCheckpoint>, CheckpointError> {
    let watch = Stopwatch::start();
    let found = last_good_with(store, identity, |checkpoint| {
        if checkpoint.step().0 >= end {
            return Err(CheckpointError::Damaged {
                file: format!("checkpoint of step {}", checkpoint.step()),
                tensor: None,
                problem: "another rank cannot read its slices".to_owned(),
            });
        }
        fill(checkpoint, shape, state)
    })?;
    Ok(found.map(|found| LoadedCheckpoint {
        step: found.checkpoint.step(),
        plan: found.checkpoint.manifest().identity().hex(),
        world_size: found.checkpoint.manifest().world_size,
        bytes: found.checkpoint.manifest().bytes(),
        session: found.checked.session,
        progress: found.checked.header.progress,
        skipped: found
            .skipped
            .iter()
            .map(|skipped| format!("step {}: {}", skipped.step, skipped.reason))
            .chain(found.warning)
            .collect(),
        duration_s: watch.elapsed_s(),
    }))
}

/// Reads one checkpoint and returns the cursor of the run.
fn fill(
    checkpoint: &Checkpoint,
    shape: &ReplicaLayout,
    state: &mut [HeldVectorMut<'_>],
) -> Result<TrainingCursor, CheckpointError> {
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
    let mut requests: Vec<ReadRequest<'_>> = Vec::new();
    for (vector, state) in shape.vectors.iter().zip(state.iter_mut()) {
        let mut rest: &mut [f32] = state.values;
        for range in state.held.ranges() {
            let (values, after) = rest.split_at_mut(range.len());
            rest = after;
            requests.push(ReadRequest {
                vector: &vector.name,
                start: range.start as u64,
                into: bytemuck::cast_slice_mut(values),
            });
        }
    }
    checkpoint.read_into(&mut requests, THREADS)?;
    let weights = state
        .first()
        .map_or(0, |weights| weight_hash::hash(weights.values));
    let is_whole = state.first().is_some_and(|weights| {
        let elements = shape.vectors.first().map(|vector| vector.elements);
        elements == Some(weights.values.len() as u64)
    });
    let is_hashed = !cursor.header.weights.is_empty();
    if is_whole && is_hashed && format!("{weights:016x}") != cursor.header.weights {
        return Err(invalid(format!(
            "the weights have the hash {weights:016x}, expected {}",
            cursor.header.weights
        )));
    }
    Ok(cursor)
}
