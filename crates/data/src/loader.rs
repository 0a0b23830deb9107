//! [`Loader`]: prefetches the batches of one rank's shards for the training loop.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use ronde_core::background_spans::BackgroundSpans;
use ronde_core::batch::BatchPlan;
use ronde_core::rounds::{InnerSteps, RoundPlan};
use ronde_core::shards::ShardPlan;
use ronde_core::{Shard, Step, WorldSize};

use crate::dataset::Dataset;
use crate::error::DataError;
use crate::format::BadRecord;

mod decode_pool;
mod planner;
mod times;

use decode_pool::{DecodePool, PoolLimits};
use planner::BatchPlanner;
pub use times::LoaderTimes;

use ronde_clock::Stopwatch;

/// The number of units that fit in [`LoaderSettings::memory_bytes`]: one that is decoded, one that is ready, one that is being
/// fetched.
const UNITS_IN_MEMORY: u64 = 3;
/// The divisor of [`LoaderSettings::memory_bytes`] that gives the memory for decoded steps.
const DECODED_SHARE: u64 = 4;
/// The range of the number of steps that are decoded ahead.
const STEPS_AHEAD: std::ops::RangeInclusive<u64> = 2..=16;

/// The samples of one logical shard of one step. May be empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The shard.
    pub shard: Shard,
    /// The numbers of the batch's samples in the data set, including skipped ones.
    pub sample_ids: Vec<u64>,
    /// The shape of the features: `[n, ..sample_shape]`.
    pub shape: Vec<usize>,
    /// The features of `n` samples, row-major.
    pub features: Vec<f32>,
    /// The labels or other targets of `n` samples.
    pub labels: Vec<u32>,
    /// The records that were skipped, with the reasons.
    pub skipped: Vec<BadRecord>,
    /// The numbers of the skipped samples, in the same order.
    pub skipped_ids: Vec<u64>,
}

impl Batch {
    /// Returns the numbers of the samples without skipped ones, in the order of their features.
    #[must_use]
    pub fn used_samples(&self) -> Vec<u64> {
        let mut skipped = self.skipped_ids.iter().peekable();
        let is_used = |number: &u64| skipped.next_if_eq(&number).is_none();
        let mut numbers = self.sample_ids.clone();
        numbers.retain(is_used);
        numbers
    }

    /// Returns the number of samples without skipped ones.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }
}

/// The batches of one rank for one step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepBatches {
    /// The step.
    pub step: Step,
    /// One batch for each shard of the rank, in the order of the shards; batches may be empty.
    pub batches: Vec<Batch>,
}

/// The steps and shards that a loader fetches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoaderPlan {
    /// The assignment of samples to steps.
    pub batches: BatchPlan,
    /// The assignment of shards to ranks.
    pub shards: ShardPlan,
    /// The shards of this rank.
    pub run: Range<u32>,
    /// The range of steps.
    pub steps: Range<u64>,
    /// The distance between fetched steps: 1 for every step of the range, `n` for every `n`-th.
    pub stride: u64,
}

impl LoaderPlan {
    /// Returns the number of steps.
    fn count(&self) -> u64 {
        let steps = self.steps.end.saturating_sub(self.steps.start);
        steps.div_ceil(self.stride.max(1))
    }

    fn step(&self, index: u64) -> Step {
        Step(self.steps.start + index * self.stride.max(1))
    }
}

/// The number of threads and the memory of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderSettings {
    /// The number of threads that fetch and decode; at least one.
    pub threads: usize,
    /// The memory for prefetched samples, stored and decoded.
    pub memory_bytes: u64,
}

impl LoaderSettings {
    /// Returns the number of steps that are decoded ahead, if the samples of one take `step_bytes` decoded.
    fn steps_ahead(&self, step_bytes: u64) -> u64 {
        let ahead = self.memory_bytes / DECODED_SHARE / step_bytes.max(1);
        ahead.clamp(*STEPS_AHEAD.start(), *STEPS_AHEAD.end())
    }

    /// Returns the memory for decoded samples, if those of a step take `step_bytes`.
    #[must_use]
    pub fn decoded_bytes(&self, step_bytes: u64) -> u64 {
        self.steps_ahead(step_bytes).saturating_mul(step_bytes)
    }
}

