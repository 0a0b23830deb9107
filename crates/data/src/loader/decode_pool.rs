//! [`DecodePool`]: the threads of a loader and their shared state.
//!
//! Threads have no fixed roles: an idle thread decodes the batch that is due first, or fetches the next unit if at most one
//! other thread is fetching and memory is available. Units are accepted and batches are returned in order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use ronde_clock::Stopwatch;
use ronde_core::background_spans::BackgroundSpans;
use ronde_core::spans::SpanKind;

use super::planner::{BatchPlanner, FetchUnit, PlannedBatch};
use super::{Batch, LoaderTimes};
use crate::dataset::Dataset;
use crate::dataset::FetchedSamples;
use crate::decode::DecodeScratch;
use crate::error::DataError;

/// The maximum number of units fetched at the same time, each by one thread.
const FETCHES: u64 = 2;

/// The limits of a loader.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolLimits {
    /// The number of steps that are decoded before they are due.
    pub steps_ahead: u64,
    /// The maximum number of bytes of units in memory, unless a single unit has more.
    pub memory_bytes: u64,
    /// The maximum number of bytes of a unit, unless a single sample has more.
    pub unit_bytes: u64,
    /// The number of bytes in memory below which fetching has priority over decoding.
    pub fetched_first_bytes: u64,
    /// The number of batches of a step.
    pub shards: usize,
}

/// The state shared by the threads of a loader.
pub(super) struct DecodePool {
    dataset: Arc<dyn Dataset>,
    work: PoolLimits,
    state: Mutex<PoolState>,
    changed: Condvar,
    stop: AtomicBool,
    spans: Arc<BackgroundSpans>,
}

struct PoolState {
    /// The planner; taken by the thread that plans, and removed after an error.
    planner: Option<Box<BatchPlanner>>,
    is_planning: bool,
    /// The number of units that are being fetched.
    fetching: u64,
    /// The number of planned units, and of units accepted in order.
    planned: u64,
    arrived: u64,
    /// FetchedSamples units that wait for an earlier one, by number.
    early: BTreeMap<u64, FetchedUnit>,
    /// The units in memory, with their bytes.
    live: Vec<(Weak<LoadedUnit>, u64)>,
    /// The units that later batches need.
    needed: Vec<Arc<LoadedUnit>>,
    jobs: VecDeque<DecodeJob>,
    /// The decoded batches, by step and index of the shard.
    done: BTreeMap<u64, Vec<Option<Batch>>>,
    failed: Option<(u64, DataError)>,
    /// Set when a thread has panicked, so that its batch will never be complete.
    is_dead: bool,
    due: u64,
    times: LoaderTimes,
}

/// A unit of samples in memory.
struct LoadedUnit {
    first: u64,
    samples: u64,
    fetched: Box<dyn FetchedSamples>,
}

/// A fetched unit.
type FetchedUnit = (FetchUnit, Box<dyn FetchedSamples>);

/// A batch to decode; all of its samples are in memory.
struct DecodeJob {
    planned: PlannedBatch,
    units: Vec<Arc<LoadedUnit>>,
}

enum PoolTask {
    Fetch(Box<BatchPlanner>),
    Decode(DecodeJob),
    End,
}

impl DecodePool {
    pub(super) fn new(
        dataset: Arc<dyn Dataset>,
        planner: BatchPlanner,
        work: PoolLimits,
        spans: Arc<BackgroundSpans>,
    ) -> Self {
        Self {
            dataset,
            work,
            spans,
            state: Mutex::new(PoolState {
                planner: Some(Box::new(planner)),
                is_planning: false,
                fetching: 0,
                planned: 0,
                arrived: 0,
                early: BTreeMap::new(),
                live: Vec::new(),
                needed: Vec::new(),
                jobs: VecDeque::new(),
                done: BTreeMap::new(),
                failed: None,
                is_dead: false,
                due: 0,
                times: LoaderTimes::default(),
            }),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
        }
    }

    /// Runs tasks until there are none left, on the thread with this number.
    pub(super) fn run(&self, thread: u32) {
        let guard = PanicGuard(self);
        let mut scratch = DecodeScratch::default();
        loop {
            match self.next() {
                PoolTask::Fetch(planner) => self.fetch(planner, thread),
                PoolTask::Decode(job) => {
                    let (span, shard) = (self.spans.begin(), job.planned.shard);
                    self.decode(job, &mut scratch);
                    let shard = u64::from(shard.0);
                    self.spans.end(span, SpanKind::Decode, thread, shard);
                }
                PoolTask::End => break,
            }
        }
        std::mem::forget(guard);
    }

