//! Evaluates the model on the test set, distributed over the ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ronde_core::background_spans::BackgroundSpans;
use ronde_core::batch::BatchPlan;
use ronde_core::shards::ShardPlan;
use ronde_core::{Collectives, CollectivesExt, Shard, WorldSize};
use ronde_data::{Dataset, Loader, LoaderPlan, LoaderSettings, StepBatches};
use ronde_engine::{
    Activation, Chain, ConfusionMatrix, EvaluationSize, Predictions, release_free_memory,
};
use ronde_parallel::{EvaluationPart, MicroBatch, ModelHandle, ParallelError};

use crate::error::TrainError;
use crate::micro_batch::micro_batch;
use crate::objective::Objective;

/// The largest number of sums that the ranks exchange at once, so that the memory for them does not depend on the number
/// of samples. Results of more classes than this are exchanged batch by batch.
const EXCHANGED_SUMS_MAX: usize = 1 << 16;

/// The result of an evaluation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluation {
    /// The mean loss over all counted targets.
    pub loss: f64,
    /// The values of the metrics by name.
    pub metrics: BTreeMap<String, f64>,
    /// How often each class was predicted as each class, if it was measured.
    pub confusion: Option<ConfusionMatrix>,
    /// The number of samples.
    pub samples: u64,
    /// The names of the metrics whose lower values are better.
    pub(crate) lower_is_better: BTreeSet<String>,
}

impl Evaluation {
    /// Returns the value of a metric, such as `accuracy`.
    #[must_use]
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.get(name).copied()
    }

    /// Returns the value of a metric, or of `loss`, with the sign that makes higher values better: a loss is negated. `None`
    /// if it was not measured or is not a number.
    #[must_use]
    pub fn score(&self, name: &str) -> Option<f64> {
        let score = match name {
            LOSS => Some(-self.loss),
            name if self.lower_is_better.contains(name) => self.metric(name).map(|value| -value),
            name => self.metric(name),
        };
        score.filter(|score| !score.is_nan())
    }
}

/// The name of the loss among the metrics.
pub(crate) const LOSS: &str = "loss";

/// Evaluates on all samples, and records what the threads that load them do. Each of `n` ranks, or pipelines, takes every `n`-th batch, and all get the result. All ranks call
/// it.
///
/// # Errors
/// Data, engine or communication failed, or the loss or a metric does not fit the predictions.
pub fn evaluate(
    group: &dyn Collectives,
    mut model: ModelHandle<'_>,
    dataset: &Arc<dyn Dataset>,
    objective: &Objective,
    loading: (LoaderSettings, Arc<BackgroundSpans>),
) -> Result<Evaluation, TrainError> {
    let part = model.evaluation_part();
    let mut predict = |batch: Option<&mut MicroBatch>| model.predict(batch);
    let mut gather = |mine: Vec<f64>| group.all_gather(&mine).map_err(TrainError::EvaluateGather);
    let exchange: (&mut Predict<'_>, &mut Gather<'_>) = (&mut predict, &mut gather);
    release_free_memory();
    let evaluation = evaluate_part(part, exchange, dataset, objective, loading);
    release_free_memory();
    evaluation
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
    let size = EvaluationSize::of(model, &dataset.description().shape);
    let mut predict = |batch: Option<&mut MicroBatch>| {
        let Some(batch) = batch else { return Ok(None) };
        let input = Activation::from_host(&batch.shape, std::mem::take(&mut batch.features));
        let outputs = size.forward(input, |part| model.evaluate(part));
        let outputs = outputs.map_err(|source| {
            let shard = batch.shard;
            ParallelError::Engine { shard, source }
        });
        outputs.map(Some)
    };
    let alone = EvaluationPart {
        batch: size.batch as u64,
        groups: 1,
        group: Some(0),
        loads: true,
        joins_every_round: false,
    };
    let mut gather = Ok;
    let exchange: (&mut Predict<'_>, &mut Gather<'_>) = (&mut predict, &mut gather);
    let loading = (settings, Arc::new(BackgroundSpans::off()));
    evaluate_part(alone, exchange, dataset, objective, loading)
}

/// Computes the outputs of a batch, or joins a round without one; `None` on a rank that does not have the last layer.
type Predict<'a> =
    dyn FnMut(Option<&mut MicroBatch>) -> Result<Option<Activation>, ParallelError> + 'a;

