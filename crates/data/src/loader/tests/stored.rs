//! Tests with stored sets: each sample is read once, within the memory limit, in the order of the plan.

use std::sync::Mutex;

use ronde_core::order::Shuffle;

use super::*;
use crate::dataset::Locality;

const SAMPLE_BYTES: u64 = 1000;

/// A record of the fetches from a stored set.
#[derive(Default)]
struct FetchLog {
    /// The samples of each fetch.
    fetches: Mutex<Vec<Vec<u64>>>,
    /// The current and the maximum number of bytes in memory.
    held: AtomicU64,
    most: AtomicU64,
}

/// A synthetic set on a simulated disk.
struct SimulatedDataset {
    samples: u64,
    /// The sample whose record is bad.
    bad: Option<u64>,
    /// The sample that cannot be fetched.
    missing: Option<u64>,
    description: DatasetDescription,
    seen: Arc<FetchLog>,
}

struct InMemory {
    samples: Vec<u64>,
    bad: Option<u64>,
    seen: Arc<FetchLog>,
}

impl Drop for InMemory {
    fn drop(&mut self) {
        self.seen.held.fetch_sub(self.bytes(), Ordering::SeqCst);
    }
}

impl FetchedSamples for InMemory {
    fn decode(
        &self,
        place: usize,
        epoch: Epoch,
        _scratch: &mut DecodeScratch,
        out: &mut [f32],
        targets: &mut [u32],
    ) -> Result<(), DataError> {
        let sample = self.samples[place];
        if self.bad == Some(sample) {
            return Err(DataError::Record(BadRecord {
                file: "made-up".to_owned(),
                offset: sample * SAMPLE_BYTES,
                record: Some(sample),
                problem: "marked as bad".to_owned(),
            }));
        }
        out.copy_from_slice(&[sample as f32, epoch.0 as f32]);
        targets[0] = sample as u32;
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.samples.len() as u64 * SAMPLE_BYTES
    }
}

impl Dataset for SimulatedDataset {
    fn len(&self) -> u64 {
        self.samples
    }
    fn description(&self) -> &DatasetDescription {
        &self.description
    }
    fn fetch(&self, samples: &[u64]) -> Result<Box<dyn FetchedSamples>, DataError> {
        if let Some(missing) = self.missing.filter(|missing| samples.contains(missing)) {
            return Err(DataError::NoSuchSample {
                sample: missing,
                samples: self.samples,
            });
        }
        self.seen.fetches.lock().unwrap().push(samples.to_vec());
        let fetched = InMemory {
            samples: samples.to_vec(),
            bad: self.bad,
            seen: Arc::clone(&self.seen),
        };
        let held = self.seen.held.fetch_add(fetched.bytes(), Ordering::SeqCst);
        let now = held + fetched.bytes();
        self.seen.most.fetch_max(now, Ordering::SeqCst);
        Ok(Box::new(fetched))
    }
}

fn stored(samples: u64) -> (SimulatedDataset, Arc<FetchLog>) {
    let seen = Arc::new(FetchLog::default());
    let set = SimulatedDataset {
        samples,
        bad: None,
        missing: None,
        description: DatasetDescription {
            locality: Some(Locality {
                block_samples: 8,
                window_blocks: 4,
                sample_bytes: SAMPLE_BYTES,
                fetch_bytes: None,
            }),
            ..DatasetDescription::new(vec![2], 1, "stored".to_owned())
        },
        seen: Arc::clone(&seen),
    };
    (set, seen)
}

fn batches(samples: u64, batch_size: u64) -> BatchPlan {
    let shuffle = Shuffle::Blocks {
        block: 8,
        window: 4,
    };
    BatchPlan::new(samples, batch_size, false, shuffle, 5).unwrap()
}

fn start(
    set: SimulatedDataset,
    batches: BatchPlan,
    workers: u32,
    threads: usize,
    memory: u64,
) -> Vec<Loader> {
    let set: Arc<dyn Dataset> = Arc::new(set);
    let shards = plan(3, workers);
    let settings = LoaderSettings {
        threads,
        memory_bytes: memory,
    };
    let load = |rank| {
        let plan = LoaderPlan {
            batches,
            shards: shards.clone(),
            run: shards.run(GroupRank(rank)),
            steps: 0..batches.steps_per_epoch() * 2,
            stride: 1,
        };
        Loader::start(Arc::clone(&set), plan, settings).unwrap()
    };
    (0..workers).map(load).collect()
}

fn drain(loader: &mut Loader) -> Vec<(Step, Batch)> {
    let mut all = Vec::new();
    while let Some(found) = loader.next().unwrap() {
        all.extend(found.batches.into_iter().map(|batch| (found.step, batch)));
    }
    all
}

