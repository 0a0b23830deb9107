//! [`Crew`]: what the threads of a loader share, and what each of them does next.
//!
//! There are no roles: whoever is free decodes the batch that is due first, or fetches the next unit when at most one
//! other does and there is room. Units are taken over in order, batches are handed over in order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use super::planner::{PlannedBatch, Planner, Unit};
use super::{Batch, LoaderTimes};
use crate::clock::Stopwatch;
use crate::dataset::Fetched;
use crate::decode::Scratch;
use crate::{DataError, Dataset};

/// Units that are fetched at a time, by as many threads.
const FETCHES: u64 = 2;

/// Limits of a loader.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Steps that are decoded before they are due.
    pub steps_ahead: u64,
    /// Most bytes of units in memory, unless one alone has more.
    pub memory_bytes: u64,
    /// Most bytes of a unit, unless one sample has more.
    pub unit_bytes: u64,
    /// As long as fewer bytes are in memory, fetching comes before decoding.
    pub fetched_first_bytes: u64,
    /// Batches of a step.
    pub shards: usize,
}

/// What the threads share.
pub(super) struct Crew {
    dataset: Arc<dyn Dataset>,
    work: Work,
    state: Mutex<State>,
    changed: Condvar,
    stop: AtomicBool,
}

struct State {
    /// Taken by a thread that plans; gone after an error.
    planner: Option<Box<Planner>>,
    is_planning: bool,
    /// Units that are being fetched.
    fetching: u64,
    /// Units that were planned, and that were taken over in their order.
    planned: u64,
    arrived: u64,
    /// Units that came before one that is still being fetched, by their number.
    early: BTreeMap<u64, Arrival>,
    /// Units that are in memory, with their bytes.
    live: Vec<(Weak<Held>, u64)>,
    /// Units that batches to come need.
    needed: Vec<Arc<Held>>,
    jobs: VecDeque<Job>,
    /// Batches of steps that are due later, by step and place among the shards; an error ends all.
    done: BTreeMap<u64, Vec<Option<Batch>>>,
    failed: Option<(u64, DataError)>,
    /// A thread panicked: what it had in hands never comes.
    is_dead: bool,
    due: u64,
    times: LoaderTimes,
}

/// A unit in memory.
struct Held {
    first: u64,
    samples: u64,
    fetched: Option<Box<dyn Fetched>>,
}

/// A unit that was fetched.
type Arrival = (Unit, Option<Box<dyn Fetched>>);

/// A batch all of whose samples are in memory.
struct Job {
    planned: PlannedBatch,
    units: Vec<Arc<Held>>,
}

enum Next {
    Fetch(Box<Planner>),
    Decode(Job),
    End,
}

