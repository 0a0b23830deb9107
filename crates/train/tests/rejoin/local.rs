//! Replicas that train alone between exchanges: the bits do not depend on the workers that compute them, nor on their deaths.

use super::*;

/// Keys of a run of four replicas, whose epochs have a round of three steps and one of a single step.
macro_rules! local {
    ($($more:literal),*) => {
        &[
            "workers.logical_shards=8",
            "train.clip_norm=0.5",
            "sync.kind=local_sgd",
            "sync.inner_steps=3",
            "sync.replicas=4",
            $($more),*
        ]
    };
}

/// The steps of a replica in nine rounds.
const INNER: u64 = 17;

const RESET: RunSettings = RunSettings {
    steps: INNER,
    sets: local!(),
};

const AVERAGE: RunSettings = RunSettings {
    steps: INNER,
    sets: local!(
        "sync.inner_state=average",
        "sync.outer_momentum=0",
        "sync.outer_learning_rate=1",
        "train.average_decay=0.6"
    ),
};

const SHORT: RunSettings = RunSettings {
    steps: INNER,
    sets: local!("sync.inner_state=average", "sync.outer_format=int8_blocks"),
};

/// Each replica keeps the states of its optimizer.
const KEEP: RunSettings = RunSettings {
    steps: INNER,
    sets: local!("sync.inner_state=keep", "elastic.copy_steps=1"),
};

/// Halves of the state are summed in turn, each after six steps, in rounds of three.
const STREAMING: RunSettings = RunSettings {
    steps: INNER,
    sets: local!(
        "sync.inner_state=keep",
        "sync.inner_steps=6",
        "sync.fragments=2",
        "sync.own_share=0.25",
        "elastic.copy_steps=2"
    ),
};

/// The same in a short form with residuals.
const STREAMING_SHORT: RunSettings = RunSettings {
    steps: INNER,
    sets: local!(
        "sync.inner_state=keep",
        "sync.inner_steps=6",
        "sync.fragments=2",
        "compression.codec=int8_blocks",
        "compression.senders=4",
        "elastic.copy_steps=1"
    ),
};

#[test]
fn replicas_have_the_same_bits_on_any_number_of_workers() {
    let runs = [
        (RESET, 2),
        (AVERAGE, 4),
        (SHORT, 4),
        (KEEP, 3),
        (STREAMING, 3),
        (STREAMING_SHORT, 4),
    ];
    for (run, vectors) in runs {
        let one = train_with(run, 1, &[], false, None);
        assert_eq!(steps(&one.events), (0..STEPS).collect::<Vec<_>>());
        let alone = &one.bits[0];
        assert_eq!(alone.0.len(), vectors, "the weights and their states");
        for count in [2, 3, 4] {
            let end = train_with(run, count, &[], false, None);
            assert!(
                end.bits.iter().all(|bits| bits.agree_with(alone)),
                "{count} workers"
            );
            let of = |events: &[Event]| {
                let losses = events.iter().filter_map(|event| match event {
                    Event::InnerLosses { first, losses, .. } => Some((*first, losses.clone())),
                    _ => None,
                });
                losses.collect::<Vec<_>>()
            };
            assert_eq!(of(&end.events), of(&one.events));
            let numbers: Vec<u64> = of(&one.events)
                .iter()
                .flat_map(|(first, losses)| *first..first + losses.len() as u64)
                .collect();
            // The last epoch is cut after its first round.
            assert_eq!(numbers, (0..19).collect::<Vec<_>>());
        }
    }
    assert!(!alone(RESET).agree_with(&alone(AVERAGE)));
    assert!(weights(KEEP) != weights(RESET) && weights(KEEP) != weights(STREAMING));
    let distance = |one: &[f32], other: &[f32]| {
        let pairs = one.iter().zip(other);
        pairs
            .map(|(one, other)| (one - other).abs())
            .fold(0.0, f32::max)
    };
    let exact = RunSettings {
        steps: INNER,
        sets: local!("sync.inner_state=average"),
    };
    let found = distance(&weights(exact), &weights(SHORT));
    assert!((1e-9..1e-3).contains(&found), "rounding is small: {found}");
}

#[test]
fn a_death_at_any_operation_of_a_round_preserves_the_bits() {
    for run in [RESET, AVERAGE, SHORT] {
        let undisturbed = alone(run);
        for operation in 0..12 {
            for id in [0, 2] {
                let end = train_with(run, 3, &[(id, operation)], operation % 4 == 1, None);
                let same = |bits: &Bits| bits.agree_with(&undisturbed);
                assert!(
                    end.bits.len() >= 2 && end.bits.iter().all(same),
                    "{id} at {operation}"
                );
                assert_eq!(steps(&end.events), (0..STEPS).collect::<Vec<_>>());
            }
        }
    }
}