impl Default for LoaderSettings {
    fn default() -> Self {
        Self {
            threads: 1,
            memory_bytes: 256 << 20,
        }
    }
}

/// Reads the batches of a rank's shards in background threads, ahead of the steps that use them.
///
/// The batches depend only on the data set and the plan, not on timing or the number of threads. Dropping the loader ends the
/// threads after at most one more sample or fetch.
///
/// Memory: 1.25 times [`LoaderSettings::memory_bytes`] for stored and decoded samples; at least one unit and two steps,
/// whatever their size.
#[derive(Debug)]
pub struct Loader {
    pool: Arc<DecodePool>,
    threads: Vec<JoinHandle<()>>,
    plan: LoaderPlan,
    /// The inner steps that are left; `None`: whole steps are loaded.
    inner: Option<(RoundPlan, InnerSteps)>,
    next: u64,
    watch: Stopwatch,
}

impl Loader {
    /// Starts prefetching.
    ///
    /// # Errors
    /// A plan for a different number of samples, shards out of range, or a thread that cannot be started.
    pub fn start(
        dataset: Arc<dyn Dataset>,
        plan: LoaderPlan,
        settings: LoaderSettings,
    ) -> Result<Self, DataError> {
        Self::start_recorded(
            dataset,
            plan,
            settings,
            (Arc::new(BackgroundSpans::off()), 0),
        )
    }

    /// Starts prefetching, and records the activity of the threads in `spans`, with numbers from `first_thread` on.
    ///
    /// # Errors
    /// As [`Loader::start`].
    pub fn start_recorded(
        dataset: Arc<dyn Dataset>,
        plan: LoaderPlan,
        settings: LoaderSettings,
        (spans, first_thread): (Arc<BackgroundSpans>, u32),
    ) -> Result<Self, DataError> {
        Self::start_with(dataset, plan, None, settings, (spans, first_thread))
    }

    /// Starts prefetching the inner steps of rounds: each is one step of the loader, whose batches are the micro-batches of one
    /// replica, numbered from 0. `plan` describes the rounds: its steps are rounds, and its shards the replicas. The inner steps
    /// of a round follow each other replica by replica; see [`RoundPlan::walk`]. The number of such a step is
    /// [`RoundPlan::unique`].
    ///
    /// # Errors
    /// As [`Loader::start`], and a plan with another number of replicas than shards.
    pub fn start_rounds(
        dataset: Arc<dyn Dataset>,
        plan: LoaderPlan,
        rounds: RoundPlan,
        settings: LoaderSettings,
        spans: (Arc<BackgroundSpans>, u32),
    ) -> Result<Self, DataError> {
        if rounds.replicas() != plan.shards.shards() {
            return Err(DataError::NoSuchShards {
                start: 0,
                end: rounds.replicas(),
                shards: plan.shards.shards(),
            });
        }
        let steps = rounds.walk(plan.steps.clone(), plan.run.clone());
        Self::start_with(dataset, plan, Some((rounds, steps)), settings, spans)
    }

    /// Starts prefetching some inner steps of a plan with one replica, as [`Loader::start_rounds`] does with all of them.
    ///
    /// # Errors
    /// As [`Loader::start_rounds`].
    pub fn start_inner(
        dataset: Arc<dyn Dataset>,
        batches: BatchPlan,
        (rounds, steps): (RoundPlan, InnerSteps),
        settings: LoaderSettings,
        spans: (Arc<BackgroundSpans>, u32),
    ) -> Result<Self, DataError> {
        let replica = ShardPlan::new(1, WorldSize::ONE).filter(|_| rounds.replicas() == 1);
        let shards = replica.ok_or(DataError::NoSuchShards {
            start: 0,
            end: rounds.replicas(),
            shards: 1,
        })?;
        let plan = LoaderPlan {
            batches,
            shards,
            run: 0..1,
            steps: 0..0,
            stride: 1,
        };
        Self::start_with(dataset, plan, Some((rounds, steps)), settings, spans)
    }

