//! Trying the model on data that it was not trained on, spread over the ranks.

use ronde_core::{Collectives, CollectivesExt, Shard};
use ronde_data::Dataset;
use ronde_parallel::{MicroBatch, Strategy};

use crate::TrainError;

/// Samples that are tried at a time. Fixed, so that the loss does not depend on the world size.
const BATCH: u64 = 60;

/// Result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean loss.
    pub loss: f64,
    /// Share of right answers, 0 to 1.
    pub accuracy: f64,
    /// Samples tried.
    pub samples: u64,
}

/// Evaluates on all samples; every rank takes every n-th batch, all get the result. All ranks call it.
///
/// # Errors
/// Data, engine or communication failed.
pub fn evaluate(
    group: &dyn Collectives,
    strategy: &mut dyn Strategy,
    dataset: &dyn Dataset,
) -> Result<Evaluation, TrainError> {
    let samples = dataset.len();
    let batches = samples.div_ceil(BATCH);
    // Batch number, loss sum, right answers: three numbers a batch.
    let mut mine = Vec::new();
    for batch in (group.rank().0.into()..batches).step_by(group.size()) {
        let micro_batch = read(dataset, batch * BATCH..((batch + 1) * BATCH).min(samples))?;
        let (loss_sum, correct) = strategy
            .evaluate(micro_batch)
            .map_err(|error| TrainError::Evaluate(Box::new(error)))?;
        mine.extend([batch as f64, loss_sum, correct as f64]);
    }
    let all = group
        .all_gather(&mine)
        .map_err(TrainError::EvaluateGather)?;
    let mut results: Vec<&[f64]> = all.chunks_exact(3).collect();
    // In batch order, so that the bits of the sum do not depend on the ranks.
    results.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let loss_sum: f64 = results.iter().map(|result| result[1]).sum();
    let correct: f64 = results.iter().map(|result| result[2]).sum();
    let count = samples.max(1) as f64;
    Ok(Evaluation {
        loss: loss_sum / count,
        accuracy: correct / count,
        samples,
    })
}

fn read(dataset: &dyn Dataset, range: std::ops::Range<u64>) -> Result<MicroBatch, TrainError> {
    let elements: usize = dataset.sample_shape().iter().product();
    let count = (range.end - range.start) as usize;
    let mut features = vec![0.0; count * elements];
    let mut labels = Vec::with_capacity(count);
    for (place, sample) in range.enumerate() {
        labels.push(dataset.read(
            sample,
            &mut features[place * elements..(place + 1) * elements],
        )?);
    }
    let shape = [&[count], dataset.sample_shape()].concat();
    Ok(MicroBatch {
        shard: Shard(0),
        shape,
        features,
        labels,
    })
}
