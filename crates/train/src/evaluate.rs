//! Evaluates the model on the test set, distributed over the ranks.

use std::sync::Arc;

use ronde_core::batch::BatchPlan;
use ronde_core::shards::ShardPlan;
use ronde_core::{Collectives, CollectivesExt, WorldSize};
use ronde_data::{Dataset, Loader, LoaderPlan, LoaderSettings, StepBatches, Targets};
use ronde_parallel::Strategy;

use crate::TrainError;
use crate::training::micro_batch;

/// The number of samples of an evaluation batch. Fixed, so that the loss does not depend on the world size.
const BATCH: u64 = 60;

/// The result of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f64,
    /// The fraction of correct predictions, 0 to 1; NaN for regression.
    pub accuracy: f64,
    /// The fraction of targets among the five most likely classes, if there are more than five.
    pub accuracy_top5: Option<f64>,
    /// `exp` of the mean loss, if a sample has several targets, as texts do.
    pub perplexity: Option<f64>,
    /// The number of samples.
    pub samples: u64,
}

/// Evaluates on all samples. Each of `n` ranks takes every `n`-th batch, and all get the result. All ranks call it.
///
/// # Errors
/// Data, engine or communication failed.
pub fn evaluate(
    group: &dyn Collectives,
    strategy: &mut dyn Strategy,
    dataset: &Arc<dyn Dataset>,
    settings: LoaderSettings,
) -> Result<Evaluation, TrainError> {
    // Six numbers for each batch: batch number, samples, loss sum, correct, correct among five, targets.
    let mut mine = Vec::new();
    let mut loader = load(group, dataset, settings)?;
    while let Some(StepBatches { step, batches }) =
        loader.as_mut().map_or(Ok(None), Loader::next)?
    {
        for batch in batches {
            let samples = batch.samples();
            let output = strategy
                .evaluate(micro_batch(batch).1)
                .map_err(|error| TrainError::Evaluate(Box::new(error)))?;
            let counts = [output.correct, output.correct_top5, output.counted];
            mine.extend([step.0 as f64, samples as f64, output.loss_sum]);
            mine.extend(counts.map(|count| count as f64));
        }
    }
    let all = group
        .all_gather(&mine)
        .map_err(TrainError::EvaluateGather)?;
    let mut results: Vec<&[f64]> = all.chunks_exact(6).collect();
    // Sort by batch, so that the bits of the sum do not depend on the ranks.
    results.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let sum = |column: usize| results.iter().map(|result| result[column]).sum::<f64>();
    let samples = sum(1);
    let loss = sum(2) / samples.max(1.0);
    let counted = sum(5).max(1.0);
    let are_classes = dataset.targets() == Targets::Classes;
    let has_five = are_classes && dataset.classes() > 5;
    let is_text = are_classes && dataset.targets_per_sample() > 1;
    Ok(Evaluation {
        loss,
        accuracy: if are_classes {
            sum(3) / counted
        } else {
            f64::NAN
        },
        accuracy_top5: has_five.then(|| sum(4) / counted),
        perplexity: is_text.then(|| loss.exp()),
        samples: samples as u64,
    })
}

/// Starts a loader of every `n`-th batch in the order of the data set; `None` for an empty data set.
fn load(
    group: &dyn Collectives,
    dataset: &Arc<dyn Dataset>,
    settings: LoaderSettings,
) -> Result<Option<Loader>, TrainError> {
    let whole = ShardPlan::new(1, WorldSize::ONE);
    let batches = BatchPlan::new(dataset.len(), BATCH, false, false, 0);
    let Some((batches, shards)) = batches.zip(whole) else {
        return Ok(None);
    };
    let plan = LoaderPlan {
        batches,
        shards,
        run: 0..1,
        steps: u64::from(group.rank().0)..batches.steps_per_epoch(),
        stride: group.size() as u64,
    };
    Ok(Some(Loader::start(Arc::clone(dataset), plan, settings)?))
}
