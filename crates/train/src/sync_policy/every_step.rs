//! A step of a run whose workers sum gradients in every step.

use ronde_parallel::SynchronousStrategy;
use ronde_protocol::transaction::OpenStep;

use super::feed::Feed;
use crate::error::TrainError;

/// Loads the shards of this rank, computes their gradients and starts the reductions.
pub(super) fn compute(
    strategy: &mut SynchronousStrategy,
    feed: &mut Feed<'_>,
    open: &mut OpenStep,
) -> Result<(), TrainError> {
    let step = open.step();
    let (sample_ids, micro_batches) = feed.load((step, step))?;
    let reports = strategy.backward(step, micro_batches);
    let reports = reports.map_err(|source| TrainError::of_step(step, source))?;
    for (mut report, sample_ids) in reports.into_iter().zip(sample_ids) {
        report.skipped = sample_ids.len() as u64 - report.samples;
        open.record(report, &sample_ids);
    }
    Ok(())
}
