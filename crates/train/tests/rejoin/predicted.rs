//! Stages that update with predicted gradients: the bits do not depend on the workers that compute them, nor on their deaths.

use super::*;

/// Keys of a run of three stages, whose epochs have a round of three batches and one of a single batch.
macro_rules! predicted {
    ($($more:literal),*) => {
        &[
            "workers.logical_shards=2",
            "sync.kind=synthetic_gradients",
            "sync.stages=3",
            "sync.round_steps=3",
            "sync.gradient_delay=2",
            "sync.hidden=8",
            $($more),*
        ]
    };
}

/// The batches of nine rounds.
const BATCHES: u64 = 17;

const ADAM: RunSettings = RunSettings {
    steps: BATCHES,
    sets: predicted!("train.clip_norm=0.5", "train.average_decay=0.6"),
};

/// A delay that is longer than a round, and predictors without a hidden layer.
const LATE: RunSettings = RunSettings {
    steps: BATCHES,
    sets: predicted!(
        "optimizer.kind=sgd",
        "optimizer.momentum=0.9",
        "sync.gradient_delay=7",
        "sync.hidden=0",
        "sync.borders=[\"layer2\", \"output\"]"
    ),
};

/// Each stage waits for the gradient of each batch.
const PROMPT: RunSettings = RunSettings {
    steps: BATCHES,
    sets: predicted!("sync.gradient_delay=1", "train.precision=bf16"),
};

fn predictions(events: &[Event]) -> Vec<(u64, Vec<f64>, Vec<f64>)> {
    // A round that is recorded again by another rank has the same numbers.
    let found = events.iter().filter_map(|event| match event {
        Event::GradientsPredicted {
            step,
            cosines,
            errors,
        } => Some((step.0, (cosines.clone(), errors.clone()))),
        _ => None,
    });
    let found: BTreeMap<u64, (Vec<f64>, Vec<f64>)> = found.collect();
    let found = found.into_iter();
    found
        .map(|(step, (cosines, errors))| (step, cosines, errors))
        .collect()
}

#[test]
fn stages_have_the_same_bits_on_any_number_of_workers() {
    for (run, vectors) in [(ADAM, 7), (LATE, 5), (PROMPT, 6)] {
        let one = train_with(run, 1, &[], false, None);
        assert_eq!(steps(&one.events), (0..STEPS).collect::<Vec<_>>());
        let alone = &one.bits[0];
        // The weights, states of the optimizer, the average of the weights, and three of the predictors.
        assert_eq!(alone.0.len(), vectors);
        let expected = predictions(&one.events);
        assert_eq!(expected.len() as u64, STEPS);
        assert!(
            expected
                .iter()
                .all(|(_, cosines, errors)| cosines.len() == 2 && errors.len() == 2)
        );
        // The first predictions are zeros; later ones are not.
        assert!(
            expected
                .last()
                .unwrap()
                .1
                .iter()
                .all(|cosine| *cosine != 0.0)
        );
        for count in [2, 3] {
            let end = train_with(run, count, &[], false, None);
            assert!(
                end.bits.iter().all(|bits| bits.agree_with(alone)),
                "{count} workers"
            );
            assert_eq!(predictions(&end.events), expected);
            let losses = |events: &[Event]| {
                let losses = events.iter().filter_map(|event| match event {
                    Event::InnerLosses { first, losses, .. } => Some((*first, losses.clone())),
                    _ => None,
                });
                losses.collect::<Vec<_>>()
            };
            assert_eq!(losses(&end.events), losses(&one.events));
            let numbers: Vec<u64> = losses(&one.events)
                .iter()
                .flat_map(|(first, losses)| *first..first + losses.len() as u64)
                .collect();
            // The last epoch is cut after its first round.
            assert_eq!(numbers, (0..19).collect::<Vec<_>>());
        }
    }
    assert!(!alone(ADAM).agree_with(&alone(PROMPT)));
}

#[test]
fn a_death_at_any_operation_of_a_round_preserves_the_bits() {
    for run in [ADAM, LATE] {
        let undisturbed = alone(run);
        // A round has about thirty: messages between stages, then the state of each stage, and the vote.
        for operation in (0..64).step_by(3) {
            for id in [0, 1, 2] {
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
fn a_worker_that_misses_the_outcome_of_a_round_applies_its_stored_state() {
    let undisturbed = alone(ADAM);
    let applied = (16..44).map(|operation| miss_outcome(ADAM, operation, &undisturbed));
    let applied: usize = applied.sum();
    assert!(applied >= 1, "{applied}");
}

#[test]
fn a_stage_that_diverges_ends_the_run_on_all_workers_with_its_tensor() {
    let run = RunSettings {
        steps: BATCHES,
        sets: predicted!("optimizer.kind=sgd", "train.learning_rate=1e30"),
    };
    let mut found = Vec::new();
    for count in [1, 3] {
        let job = Job::of(run);
        let (mut workers, mut listeners) = (Vec::new(), Vec::new());
        for id in 0..count {
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
            found.push(error.to_string());
        }
    }
    assert!(found.iter().all(|error| *error == found[0]), "{found:?}");
}
