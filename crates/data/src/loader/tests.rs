//! Tests of the loader: every sample once per epoch, in an order independent of the number of workers; errors and shutdown.

use std::sync::atomic::{AtomicU64, Ordering};

use ronde_core::{Epoch, GroupRank, WorldSize};

use super::*;
use crate::dataset::{DatasetDescription, FetchedSamples};
use crate::decode::DecodeScratch;
use crate::memory::MemoryDataset;

mod stored;

fn dataset(samples: u64) -> Arc<dyn Dataset> {
    let features = (0..samples).flat_map(|s| [s as f32, -(s as f32)]).collect();
    let labels = (0..samples as u32).map(|s| s % 5).collect();
    Arc::new(MemoryDataset::new(features, labels, vec![1, 2], 5).unwrap())
}

fn plan(shards: u32, workers: u32) -> ShardPlan {
    ShardPlan::new(shards, WorldSize::new(workers).unwrap()).unwrap()
}

/// Returns all batches of some steps, in the order of steps and shards, from one loader per worker.
fn load(batches: BatchPlan, shards: u32, workers: u32, steps: Range<u64>) -> Vec<(Step, Batch)> {
    let set = dataset(batches.samples());
    let plan = plan(shards, workers);
    let mut all = Vec::new();
    for rank in 0..workers {
        let run = plan.run(GroupRank(rank));
        let set = Arc::clone(&set);
        let plan = LoaderPlan {
            batches,
            shards: plan.clone(),
            run: run.clone(),
            steps: steps.clone(),
            stride: 1,
        };
        let settings = LoaderSettings {
            threads: 1 + (rank as usize + shards as usize) % 3,
            ..LoaderSettings::default()
        };
        let mut loader = Loader::start(set, plan, settings).unwrap();
        for step in steps.clone() {
            let found = loader.next().unwrap().unwrap();
            assert_eq!(found.step, Step(step));
            let numbers: Vec<u32> = found.batches.iter().map(|batch| batch.shard.0).collect();
            assert_eq!(numbers, run.clone().collect::<Vec<_>>());
            all.extend(found.batches.into_iter().map(|batch| (Step(step), batch)));
        }
        assert_eq!(loader.next().unwrap(), None);
        assert_eq!(
            loader.next().unwrap(),
            None,
            "calls after the end return None"
        );
    }
    all.sort_by_key(|(step, batch)| (*step, batch.shard));
    all
}

fn check_content(batch: &Batch) {
    let n = batch.samples();
    assert_eq!(batch.shape, [n, 1, 2]);
    assert_eq!((batch.features.len(), batch.labels.len()), (2 * n, n));
    for (index, &sample) in batch.sample_ids.iter().enumerate() {
        assert_eq!(batch.features[2 * index], sample as f32);
        assert_eq!(batch.features[2 * index + 1], -(sample as f32));
        assert_eq!(batch.labels[index], sample as u32 % 5);
    }
}