    fn start_with(
        dataset: Arc<dyn Dataset>,
        plan: LoaderPlan,
        inner: Option<(RoundPlan, InnerSteps)>,
        settings: LoaderSettings,
        (spans, first_thread): (Arc<BackgroundSpans>, u32),
    ) -> Result<Self, DataError> {
        check(&*dataset, &plan)?;
        let rounds = inner.as_ref().map(|(rounds, _)| rounds);
        let step_bytes = match rounds {
            Some(rounds) => {
                let samples = u64::from(rounds.parts()).saturating_mul(rounds.part_samples_max());
                samples.saturating_mul(dataset.description().decoded_bytes())
            }
            None => step_bytes(&*dataset, &plan),
        };
        let unit_bytes = settings.memory_bytes / UNITS_IN_MEMORY;
        let locality = dataset.description().locality;
        let near_bytes = locality.and_then(|locality| locality.fetch_bytes);
        let unit_bytes = near_bytes.map_or(unit_bytes, |bytes| bytes.min(unit_bytes));
        let work = PoolLimits {
            steps_ahead: settings.steps_ahead(step_bytes),
            memory_bytes: settings.memory_bytes,
            unit_bytes,
            fetched_first_bytes: match (settings.threads, near_bytes) {
                (..=1, _) => 0,
                (_, Some(_)) => UNITS_IN_MEMORY * unit_bytes,
                (_, None) => settings.memory_bytes,
            },
            shards: rounds.map_or(plan.run.len(), |rounds| rounds.parts() as usize),
        };
        let planner = BatchPlanner::new(&*dataset, plan.clone(), inner.clone(), work.unit_bytes);
        let pool = Arc::new(DecodePool::new(dataset, planner, work, spans));
        let mut loader = Self {
            pool,
            threads: Vec::new(),
            inner,
            plan,
            next: 0,
            watch: Stopwatch::start(),
        };
        // A rank without shards fetches nothing.
        let threads = if loader.plan.run.is_empty() {
            0
        } else {
            settings.threads.max(1)
        };
        for number in 0..threads {
            let pool = Arc::clone(&loader.pool);
            let thread = std::thread::Builder::new()
                .name(format!("ronde-data-{number}"))
                .spawn(move || pool.run(first_thread + number as u32))
                .map_err(|cause| DataError::Thread { cause })?;
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// Returns the batches of the next step, `None` after the last one. Blocks until they are decoded.
    ///
    /// # Errors
    /// An error of the data set; every call after an error is an error.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator of results would suggest that it continues after an error"
    )]
    pub fn next(&mut self) -> Result<Option<StepBatches>, DataError> {
        let step = match &mut self.inner {
            Some((rounds, steps)) => steps.next().map(|step| rounds.unique(step)),
            None => (self.next < self.plan.count()).then(|| self.plan.step(self.next)),
        };
        let Some(step) = step else {
            return Ok(None);
        };
        let batches = if self.plan.run.is_empty() {
            Vec::new()
        } else {
            let taken = self.pool.take(self.next);
            taken.unwrap_or(Err(DataError::LoaderEnded { step: step.0 }))?
        };
        self.next += 1;
        Ok(Some(StepBatches { step, batches }))
    }

    /// Returns the statistics so far, including how long training waited.
    #[must_use]
    pub fn times(&self) -> LoaderTimes {
        LoaderTimes {
            threads: self.threads.len(),
            elapsed: self.watch.elapsed(),
            ..self.pool.times()
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.pool.stop();
        for thread in self.threads.drain(..) {
            // `next` has already reported a panic of the data set.
            let _ = thread.join();
        }
    }
}

fn check(dataset: &dyn Dataset, plan: &LoaderPlan) -> Result<(), DataError> {
    if plan.batches.samples() != dataset.len() {
        return Err(DataError::PlanMismatch {
            planned: plan.batches.samples(),
            samples: dataset.len(),
        });
    }
    let shards = plan.shards.shards();
    if plan.run.end > shards || plan.run.start > plan.run.end {
        return Err(DataError::NoSuchShards {
            start: plan.run.start,
            end: plan.run.end,
            shards,
        });
    }
    Ok(())
}

/// Returns the decoded bytes of a rank's share of a step.
fn step_bytes(dataset: &dyn Dataset, plan: &LoaderPlan) -> u64 {
    let samples = plan.batches.batch(Step(0)).samples();
    let mine: u64 = plan
        .run
        .clone()
        .map(|shard| plan.shards.samples(Shard(shard), samples))
        .map(|within| within.end - within.start)
        .sum();
    mine.saturating_mul(dataset.description().decoded_bytes())
}

#[cfg(test)]
mod tests;