/// Exchanges results with the other ranks; returns those of all ranks.
type Gather<'a> = dyn FnMut(Vec<f64>) -> Result<Vec<f64>, TrainError> + 'a;

/// Evaluates this rank's batches, and adds the results of all ranks.
fn evaluate_part(
    part: EvaluationPart,
    (predict, gather): (&mut Predict<'_>, &mut Gather<'_>),
    dataset: &Arc<dyn Dataset>,
    objective: &Objective,
    loading: (LoaderSettings, Arc<BackgroundSpans>),
) -> Result<Evaluation, TrainError> {
    let mut totals = Totals::new(objective);
    let mut batches = match part.group {
        Some(group) if part.loads => {
            match load((group, part.groups), part.batch, dataset, loading)? {
                Some(loader) => PartBatches::Loaded(Box::new(loader)),
                None => PartBatches::Empty(0),
            }
        }
        Some(group) => {
            PartBatches::Empty(own_batches((dataset.len(), part.batch), group, part.groups))
        }
        None => PartBatches::Empty(0),
    };
    let rounds = dataset.len().div_ceil(part.batch).div_ceil(part.groups);
    let per_exchange = EXCHANGED_SUMS_MAX / totals.sums.len() / part.groups.max(1) as usize;
    let per_exchange = per_exchange.max(1) as u64;
    let mut done = 0;
    while done < rounds {
        let count = per_exchange.min(rounds - done);
        let joins = part.joins_every_round && part.group.is_some();
        let mine = results((count, joins), &mut batches, predict, objective)?;
        totals.add(&gather(mine)?);
        done += count;
    }
    totals.evaluation(objective)
}

/// The batches of an evaluation that a rank takes part in.
enum PartBatches {
    /// With their samples.
    Loaded(Box<Loader>),
    /// A number of them, whose samples other ranks of the pipeline have.
    Empty(u64),
}

impl PartBatches {
    /// Returns the next batches with the number of the first; `None` at the end.
    fn next(&mut self) -> Result<Option<(u64, Vec<MicroBatch>)>, TrainError> {
        match self {
            Self::Loaded(loader) => {
                let next = loader.next()?;
                Ok(next.map(|StepBatches { step, batches }| {
                    let batches = batches.into_iter().map(|batch| micro_batch(batch).1);
                    (step.0, batches.collect())
                }))
            }
            Self::Empty(left) => {
                let is_next = *left > 0;
                *left = left.saturating_sub(1);
                let nothing = MicroBatch {
                    shard: Shard(0),
                    shape: vec![0],
                    features: Vec::new(),
                    labels: Vec::new(),
                };
                Ok(is_next.then(|| (0, vec![nothing])))
            }
        }
    }
}

/// Returns the number of batches of a group of ranks, of `groups`.
fn own_batches((samples, batch): (u64, u64), group: u64, groups: u64) -> u64 {
    let batches = samples.div_ceil(batch);
    (batches + groups - 1 - group.min(groups - 1)) / groups
}

/// Returns the results of the next `count` batches of this rank, one after the other; fewer at the end of the data. With
/// `joins`, the rank then joins the rounds of the others.
fn results(
    (count, joins): (u64, bool),
    batches: &mut PartBatches,
    predict: &mut Predict<'_>,
    objective: &Objective,
) -> Result<Vec<f64>, TrainError> {
    let mut mine = Vec::new();
    for _ in 0..count {
        let Some((number, batches)) = batches.next()? else {
            if !joins {
                break;
            }
            let joined = predict(None).map_err(|error| TrainError::Evaluate(Box::new(error)));
            joined?;
            continue;
        };
        for batch in batches {
            let result = evaluate_batch(predict, objective, number, batch);
            let result = result.map_err(|error| TrainError::Evaluate(Box::new(error)))?;
            mine.extend(result.unwrap_or_default());
        }
    }
    Ok(mine)
}

/// The sums over all batches so far, in the columns of a result.
struct Totals {
    sums: Vec<f64>,
}