    /// Waits for the batches of a step. Returns `None` if they will never be complete.
    pub(super) fn take(&self, index: u64) -> Option<Result<Vec<Batch>, DataError>> {
        let mut state = self.lock();
        state.due = index;
        self.changed.notify_all();
        let mut watch = None;
        let taken = loop {
            if let Some(batches) = state.whole_step(index) {
                break Some(Ok(batches));
            }
            if state.failed.as_ref().is_some_and(|(at, _)| *at <= index) {
                state.is_dead = true;
                break state.failed.take().map(|(_, error)| Err(error));
            }
            if state.is_dead {
                break None;
            }
            watch.get_or_insert_with(Stopwatch::start);
            state = self.wait(state);
        };
        state.times.waited += watch.map(|w| w.elapsed()).unwrap_or_default();
        taken
    }

    pub(super) fn times(&self) -> LoaderTimes {
        self.lock().times
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(self.lock());
        self.changed.notify_all();
    }

    fn next(&self) -> PoolTask {
        let mut state = self.lock();
        loop {
            if self.stop.load(Ordering::Relaxed) || state.is_dead {
                return PoolTask::End;
            }
            let next = if state.held() < self.work.fetched_first_bytes {
                state
                    .next_unit(&self.work)
                    .or_else(|| state.next_job(&self.work))
            } else {
                state
                    .next_job(&self.work)
                    .or_else(|| state.next_unit(&self.work))
            };
            if let Some(next) = next {
                return next;
            }
            let is_fetched = !state.is_planning && state.fetching == 0;
            if state.planner.is_none() && is_fetched && state.jobs.is_empty() {
                return PoolTask::End;
            }
            state = self.wait(state);
        }
    }

    fn fetch(&self, mut planner: Box<BatchPlanner>, thread: u32) {
        let failed_at = planner.next_index();
        let unit = planner.next_unit();
        let mut state = self.lock();
        let number = state.planned;
        state.planned += 1;
        state.fetching += 1;
        state.is_planning = false;
        if state.failed.is_none() {
            state.planner = planner.next_index().map(|_| planner);
        }
        drop(state);
        self.changed.notify_all();
        let (watch, span) = (Stopwatch::start(), self.spans.begin());
        let fetched = self.dataset.fetch(&unit.samples);
        let samples = unit.samples.len() as u64;
        self.spans.end(span, SpanKind::Fetch, thread, samples);
        let mut state = self.lock();
        state.fetching -= 1;
        match fetched {
            Ok(fetched) => {
                state.times.fetching += watch.elapsed();
                state.times.bytes += fetched.bytes();
                state.early.insert(number, (unit, fetched));
                state.accept_units();
            }
            Err(error) => state.fail(failed_at.unwrap_or(0), error),
        }
        drop(state);
        self.changed.notify_all();
    }