#[test]
fn the_inner_steps_of_rounds_follow_each_other_replica_by_replica() {
    // An epoch has two complete rounds of 2 inner steps and one of a single inner step.
    let batches = BatchPlan::new(43, 20, false, true, 3).unwrap();
    let rounds = RoundPlan::new(batches, (10, 2), 3, 2).unwrap();
    for workers in [1, 2, 3, 4] {
        let size = WorldSize::new(workers).unwrap();
        let replicas = ShardPlan::with_spares(3, size, workers.min(3)).unwrap();
        let mut used = Vec::new();
        for rank in 0..workers {
            let run = replicas.run(GroupRank(rank));
            let plan = LoaderPlan {
                batches,
                shards: replicas.clone(),
                run: run.clone(),
                steps: 1..7,
                stride: 1,
            };
            let settings = LoaderSettings {
                threads: 1 + rank as usize,
                ..LoaderSettings::default()
            };
            let spans = (Arc::new(BackgroundSpans::off()), 0);
            let mut loader =
                Loader::start_rounds(dataset(43), plan, rounds, settings, spans).unwrap();
            for step in rounds.walk(1..7, run) {
                let found = loader.next().unwrap().unwrap();
                assert_eq!(found.step, rounds.unique(step));
                let order = batches.order(batches.batch(step.round).epoch);
                for (part, batch) in (0..).zip(&found.batches) {
                    check_content(batch);
                    assert_eq!(batch.shard, Shard(part));
                    let positions = rounds.positions(step, part);
                    let expected: Vec<u64> = positions.map(|p| order.sample(p)).collect();
                    assert_eq!(batch.sample_ids, expected);
                    used.push((step.round, batch.sample_ids.clone()));
                }
                assert_eq!(found.batches.len(), 2);
            }
            assert_eq!(loader.next().unwrap(), None);
        }
        let second_epoch = used.iter().filter(|(round, _)| (3..6).contains(&round.0));
        let mut samples: Vec<u64> = second_epoch.flat_map(|(_, ids)| ids.clone()).collect();
        samples.sort_unstable();
        assert_eq!(samples, (0..43).collect::<Vec<_>>(), "{workers} workers");
    }
}

#[test]
fn rounds_of_another_number_of_replicas_are_refused() {
    let batches = BatchPlan::new(40, 20, false, true, 3).unwrap();
    let rounds = RoundPlan::new(batches, (10, 2), 3, 1).unwrap();
    let plan = LoaderPlan {
        batches,
        shards: plan(4, 2),
        run: 0..2,
        steps: 0..2,
        stride: 1,
    };
    let spans = (Arc::new(BackgroundSpans::off()), 0);
    let started = Loader::start_rounds(dataset(40), plan, rounds, LoaderSettings::default(), spans);
    assert!(matches!(started, Err(DataError::NoSuchShards { .. })));
}

#[test]
fn every_sample_appears_once_per_epoch_on_any_number_of_workers() {
    for (samples, batch_size) in (1..=9).flat_map(|s| [1, 2, 3, 4, 7].map(|b| (s, b))) {
        for drop_last in [false, true] {
            let Some(batches) = BatchPlan::new(samples, batch_size, drop_last, true, 11) else {
                continue;
            };
            let steps = batches.steps_per_epoch();
            for shards in [1, 2, 3, 5] {
                let alone = load(batches, shards, 1, 0..2 * steps);
                alone.iter().for_each(|(_, batch)| check_content(batch));
                for epoch in 0..2 {
                    let range = epoch * steps..(epoch + 1) * steps;
                    let mut used: Vec<u64> = alone
                        .iter()
                        .filter(|(step, _)| range.contains(&step.0))
                        .flat_map(|(_, batch)| batch.sample_ids.iter().copied())
                        .collect();
                    assert_eq!(used.len() as u64, batches.samples_per_epoch());
                    used.sort_unstable();
                    used.dedup();
                    assert_eq!(used.len() as u64, batches.samples_per_epoch());
                }
                for workers in 2..=shards {
                    assert_eq!(load(batches, shards, workers, 0..2 * steps), alone);
                }
            }
        }
    }
}

#[test]
fn the_order_is_that_of_the_plan_and_can_start_at_any_step() {
    let batches = BatchPlan::new(10, 4, false, true, 3).unwrap();
    let from_start = load(batches, 2, 1, 0..9);
    let resumed = load(batches, 2, 2, 5..9);
    assert_eq!(resumed, from_start[10..]);
    let unshuffled = BatchPlan::new(10, 4, false, false, 3).unwrap();
    let ids: Vec<u64> = load(unshuffled, 3, 1, 0..3)
        .into_iter()
        .flat_map(|(_, batch)| batch.sample_ids)
        .collect();
    assert_eq!(ids, (0..10).collect::<Vec<_>>());
}

/// A set that fails or panics at one sample and counts its reads.
struct FaultyDataset {
    bad: u64,
    panics: bool,
    reads: Arc<AtomicU64>,
    description: DatasetDescription,
}