#[test]
fn after_a_death_at_any_operation_all_return_to_the_newest_copy() {
    for run in [KEEP, STREAMING, STREAMING_SHORT] {
        let undisturbed = alone(run);
        let mut loaded = 0;
        for operation in (0..60).step_by(4) {
            for id in [0, 2] {
                let end = train_with(run, 3, &[(id, operation)], false, None);
                let place = format!("{id} at {operation} with {run:?}");
                let same = |bits: &Bits| bits.agree_with(&undisturbed);
                assert!(end.bits.len() >= 2 && end.bits.iter().all(same), "{place}");
                assert_eq!(steps(&end.events), (0..STEPS).collect::<Vec<_>>());
                let is_load = |event: &&Event| matches!(event, Event::CheckpointLoaded { .. });
                loaded += end.events.iter().filter(is_load).count();
            }
        }
        assert!(loaded > 10, "{loaded} with {run:?}");
    }
}

#[test]
fn a_worker_that_misses_the_outcome_of_a_round_applies_its_stored_sum() {
    let undisturbed = alone(AVERAGE);
    let applied = (0..16).map(|operation| miss_outcome(AVERAGE, operation, &undisturbed));
    let applied: usize = applied.sum();
    assert!(applied >= 1, "{applied}");
}

/// Returns the weights of a run of one worker.
fn weights(run: RunSettings) -> Vec<f32> {
    let bits = alone(run);
    bits.0[0]
        .1
        .iter()
        .map(|bits| f32::from_bits(*bits))
        .collect()
}

/// Plain descent in batches that replicas and inner steps divide equally.
macro_rules! descent {
    ($($more:literal),*) => {
        &[
            "data.samples=64",
            "workers.logical_shards=4",
            "optimizer.kind=sgd",
            "train.learning_rate=0.1",
            $($more),*
        ]
    };
}

#[test]
fn averaging_after_every_step_and_a_single_replica_are_plain_training() {
    let plain = weights(RunSettings {
        steps: 12,
        sets: descent!(),
    });
    let start = weights(RunSettings {
        steps: 1,
        sets: descent!("train.learning_rate=0"),
    });
    let distance = |one: &[f32], other: &[f32]| {
        let pairs = one.iter().zip(other);
        pairs
            .map(|(one, other)| (one - other).abs())
            .fold(0.0, f32::max)
    };
    assert!(distance(&plain, &start) > 0.05, "the run learns");
    for sets in [
        descent!(
            "sync.kind=local_sgd",
            "sync.inner_steps=1",
            "sync.replicas=4",
            "sync.outer_learning_rate=1",
            "sync.outer_momentum=0"
        ),
        descent!(
            "sync.kind=local_sgd",
            "sync.inner_steps=2",
            "sync.replicas=1",
            "sync.outer_learning_rate=1",
            "sync.outer_momentum=0"
        ),
    ] {
        let local = weights(RunSettings { steps: 12, sets });
        let found = distance(&plain, &local);
        assert!(found < 1e-5, "{sets:?}: {found}");
    }
    // Replicas that go different ways for two steps do not.
    let apart = weights(RunSettings {
        steps: 12,
        sets: descent!(
            "sync.kind=local_sgd",
            "sync.inner_steps=2",
            "sync.replicas=4",
            "sync.outer_learning_rate=1",
            "sync.outer_momentum=0"
        ),
    });
    assert!((1e-5..0.05).contains(&distance(&plain, &apart)));
}

#[test]
fn a_replica_that_diverges_ends_the_run_on_all_workers_with_its_tensor() {
    let run = RunSettings {
        steps: 12,
        sets: descent!(
            "train.learning_rate=1e30",
            "sync.kind=local_sgd",
            "sync.inner_steps=4",
            "sync.replicas=4"
        ),
    };
    let job = Job::of(run);
    let mut workers = Vec::new();
    let mut listeners = Vec::new();
    for id in 0..2 {
        let (listener, address) = ronde_comm::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        job.members.lock().unwrap().present.push((id, address));
        listeners.push((id, listener));
    }
    for (id, listener) in listeners {
        workers.push(start(&job, id, listener, None));
    }
    for worker in workers {
        let error = worker.join().unwrap().unwrap_err();
        assert!(matches!(error, TrainError::NotFinite { .. }), "{error}");
    }
}
