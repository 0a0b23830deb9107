//! [`Loader`]: fetches the batches of one rank's shards ahead of the training loop.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use ronde_core::batch::BatchPlan;
use ronde_core::shards::ShardPlan;
use ronde_core::{Shard, Step};

use crate::format::BadRecord;
use crate::{DataError, Dataset};

mod crew;
mod planner;
mod times;

use crew::{Crew, Work};
use planner::Planner;
pub use times::LoaderTimes;

use crate::clock::Stopwatch;

/// Share of [`LoaderSettings::memory_bytes`] that one piece of stored samples may take: one is decoded, one is ready,
/// one is being fetched.
const UNITS_IN_MEMORY: u64 = 3;
/// Share of [`LoaderSettings::memory_bytes`] that decoded steps may take.
const DECODED_SHARE: u64 = 4;
/// Fewest and most steps that are decoded ahead.
const STEPS_AHEAD: std::ops::RangeInclusive<u64> = 2..=16;

/// The samples of one logical shard of one step. May be empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The shard.
    pub shard: Shard,
    /// Which samples of the data set it stands for, those that were left out among them.
    pub sample_ids: Vec<u64>,
    /// Shape of the features: `[n, ..sample_shape]`.
    pub shape: Vec<usize>,
    /// The features of `n` samples, row-major.
    pub features: Vec<f32>,
    /// The labels or other targets: `n` times as many as a sample has.
    pub labels: Vec<u32>,
    /// Why the samples that are missing were left out.
    pub skipped: Vec<BadRecord>,
}

impl Batch {
    /// Count of samples that are there.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.shape.first().copied().unwrap_or(0)
    }
}

/// What one rank computes in one step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepBatches {
    /// The step.
    pub step: Step,
    /// One batch for each shard of the rank, in the order of the shards; may be empty batches.
    pub batches: Vec<Batch>,
}

/// What a loader is to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoaderPlan {
    /// Which samples make up which step.
    pub batches: BatchPlan,
    /// How a step is dealt to ranks.
    pub shards: ShardPlan,
    /// The shards of this rank.
    pub run: Range<u32>,
    /// The steps, as far as [`LoaderPlan::stride`] does not leave them out.
    pub steps: Range<u64>,
    /// 1: every step from the first one on; `n`: every `n`-th.
    pub stride: u64,
}

impl LoaderPlan {
    /// Count of steps.
    fn count(&self) -> u64 {
        let steps = self.steps.end.saturating_sub(self.steps.start);
        steps.div_ceil(self.stride.max(1))
    }

    fn step(&self, index: u64) -> Step {
        Step(self.steps.start + index * self.stride.max(1))
    }
}

/// Threads and memory of a loader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoaderSettings {
    /// Threads that fetch and decode; at least one.
    pub threads: usize,
    /// Memory for samples that wait, as they are stored and decoded.
    pub memory_bytes: u64,
}

impl Default for LoaderSettings {
    fn default() -> Self {
        Self {
            threads: 1,
            memory_bytes: 256 << 20,
        }
    }
}

/// Reads the batches of a rank's shards on threads of its own, ahead of the steps that use them.
///
/// What it yields depends on the data set and the plan alone, not on time or threads. Dropping it ends the threads
/// after at most one sample, or one fetch, more.
///
/// Memory: [`LoaderSettings::memory_bytes`] and a quarter for samples as they are stored and decoded; at least one piece
/// and two steps, however large they are.
#[derive(Debug)]
pub struct Loader {
    crew: Arc<Crew>,
    threads: Vec<JoinHandle<()>>,
    plan: LoaderPlan,
    next: u64,
    watch: Stopwatch,
}

impl Loader {
    /// Starts to fetch.
    ///
    /// # Errors
    /// A plan that was made for another count of samples, shards that it does not have, or no
    /// thread to be had.
    pub fn start(
        dataset: Arc<dyn Dataset>,
        plan: LoaderPlan,
        settings: LoaderSettings,
    ) -> Result<Self, DataError> {
        check(&*dataset, &plan)?;
        let step_bytes = step_bytes(&*dataset, &plan);
        let unit_bytes = settings.memory_bytes / UNITS_IN_MEMORY;
        let near_bytes = dataset.locality().and_then(|locality| locality.fetch_bytes);
        let unit_bytes = near_bytes.map_or(unit_bytes, |bytes| bytes.min(unit_bytes));
        let ahead = settings.memory_bytes / DECODED_SHARE / step_bytes.max(1);
        let work = Work {
            steps_ahead: ahead.clamp(*STEPS_AHEAD.start(), *STEPS_AHEAD.end()),
            memory_bytes: settings.memory_bytes,
            unit_bytes,
            fetched_first_bytes: match (settings.threads, near_bytes) {
                (..=1, _) => 0,
                (_, Some(_)) => UNITS_IN_MEMORY * unit_bytes,
                (_, None) => settings.memory_bytes,
            },
            shards: plan.run.len(),
        };
        let planner = Planner::new(&*dataset, plan.clone(), work.unit_bytes);
        let crew = Arc::new(Crew::new(dataset, planner, work));
        let mut loader = Self {
            crew,
            threads: Vec::new(),
            plan,
            next: 0,
            watch: Stopwatch::start(),
        };
        // Who has no shards has nothing to fetch.
        let threads = if loader.plan.run.is_empty() {
            0
        } else {
            settings.threads.max(1)
        };
        for number in 0..threads {
            let crew = Arc::clone(&loader.crew);
            let thread = std::thread::Builder::new()
                .name(format!("ronde-data-{number}"))
                .spawn(move || crew.run())
                .map_err(|cause| DataError::Thread { cause })?;
            loader.threads.push(thread);
        }
        Ok(loader)
    }

    /// The batches of the next step; `None` after the last one. Waits when they are not there yet.
    ///
    /// # Errors
    /// What the data set said; every call after an error is an error.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator of results would hide that the first error is the end"
    )]
    pub fn next(&mut self) -> Result<Option<StepBatches>, DataError> {
        if self.next >= self.plan.count() {
            return Ok(None);
        }
        let step = self.plan.step(self.next);
        let batches = if self.plan.run.is_empty() {
            Vec::new()
        } else {
            let taken = self.crew.take(self.next);
            taken.unwrap_or(Err(DataError::LoaderEnded { step: step.0 }))?
        };
        self.next += 1;
        Ok(Some(StepBatches { step, batches }))
    }

    /// What it has done up to now, and how long it let the training wait.
    #[must_use]
    pub fn times(&self) -> LoaderTimes {
        LoaderTimes {
            threads: self.threads.len(),
            elapsed: self.watch.elapsed(),
            ..self.crew.times()
        }
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.crew.stop();
        for thread in self.threads.drain(..) {
            // A panic of the data set was already told by `next` as an early end.
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

/// Bytes of a rank's share of a whole step, decoded.
fn step_bytes(dataset: &dyn Dataset, plan: &LoaderPlan) -> u64 {
    let samples = plan.batches.batch(Step(0)).samples();
    let mine: u64 = plan
        .run
        .clone()
        .map(|shard| plan.shards.samples(Shard(shard), samples))
        .map(|within| within.end - within.start)
        .sum();
    let each = dataset.sample_elements() + dataset.targets_per_sample();
    mine.saturating_mul(4 * each as u64)
}

#[cfg(test)]
mod tests;