impl Totals {
    fn new(objective: &Objective) -> Self {
        let metrics = objective.metrics.iter().map(|metric| metric.sums());
        let confusion = objective.confusion.map_or(0, |counts| counts.sums());
        Self {
            sums: vec![0.0; FIRST_METRIC + metrics.sum::<usize>() + confusion],
        }
    }

    /// Adds results in the order of their batches, so that the bits of the sums do not depend on the ranks.
    fn add(&mut self, all: &[f64]) {
        let mut results: Vec<&[f64]> = all.chunks_exact(self.sums.len()).collect();
        results.sort_by(|a, b| a[0].total_cmp(&b[0]));
        for result in results {
            for (sum, value) in self.sums.iter_mut().zip(result) {
                *sum += value;
            }
        }
    }

    /// Returns the result.
    ///
    /// # Errors
    /// No target of the samples counts, so the mean is undefined.
    fn evaluation(&self, objective: &Objective) -> Result<Evaluation, TrainError> {
        let [_, samples, targets, loss_sum] = self.sums[..FIRST_METRIC] else {
            unreachable!("a result has these columns")
        };
        if samples > 0.0 && targets == 0.0 {
            return Err(TrainError::Impossible {
                problem: format!(
                    "cannot evaluate the loss {}: none of the targets of {samples} samples counts",
                    objective.loss.name()
                ),
                hint: "use test data with targets that are not ignored".to_owned(),
            });
        }
        let mut evaluation = Evaluation {
            loss: loss_sum / targets.max(1.0),
            samples: samples as u64,
            ..Evaluation::default()
        };
        let mut rest = &self.sums[FIRST_METRIC..];
        for metric in &objective.metrics {
            let (sums, after) = rest.split_at(metric.sums());
            let name = metric.name().to_owned();
            if metric.is_lower_better() {
                evaluation.lower_is_better.insert(name.clone());
            }
            evaluation.metrics.insert(name, metric.value(sums));
            rest = after;
        }
        evaluation.confusion = objective.confusion.map(|counts| counts.matrix(rest));
        Ok(evaluation)
    }
}

/// The number of columns of a result before the sums of the metrics: number of the batch, samples, counted
/// targets and loss sum.
const FIRST_METRIC: usize = 4;

/// Returns the result of a batch: its number, its samples, its counted targets, its loss sum, the sums of each metric and those of the
/// confusion matrix. `None` on a rank that does not have the outputs.
fn evaluate_batch(
    predict: &mut Predict<'_>,
    objective: &Objective,
    number: u64,
    mut batch: MicroBatch,
) -> Result<Option<Vec<f64>>, ParallelError> {
    let (shard, samples) = (batch.shard, batch.samples());
    let Some(output) = predict(Some(&mut batch))? else {
        return Ok(None);
    };
    let engine = |source| ParallelError::Engine { shard, source };
    let predictions = Predictions::new(output.as_slice(), &batch.labels, samples);
    let predictions = predictions.map_err(engine)?;
    let loss = objective.loss.checked(&predictions).map_err(engine)?;
    let targets = objective.loss.counted_targets(&batch.labels, samples);
    let mut result = vec![number as f64, samples as f64, targets as f64, loss.loss_sum];
    for metric in &objective.metrics {
        let mut sums = vec![0.0; metric.sums()];
        metric
            .add(&predictions, loss.loss_sum, &mut sums)
            .map_err(engine)?;
        result.extend(sums);
    }
    if let Some(counts) = &objective.confusion {
        let mut sums = vec![0.0; counts.sums()];
        counts.add(&predictions, &mut sums).map_err(engine)?;
        result.extend(sums);
    }
    Ok(Some(result))
}

/// Starts a loader of every `n`-th batch in the order of the data set; `None` for an empty data set.
fn load(
    (rank, ranks): (u64, u64),
    batch: u64,
    dataset: &Arc<dyn Dataset>,
    (settings, spans): (LoaderSettings, Arc<BackgroundSpans>),
) -> Result<Option<Loader>, TrainError> {
    let whole = ShardPlan::new(1, WorldSize::ONE);
    let batches = BatchPlan::new(dataset.len(), batch, false, false, 0);
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
    let spans = (spans, BackgroundSpans::EVALUATION_THREADS);
    let dataset = Arc::clone(dataset);
    Ok(Some(Loader::start_recorded(
        dataset, plan, settings, spans,
    )?))
}
