//! [`Loader`]: fetches the batches of one rank's shards ahead of the training loop.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ronde_core::batch::BatchPlan;
use ronde_core::shards::ShardPlan;
use ronde_core::{Shard, Step};

use crate::clock::Stopwatch;
use crate::{DataError, Dataset};

/// The samples of one logical shard of one step. May be empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The shard.
    pub shard: Shard,
    /// Which samples of the data set they are: `n` of them.
    pub sample_ids: Vec<u64>,
    /// Shape of the features: `[n, ..sample_shape]`.
    pub shape: Vec<usize>,
    /// The features, row-major.
    pub features: Vec<f32>,
    /// The labels or other targets: `n` times as many as a sample has.
    pub labels: Vec<u32>,
}

impl Batch {
    /// Count of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.sample_ids.len()
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

/// What the thread needs to know.
struct Task {
    dataset: Arc<dyn Dataset>,
    batches: BatchPlan,
    shards: ShardPlan,
    run: Range<u32>,
}

/// Reads the batches of a rank's shards on a thread of its own, a bounded count of steps ahead.
///
/// What it yields depends on the arguments alone, not on time. Dropping it ends the thread after
/// at most one sample more. Memory: `prefetch_steps + 2` steps of the rank's share.
#[derive(Debug)]
pub struct Loader {
    queue: Option<Receiver<Result<StepBatches, DataError>>>,
    thread: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
    due: Range<u64>,
    wait_time: Duration,
}

impl Loader {
    /// Starts to fetch the shards `run` of the steps `steps`, at most `prefetch_steps` (at least
    /// one) ahead of [`Loader::next`].
    ///
    /// # Errors
    /// A plan that was made for another count of samples, shards that it does not have, or no
    /// thread to be had.
    pub fn start(
        dataset: Arc<dyn Dataset>,
        batches: BatchPlan,
        shards: ShardPlan,
        run: Range<u32>,
        steps: Range<u64>,
        prefetch_steps: usize,
    ) -> Result<Self, DataError> {
        if batches.samples() != dataset.len() {
            return Err(DataError::PlanMismatch {
                planned: batches.samples(),
                samples: dataset.len(),
            });
        }
        if run.end > shards.shards() || run.start > run.end {
            return Err(DataError::NoSuchShards {
                start: run.start,
                end: run.end,
                shards: shards.shards(),
            });
        }
        let (sender, queue) = sync_channel(prefetch_steps.max(1));
        let stop = Arc::new(AtomicBool::new(false));
        let task = Task {
            dataset,
            batches,
            shards,
            run,
        };
        let thread = std::thread::Builder::new()
            .name("ronde-prefetch".to_owned())
            .spawn({
                let (stop, steps) = (Arc::clone(&stop), steps.clone());
                move || task.fetch(steps, &sender, &stop)
            })
            .map_err(|cause| DataError::Thread { cause })?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
            stop,
            due: steps,
            wait_time: Duration::ZERO,
        })
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
        if self.due.is_empty() {
            return Ok(None);
        }
        let step = self.due.start;
        let received = self
            .queue
            .as_ref()
            .and_then(|queue| match queue.try_recv() {
                Ok(item) => Some(item),
                Err(TryRecvError::Disconnected) => None,
                Err(TryRecvError::Empty) => {
                    let watch = Stopwatch::start();
                    let item = queue.recv().ok();
                    self.wait_time += watch.elapsed();
                    item
                }
            });
        let batches = received.unwrap_or(Err(DataError::LoaderEnded { step }))?;
        self.due.start += 1;
        Ok(Some(batches))
    }

    /// Total time that [`Loader::next`] had to wait for data.
    #[must_use]
    pub fn wait_time(&self) -> Duration {
        self.wait_time
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Without a receiver a thread that waits for room in the queue wakes up and ends.
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the data set was already told by `next` as an early end.
            let _ = thread.join();
        }
    }
}

impl Task {
    fn fetch(
        &self,
        steps: Range<u64>,
        queue: &SyncSender<Result<StepBatches, DataError>>,
        stop: &AtomicBool,
    ) {
        for step in steps {
            let Some(item) = self.step(Step(step), stop).transpose() else {
                return;
            };
            let failed = item.is_err();
            if queue.send(item).is_err() || failed {
                return;
            }
        }
    }

    /// `None` when told to stop.
    fn step(&self, step: Step, stop: &AtomicBool) -> Result<Option<StepBatches>, DataError> {
        let mut batches = Vec::with_capacity(self.run.len());
        for shard in self.run.clone() {
            let Some(batch) = self.batch(step, Shard(shard), stop)? else {
                return Ok(None);
            };
            batches.push(batch);
        }
        Ok(Some(StepBatches { step, batches }))
    }

    fn batch(
        &self,
        step: Step,
        shard: Shard,
        stop: &AtomicBool,
    ) -> Result<Option<Batch>, DataError> {
        let global = self.batches.batch(step);
        let order = self.batches.order(global.epoch);
        let within = self.shards.samples(shard, global.samples());
        let sample_ids: Vec<u64> = within
            .map(|position| order.sample(global.positions.start + position))
            .collect();
        let elements = self.dataset.sample_elements();
        let mut features = vec![0.0; sample_ids.len() * elements];
        let each = self.dataset.targets_per_sample().max(1);
        let mut labels = vec![0; sample_ids.len() * each];
        let rows = features.chunks_exact_mut(elements);
        let rows = rows.zip(labels.chunks_exact_mut(each));
        for (&sample, (out, targets)) in sample_ids.iter().zip(rows) {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            self.dataset.read_all(sample, out, targets)?;
        }
        let shape = std::iter::once(sample_ids.len())
            .chain(self.dataset.sample_shape().iter().copied())
            .collect();
        Ok(Some(Batch {
            shard,
            sample_ids,
            shape,
            features,
            labels,
        }))
    }
}

#[cfg(test)]
mod tests;