    fn decode(&self, job: DecodeJob, scratch: &mut DecodeScratch) {
        let watch = Stopwatch::start();
        let index = job.planned.index;
        let batch = self.batch(job, scratch);
        let mut state = self.lock();
        state.times.decoding += watch.elapsed();
        match batch {
            Ok(Some(batch)) => {
                state.times.skipped += batch.skipped.len() as u64;
                state.times.samples += batch.samples() as u64;
                let shards = self.work.shards;
                let step = state.done.entry(index);
                let step = step.or_insert_with(|| vec![None; shards]);
                // A rank's shards are consecutive numbers.
                let index = batch.shard.0 as usize % shards;
                step[index] = Some(batch);
            }
            Ok(None) => {}
            Err(error) => state.fail(index, error),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Decodes a batch; returns `None` when the loader stops.
    fn batch(
        &self,
        job: DecodeJob,
        scratch: &mut DecodeScratch,
    ) -> Result<Option<Batch>, DataError> {
        let DecodeJob { planned, units } = job;
        let count = planned.sample_ids.len();
        let description = self.dataset.description();
        let elements = description.sample_elements();
        let each = description.targets_per_sample;
        let mut features = vec![0.0; count * elements];
        let mut labels = vec![0; count * each];
        let (mut rows, mut skipped, mut skipped_ids) = (0, Vec::new(), Vec::new());
        for (number, &sample) in (planned.first..).zip(&planned.sample_ids) {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let out = &mut features[rows * elements..(rows + 1) * elements];
            let targets = &mut labels[rows * each..(rows + 1) * each];
            let unit = units.iter().find(|unit| unit.holds(number));
            let unit = unit.expect("a batch is decoded when all of its units are in memory");
            let index = (number - unit.first) as usize;
            let decoded = unit
                .fetched
                .decode(index, planned.epoch, scratch, out, targets);
            match decoded {
                Ok(()) => rows += 1,
                Err(DataError::Record(bad)) if description.bad_records.skip_limit.is_some() => {
                    skipped.push(bad);
                    skipped_ids.push(sample);
                }
                Err(error) => return Err(error),
            }
        }
        features.truncate(rows * elements);
        labels.truncate(rows * each);
        let shape = std::iter::once(rows)
            .chain(description.shape.iter().copied())
            .collect();
        Ok(Some(Batch {
            shard: planned.shard,
            sample_ids: planned.sample_ids,
            shape,
            features,
            labels,
            skipped,
            skipped_ids,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, PoolState>) -> MutexGuard<'a, PoolState> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl PoolState {
    /// Returns the bytes of units in memory.
    fn held(&mut self) -> u64 {
        self.live.retain(|(unit, _)| unit.strong_count() > 0);
        let live: u64 = self.live.iter().map(|(_, bytes)| bytes).sum();
        let early = self.early.values();
        live + early.map(|(_, fetched)| fetched.bytes()).sum::<u64>()
    }

    fn next_unit(&mut self, work: &PoolLimits) -> Option<PoolTask> {
        let held = self.held();
        let with_it = held + (self.fetching + 1) * work.unit_bytes;
        let planner = self.planner.as_ref()?;
        let index = planner.next_index()?;
        // Without a batch to decode, only another unit can complete the current batch.
        let is_needed = held == 0 || self.jobs.is_empty();
        let has_room = with_it <= work.memory_bytes || (is_needed && self.fetching == 0);
        // Samples of in-memory sets are not planned further ahead than they are decoded.
        let is_soon = planner.is_stored() || index < self.due + work.steps_ahead;
        if self.is_planning || self.fetching >= FETCHES || !has_room || !is_soon {
            return None;
        }
        self.is_planning = true;
        self.planner.take().map(PoolTask::Fetch)
    }

    fn next_job(&mut self, work: &PoolLimits) -> Option<PoolTask> {
        let first = self.jobs.front()?;
        if first.planned.index >= self.due + work.steps_ahead {
            return None;
        }
        self.jobs.pop_front().map(PoolTask::Decode)
    }

    /// Accepts the fetched units that are next in order.
    fn accept_units(&mut self) {
        while let Some((unit, fetched)) = self.early.remove(&self.arrived) {
            self.arrived += 1;
            self.arrive(unit, fetched);
        }
    }

    fn arrive(&mut self, unit: FetchUnit, fetched: Box<dyn FetchedSamples>) {
        let held = Arc::new(LoadedUnit {
            first: unit.first,
            samples: unit.samples.len() as u64,
            fetched,
        });
        let bytes = held.fetched.bytes();
        self.live.push((Arc::downgrade(&held), bytes));
        self.needed.push(held);
        for planned in unit.batches {
            let end = planned.first + planned.sample_ids.len() as u64;
            let units = self.needed.iter();
            let units = units
                .filter(|unit| unit.first < end && planned.first < unit.end())
                .cloned()
                .collect();
            self.jobs.push_back(DecodeJob { planned, units });
        }
        self.needed.retain(|held| held.end() > unit.needed_from);
    }

    /// Records an error; the error of the earliest step is returned.
    fn fail(&mut self, index: u64, error: DataError) {
        self.planner = None;
        self.jobs.retain(|job| job.planned.index <= index);
        if self.failed.as_ref().is_none_or(|(at, _)| index < *at) {
            self.failed = Some((index, error));
        }
    }

    fn whole_step(&mut self, index: u64) -> Option<Vec<Batch>> {
        let step = self.done.get(&index)?;
        if step.iter().any(Option::is_none) {
            return None;
        }
        let mut batches: Vec<Batch> = self.done.remove(&index)?.into_iter().flatten().collect();
        batches.sort_by_key(|batch| batch.shard);
        Some(batches)
    }
}

impl LoadedUnit {
    fn end(&self) -> u64 {
        self.first + self.samples
    }

    fn holds(&self, number: u64) -> bool {
        (self.first..self.end()).contains(&number)
    }
}

/// A guard that is dropped only when a thread panics, and then marks the pool as dead.
struct PanicGuard<'a>(&'a DecodePool);

impl Drop for PanicGuard<'_> {
    fn drop(&mut self) {
        self.0.lock().is_dead = true;
        self.0.changed.notify_all();
    }
}

impl fmt::Debug for DecodePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecodePool")
            .field("work", &self.work)
            .finish()
    }
}