impl Crew {
    pub(super) fn new(dataset: Arc<dyn Dataset>, planner: Planner, work: Work) -> Self {
        Self {
            dataset,
            work,
            state: Mutex::new(State {
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

    /// A thread's life.
    pub(super) fn run(&self) {
        let guard = TellsOfPanics(self);
        let mut scratch = Scratch::default();
        loop {
            match self.next() {
                Next::Fetch(planner) => self.fetch(planner),
                Next::Decode(job) => self.decode(job, &mut scratch),
                Next::End => break,
            }
        }
        std::mem::forget(guard);
    }

    /// Waits for the batches of a step. `None`: they never come.
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

    fn next(&self) -> Next {
        let mut state = self.lock();
        loop {
            if self.stop.load(Ordering::Relaxed) || state.is_dead {
                return Next::End;
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
                return Next::End;
            }
            state = self.wait(state);
        }
    }

    fn fetch(&self, mut planner: Box<Planner>) {
        let watch = Stopwatch::start();
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
        let fetched = self.dataset.fetch(&unit.samples);
        let mut state = self.lock();
        state.fetching -= 1;
        match fetched {
            Ok(fetched) => {
                if let Some(fetched) = &fetched {
                    state.times.fetching += watch.elapsed();
                    state.times.bytes += fetched.bytes();
                }
                state.early.insert(number, (unit, fetched));
                state.take_over();
            }
            Err(error) => state.fail(failed_at.unwrap_or(0), error),
        }
        drop(state);
        self.changed.notify_all();
    }

    fn decode(&self, job: Job, scratch: &mut Scratch) {
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
                // Shards of a rank follow each other; the first one is the smallest.
                let place = batch.shard.0 as usize % shards;
                step[place] = Some(batch);
            }
            Ok(None) => {}
            Err(error) => state.fail(index, error),
        }
        drop(state);
        self.changed.notify_all();
    }

    /// `None` when told to stop.
    fn batch(&self, job: Job, scratch: &mut Scratch) -> Result<Option<Batch>, DataError> {
        let Job { planned, units } = job;
        let count = planned.sample_ids.len();
        let elements = self.dataset.sample_elements();
        let each = self.dataset.targets_per_sample().max(1);
        let mut features = vec![0.0; count * elements];
        let mut labels = vec![0; count * each];
        let (mut rows, mut skipped) = (0, Vec::new());
        for (number, &sample) in (planned.first..).zip(&planned.sample_ids) {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let out = &mut features[rows * elements..(rows + 1) * elements];
            let targets = &mut labels[rows * each..(rows + 1) * each];
            let unit = units.iter().find(|unit| unit.holds(number));
            let fetched = unit.and_then(|unit| Some((unit.first, unit.fetched.as_ref()?)));
            let read = match fetched {
                None => self.dataset.read_all(sample, out, targets),
                Some((first, fetched)) => {
                    let place = (number - first) as usize;
                    fetched.decode(place, planned.epoch, scratch, out, targets)
                }
            };
            match read {
                Ok(()) => rows += 1,
                Err(DataError::Record(bad)) if self.dataset.skips_bad_records() => {
                    skipped.push(bad);
                }
                Err(error) => return Err(error),
            }
        }
        features.truncate(rows * elements);
        labels.truncate(rows * each);
        let shape = std::iter::once(rows)
            .chain(self.dataset.sample_shape().iter().copied())
            .collect();
        Ok(Some(Batch {
            shard: planned.shard,
            sample_ids: planned.sample_ids,
            shape,
            features,
            labels,
            skipped,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait(state);
        waited.unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Bytes of units in memory.
    fn held(&mut self) -> u64 {
        self.live.retain(|(unit, _)| unit.strong_count() > 0);
        let live: u64 = self.live.iter().map(|(_, bytes)| bytes).sum();
        let early = self.early.values();
        live + early.map(|(_, fetched)| bytes_of(fetched)).sum::<u64>()
    }

    fn next_unit(&mut self, work: &Work) -> Option<Next> {
        let held = self.held();
        let with_it = held + (self.fetching + 1) * work.unit_bytes;
        let planner = self.planner.as_ref()?;
        let index = planner.next_index()?;
        // Without jobs only another unit makes the batch complete that is begun.
        let is_needed = held == 0 || self.jobs.is_empty();
        let has_room = with_it <= work.memory_bytes || (is_needed && self.fetching == 0);
        // Samples that are in memory anyway are planned no further ahead than they are decoded.
        let is_soon = planner.is_stored() || index < self.due + work.steps_ahead;
        if self.is_planning || self.fetching >= FETCHES || !has_room || !is_soon {
            return None;
        }
        self.is_planning = true;
        self.planner.take().map(Next::Fetch)
    }

    fn next_job(&mut self, work: &Work) -> Option<Next> {
        let first = self.jobs.front()?;
        if first.planned.index >= self.due + work.steps_ahead {
            return None;
        }
        self.jobs.pop_front().map(Next::Decode)
    }

    /// Takes over the units that are next.
    fn take_over(&mut self) {
        while let Some((unit, fetched)) = self.early.remove(&self.arrived) {
            self.arrived += 1;
            self.arrive(unit, fetched);
        }
    }

    fn arrive(&mut self, unit: Unit, fetched: Option<Box<dyn Fetched>>) {
        let held = Arc::new(Held {
            first: unit.first,
            samples: unit.samples.len() as u64,
            fetched,
        });
        let bytes = bytes_of(&held.fetched);
        self.live.push((Arc::downgrade(&held), bytes));
        self.needed.push(held);
        for planned in unit.batches {
            let end = planned.first + planned.sample_ids.len() as u64;
            let units = self.needed.iter();
            let units = units
                .filter(|unit| unit.first < end && planned.first < unit.end())
                .cloned()
                .collect();
            self.jobs.push_back(Job { planned, units });
        }
        self.needed.retain(|held| held.end() > unit.needed_from);
    }

    /// The first error in the order of the steps counts.
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

fn bytes_of(fetched: &Option<Box<dyn Fetched>>) -> u64 {
    fetched.as_ref().map_or(0, |fetched| fetched.bytes())
}

impl Held {
    fn end(&self) -> u64 {
        self.first + self.samples
    }

    fn holds(&self, number: u64) -> bool {
        (self.first..self.end()).contains(&number)
    }
}

/// Dropped by a panic of the data set only.
struct TellsOfPanics<'a>(&'a Crew);

impl Drop for TellsOfPanics<'_> {
    fn drop(&mut self) {
        self.0.lock().is_dead = true;
        self.0.changed.notify_all();
    }
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("work", &self.work).finish()
    }
}
