//! Loading the last good checkpoint into a replica.

use std::sync::Arc;

use ronde_checkpoint::{Checkpoint, CheckpointError, ReadInto, last_good_with};
use ronde_core::{PlanIdentity, Step, weight_hash};
use ronde_store::Store;

use super::Shape;
use super::cursor::Cursor;
use crate::clock::Stopwatch;

/// Threads that read.
const THREADS: usize = 4;

/// What was loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) step: Step,
    /// Ranks that saved it.
    pub(crate) world_size: u32,
    pub(crate) bytes: u64,
    pub(crate) session: Vec<u8>,
    /// Newer ones that cannot be used, and a damage of the claims.
    pub(crate) skipped: Vec<String>,
    pub(crate) duration_s: f64,
}

/// Puts the newest checkpoint that counts and is good into `replica`; every byte is verified. `None`, and
/// nothing is changed, when there is none at all. After an error the replica holds anything.
///
/// # Errors
/// There are some, but none is good or of this plan; the store cannot be read.
pub(crate) fn load(
    store: &Arc<dyn Store>,
    identity: &PlanIdentity,
    shape: &Shape,
    replica: &mut [&mut [f32]],
) -> Result<Option<Loaded>, CheckpointError> {
    let watch = Stopwatch::start();
    let found = last_good_with(store, identity, |checkpoint| {
        fill(checkpoint, shape, replica)
    })?;
    Ok(found.map(|found| Loaded {
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

/// Reads one checkpoint; gives the session's cursor.
fn fill(
    checkpoint: &Checkpoint,
    shape: &Shape,
    replica: &mut [&mut [f32]],
) -> Result<Vec<u8>, CheckpointError> {
    let what = || format!("checkpoint of step {}", checkpoint.step());
    let refuse = |problem: String| CheckpointError::Invalid {
        what: what(),
        problem,
    };
    let cursor = Cursor::decode(&checkpoint.cursor()?).map_err(refuse)?;
    if checkpoint.manifest().vectors != *shape.vectors {
        return Err(refuse("its tensors are not those of this run".to_owned()));
    }
    let mut requests: Vec<ReadInto<'_>> = shape
        .vectors
        .iter()
        .zip(replica.iter_mut())
        .map(|(vector, values)| ReadInto {
            vector: &vector.name,
            start: 0,
            into: bytemuck::cast_slice_mut(values),
        })
        .collect();
    checkpoint.read_into(&mut requests, THREADS)?;
    let weights = replica
        .first()
        .map_or(0, |weights| weight_hash::hash(weights));
    if format!("{weights:016x}") != cursor.about.weights {
        return Err(refuse(format!(
            "the weights hash to {weights:016x}, not to {}",
            cursor.about.weights
        )));
    }
    Ok(cursor.session)
}
