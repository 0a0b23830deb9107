//! Evaluates the model on the test set, distributed over the ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use ronde_core::batch::BatchPlan;
use ronde_core::shards::ShardPlan;
use ronde_core::{Collectives, CollectivesExt, WorldSize};
use ronde_data::{Dataset, Loader, LoaderPlan, LoaderSettings, StepBatches};
use ronde_engine::{Activation, Chain, Predictions};
use ronde_parallel::{MicroBatch, ParallelError, Strategy};

use crate::micro_batch::micro_batch;
use crate::{Objective, TrainError};

/// The number of samples of an evaluation batch. Fixed, so that the loss does not depend on the world size.
const BATCH: u64 = 60;

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f64,
    /// The values of the metrics by name.
    pub metrics: BTreeMap<String, f64>,
    /// The number of samples.
    pub samples: u64,
}

impl Evaluation {
    /// Returns the value of a metric, such as `accuracy`.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).copied()
    }
}

/// Evaluates on all samples. Each of `n` ranks takes every `n`-th batch, and all get the result. All ranks call it.
///
/// # Errors
/// Data, engine or communication failed, or the loss or a metric does not fit the predictions.
pub fn evaluate(
    group: &dyn Collectives,
    strategy: &mut dyn Strategy,
    dataset: &Arc<dyn Dataset>,
    objective: &Objective,
    settings: LoaderSettings,
) -> Result<Evaluation, TrainError> {
    let place = (u64::from(group.rank().0), group.size() as u64);
    let mut predict = |batch: &mut MicroBatch| strategy.predict(batch);
    let mine = results(place, &mut predict, dataset, objective, settings)?;
    let all = group
        .all_gather(&mine)
        .map_err(TrainError::EvaluateGather)?;
    Ok(total(&all, objective))
}

/// Evaluates a model on all samples in this process, with the bits of [`evaluate`] on any number of ranks.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_alone(
    model: &mut Chain,
    dataset: &Arc<dyn Dataset>,
    objective: &Objective,
    settings: LoaderSettings,
) -> Result<Evaluation, TrainError> {
    let mut predict = |batch: &mut MicroBatch| {
        let input = Activation::from_host(&batch.shape, std::mem::take(&mut batch.features));
        model.evaluate(input).map_err(|source| {
            let shard = batch.shard;
            ParallelError::Engine { shard, source }
        })
    };
    let all = results((0, 1), &mut predict, dataset, objective, settings)?;
    Ok(total(&all, objective))
}

/// Computes the outputs of a batch.
type Predict<'a> = dyn FnMut(&mut MicroBatch) -> Result<Activation, ParallelError> + 'a;

/// Returns the results of every `n`-th batch, one after the other.
fn results(
    (rank, ranks): (u64, u64),
    predict: &mut Predict<'_>,
    dataset: &Arc<dyn Dataset>,
    objective: &Objective,
    settings: LoaderSettings,
) -> Result<Vec<f64>, TrainError> {
    let mut mine = Vec::new();
    let mut loader = load((rank, ranks), dataset, settings)?;
    while let Some(StepBatches { step, batches }) =
        loader.as_mut().map_or(Ok(None), Loader::next)?
    {
        for batch in batches {
            let result = evaluate_batch(predict, objective, step.0, micro_batch(batch).1);
            mine.extend(result.map_err(|error| TrainError::Evaluate(Box::new(error)))?);
        }
    }
    Ok(mine)
}

/// Adds the results of all batches.
fn total(all: &[f64], objective: &Objective) -> Evaluation {
    let columns = FIRST_METRIC + objective.metrics.iter().map(|m| m.sums()).sum::<usize>();
    let mut results: Vec<&[f64]> = all.chunks_exact(columns).collect();
    // Sort by batch, so that the bits of the sums do not depend on the ranks.
    results.sort_by(|a, b| a[0].total_cmp(&b[0]));
    let sum = |column: usize| results.iter().map(|result| result[column]).sum::<f64>();
    let samples = sum(1);
    let mut metrics = BTreeMap::new();
    let mut column = FIRST_METRIC;
    for metric in &objective.metrics {
        let sums: Vec<f64> = (column..column + metric.sums()).map(sum).collect();
        metrics.insert(metric.name().to_owned(), metric.value(&sums));
        column += metric.sums();
    }
    Evaluation {
        loss: sum(2) / samples.max(1.0),
        metrics,
        samples: samples as u64,
    }
}

/// The number of columns of a result before the sums of the metrics: number of the batch, samples and loss sum.
const FIRST_METRIC: usize = 3;

/// Returns the result of a batch: its number, its samples, its loss sum and the sums of each metric.
fn evaluate_batch(
    predict: &mut Predict<'_>,
    objective: &Objective,
    number: u64,
    mut batch: MicroBatch,
) -> Result<Vec<f64>, ParallelError> {
    let (shard, samples) = (batch.shard, batch.samples());
    let output = predict(&mut batch)?;
    let engine = |source| ParallelError::Engine { shard, source };
    let predictions = Predictions::new(output.as_slice(), &batch.labels, samples);
    let predictions = predictions.map_err(engine)?;
    let loss = objective.loss.checked(&predictions).map_err(engine)?;
    let mut result = vec![number as f64, samples as f64, loss.loss_sum];
    for metric in &objective.metrics {
        let mut sums = vec![0.0; metric.sums()];
        metric
            .add(&predictions, loss.loss_sum, &mut sums)
            .map_err(engine)?;
        result.extend(sums);
    }
    Ok(result)
}

/// Starts a loader of every `n`-th batch in the order of the data set; `None` for an empty data set.
fn load(
    (rank, ranks): (u64, u64),
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
        steps: rank..batches.steps_per_epoch(),
        stride: ranks,
    };
    Ok(Some(Loader::start(Arc::clone(dataset), plan, settings)?))
}