impl Dataset for FaultyDataset {
    fn len(&self) -> u64 {
        1000
    }
    fn description(&self) -> &DatasetDescription {
        &self.description
    }
    fn fetch(&self, samples: &[u64]) -> Result<Box<dyn FetchedSamples>, DataError> {
        Ok(Box::new(FaultySamples {
            samples: samples.to_vec(),
            bad: self.bad,
            panics: self.panics,
            reads: Arc::clone(&self.reads),
        }))
    }
}

struct FaultySamples {
    samples: Vec<u64>,
    bad: u64,
    panics: bool,
    reads: Arc<AtomicU64>,
}

impl FetchedSamples for FaultySamples {
    fn decode(
        &self,
        index: usize,
        _: Epoch,
        _: &mut DecodeScratch,
        _: &mut [f32],
        _: &mut [u32],
    ) -> Result<(), DataError> {
        let sample = self.samples[index];
        self.reads.fetch_add(1, Ordering::SeqCst);
        assert!(
            !self.panics || sample != self.bad,
            "a panic requested by the test"
        );
        if sample == self.bad {
            return Err(DataError::NoSuchSample {
                sample,
                samples: 1000,
            });
        }
        Ok(())
    }
    fn bytes(&self) -> u64 {
        0
    }
}

fn odd(bad: u64, panics: bool) -> (Loader, Arc<AtomicU64>) {
    let reads = Arc::new(AtomicU64::new(0));
    let set = Arc::new(FaultyDataset {
        bad,
        panics,
        reads: Arc::clone(&reads),
        description: DatasetDescription::new(vec![1], 1, "odd".to_owned()),
    });
    let batches = BatchPlan::new(1000, 10, false, false, 0).unwrap();
    let plan = LoaderPlan {
        batches,
        shards: plan(2, 1),
        run: 0..2,
        steps: 0..100,
        stride: 1,
    };
    let loader = Loader::start(set, plan, LoaderSettings::default()).unwrap();
    (loader, reads)
}

#[test]
fn an_error_is_returned_at_its_step_and_ends_the_loader() {
    let (mut loader, _) = odd(25, false);
    assert!(loader.next().unwrap().is_some());
    assert!(loader.next().unwrap().is_some());
    let error = loader.next().unwrap_err();
    assert!(matches!(error, DataError::NoSuchSample { sample: 25, .. }));
    let again = loader.next().unwrap_err();
    assert!(matches!(again, DataError::LoaderEnded { step: 2 }));
}

#[test]
fn a_panic_of_a_data_set_becomes_an_error() {
    let (mut loader, _) = odd(12, true);
    assert!(loader.next().unwrap().is_some());
    let error = loader.next().unwrap_err();
    assert!(matches!(error, DataError::LoaderEnded { step: 1 }));
}

#[test]
fn the_queue_is_bounded_and_dropping_ends_the_thread() {
    let (mut loader, reads) = odd(u64::MAX, false);
    assert!(loader.next().unwrap().is_some());
    drop(loader);
    let read = reads.load(Ordering::SeqCst);
    assert!(read <= 10 * (16 + 1), "{read} samples read ahead");
    assert_eq!(Arc::strong_count(&reads), 1, "the thread has ended");
}

#[test]
fn invalid_plans_are_rejected() {
    let batches = BatchPlan::new(9, 2, false, true, 0).unwrap();
    let start = |samples, run| {
        let plan = LoaderPlan {
            batches,
            shards: plan(4, 2),
            run,
            steps: 0..1,
            stride: 1,
        };
        Loader::start(dataset(samples), plan, LoaderSettings::default())
    };
    assert!(matches!(
        start(8, 0..2),
        Err(DataError::PlanMismatch {
            planned: 9,
            samples: 8
        })
    ));
    let beyond = start(9, 2..5).unwrap_err();
    assert_eq!(
        beyond.to_string(),
        "no shards 2..5: the plan has 4 logical shards"
    );
    let mut nothing = start(9, 1..1).unwrap();
    assert_eq!(nothing.next().unwrap().unwrap().batches, []);
}