#[test]
fn batches_depend_on_neither_threads_nor_memory_nor_workers() {
    for samples in [1, 7, 64, 100, 203] {
        let batches = batches(samples, 10);
        let mut usual: Option<Vec<(Step, Batch)>> = None;
        for (workers, threads, kilobytes) in [(1, 1, 1000), (1, 3, 1), (2, 2, 100), (3, 1, 40)] {
            let (mut set, _) = stored(samples);
            if let Some(locality) = &mut set.description.locality {
                locality.fetch_bytes = (threads == 2).then_some(3 * SAMPLE_BYTES);
            }
            let mut all: Vec<(Step, Batch)> =
                start(set, batches, workers, threads, kilobytes * 1000)
                    .iter_mut()
                    .flat_map(drain)
                    .collect();
            all.sort_by_key(|(step, batch)| (*step, batch.shard));
            for (step, batch) in &all {
                let epoch = batches.batch(*step).epoch.0;
                for (row, &sample) in batch.features.chunks(2).zip(&batch.sample_ids) {
                    assert_eq!(row, [sample as f32, epoch as f32]);
                }
                assert_eq!(batch.labels.len(), batch.sample_ids.len());
            }
            assert_eq!(usual.get_or_insert_with(|| all.clone()), &all);
        }
    }
}

#[test]
fn windows_that_fit_in_memory_are_fetched_whole_and_once() {
    let (set, seen) = stored(200);
    // A third of the memory holds a window of 32 samples.
    let mut loaders = start(set, batches(200, 10), 1, 2, 3 * 32 * SAMPLE_BYTES);
    drain(&mut loaders[0]);
    drop(loaders);
    let fetches = seen.fetches.lock().unwrap();
    assert_eq!(fetches.len(), 2 * 7, "200 samples are 25 blocks, 7 windows");
    for samples in &*fetches {
        let mut blocks: Vec<u64> = samples.iter().map(|sample| sample / 8).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert!(blocks.len() <= 4 && samples.len() == blocks.len() * 8);
    }
    let most = seen.most.load(Ordering::SeqCst);
    assert!(most <= 3 * 32 * SAMPLE_BYTES, "{most} bytes were held");
    assert_eq!(seen.held.load(Ordering::SeqCst), 0);
}

#[test]
fn little_memory_gives_small_units() {
    let (set, seen) = stored(100);
    let mut loaders = start(set, batches(100, 10), 1, 1, 15 * SAMPLE_BYTES);
    drain(&mut loaders[0]);
    drop(loaders);
    assert!(
        seen.fetches
            .lock()
            .unwrap()
            .iter()
            .all(|samples| samples.len() <= 5)
    );
    // A step that spans several units needs all of them in memory, and one more may be in flight.
    let most = seen.most.load(Ordering::SeqCst);
    assert!(most <= 20 * SAMPLE_BYTES, "{most} bytes were held");
}

#[test]
fn bad_records_are_skipped_or_returned_as_errors() {
    for skips in [true, false] {
        let (mut set, _) = stored(30);
        set.bad = Some(17);
        set.description.bad_records.skip_limit = skips.then_some(1.0);
        let mut loaders = start(set, batches(30, 10), 1, 2, 1 << 20);
        if skips {
            let all = drain(&mut loaders[0]);
            let of_bad: Vec<&Batch> = all
                .iter()
                .map(|(_, batch)| batch)
                .filter(|batch| batch.sample_ids.contains(&17))
                .collect();
            assert_eq!(of_bad.len(), 2, "once per epoch");
            for batch in of_bad {
                assert_eq!(batch.samples() + 1, batch.sample_ids.len());
                assert_eq!(batch.skipped.len(), 1);
                assert_eq!(batch.skipped[0].record, Some(17));
                assert!(!batch.labels.contains(&17));
                assert_eq!(batch.features.len(), 2 * batch.samples());
            }
            assert_eq!(loaders[0].times().skipped, 2);
        } else {
            let error = loop {
                match loaders[0].next() {
                    Ok(step) => assert!(step.is_some(), "the bad sample is in the first epoch"),
                    Err(error) => break error,
                }
            };
            let expected = "made-up, record 17, at byte 17000: marked as bad";
            assert_eq!(error.to_string(), expected);
        }
    }
}

#[test]
fn a_failed_fetch_is_reported_at_the_first_step_that_needs_it() {
    let (mut set, _) = stored(100);
    let batches = batches(100, 10);
    let order = batches.order(Epoch(0));
    // A unit has at most five samples: this one begins in step 4.
    set.missing = Some(order.sample(45));
    let mut loaders = start(set, batches, 1, 1, 15 * SAMPLE_BYTES);
    for _ in 0..4 {
        assert!(loaders[0].next().unwrap().is_some());
    }
    let error = loaders[0].next().unwrap_err();
    assert!(matches!(error, DataError::NoSuchSample { .. }), "{error}");
    assert!(loaders[0].next().is_err());
}
