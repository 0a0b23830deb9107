//! The micro-batch of a logical shard, as a strategy takes it.

use ronde_data::Batch;
use ronde_parallel::MicroBatch;

/// Splits a batch into its sample numbers and the micro-batch for a strategy.
pub(crate) fn micro_batch(batch: Batch) -> (Vec<u64>, MicroBatch) {
    let micro_batch = MicroBatch {
        shard: batch.shard,
        shape: batch.shape,
        features: batch.features,
        labels: batch.labels,
    };
    (batch.sample_ids, micro_batch)
}
