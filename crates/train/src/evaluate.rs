//! Trying the model on data that it was not trained on, spread over the ranks.

use ronde_core::{Collectives, CollectivesExt, Shard};
use ronde_data::{Dataset, Targets};
use ronde_parallel::{MicroBatch, Strategy};

use crate::TrainError;

/// Samples that are tried at a time. Fixed, so that the loss does not depend on the world size.
const BATCH: u64 = 60;

/// Result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// Mean loss.
    pub loss: f64,
    /// Share of right answers, 0 to 1; NaN where values are learnt, not classes.
    pub accuracy: f64,
    /// Share of targets among the five likeliest answers, where there are more than five classes.
    pub accuracy_top5: Option<f64>,
    /// `exp` of the mean loss, where a sample has several targets: a text.
    pub perplexity: Option<f64>,
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
    // Batch number, loss sum, right answers, also among five, targets: five numbers a batch.
    let mut mine = Vec::new();
    for batch in (group.rank().0.into()..batches).step_by(group.size()) {
        let micro_batch = read(dataset, batch * BATCH..((batch + 1) * BATCH).min(samples))?;
        let found = strategy
            .evaluate(micro_batch)
            .map_err(|error| TrainError::Evaluate(Box::new(error)))?;
        let counts = [found.correct, found.correct_top5, found.counted];
        mine.extend([batch as f64, found.loss_sum]);
        mine.extend(counts.map(|count| count as f64));
    }
    let all = group
        .all_gather(&mine)
        .map_err(TrainError::EvaluateGather)?;
    let mut results: Vec<&[f64]> = all.chunks_exact(5).collect();
    // In batch order, so that the bits of the sum do not depend on the ranks.
    results.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let sum = |column: usize| results.iter().map(|result| result[column]).sum::<f64>();
    let loss = sum(1) / samples.max(1) as f64;
    let counted = sum(4).max(1.0);
    let are_classes = dataset.targets() == Targets::Classes;
    let has_five = are_classes && dataset.classes() > 5;
    let is_text = are_classes && dataset.targets_per_sample() > 1;
    Ok(Evaluation {
        loss,
        accuracy: if are_classes {
            sum(2) / counted
        } else {
            f64::NAN
        },
        accuracy_top5: has_five.then(|| sum(3) / counted),
        perplexity: is_text.then(|| loss.exp()),
        samples,
    })
}

fn read(dataset: &dyn Dataset, range: std::ops::Range<u64>) -> Result<MicroBatch, TrainError> {
    let elements: usize = dataset.sample_shape().iter().product();
    let count = (range.end - range.start) as usize;
    let mut features = vec![0.0; count * elements];
    let each = dataset.targets_per_sample();
    let mut labels = vec![0; count * each];
    for (place, sample) in range.enumerate() {
        dataset.read_all(
            sample,
            &mut features[place * elements..(place + 1) * elements],
            &mut labels[place * each..(place + 1) * each],
        )?;
    }
    let shape = [&[count], dataset.sample_shape()].concat();
    Ok(MicroBatch {
        shard: Shard(0),
        shape,
        features,
        labels,
    })
}
