//! Replicas that average in pairs: every sample counts once, whichever workers die, and a single worker computes the bits of plain
//! training.

use super::*;

/// Keys of a run whose epochs have a round of seven updates and one of a single update.
macro_rules! gossip {
    ($($more:expr),*) => {
        &[
            "train.clip_norm=0.5",
            "train.global_batch_size=8",
            "sync.kind=gossip",
            "sync.round_updates=7",
            $($more),*
        ]
    };
}

/// Two epochs.
const UPDATES: u64 = 16;

const PLAIN_RUN: RunSettings = RunSettings {
    steps: UPDATES,
    sets: &["train.clip_norm=0.5", "train.global_batch_size=8"],
};

const EACH: RunSettings = RunSettings {
    steps: UPDATES,
    sets: gossip!(),
};

const SECOND: RunSettings = RunSettings {
    steps: UPDATES,
    sets: gossip!("sync.gossip_steps=2", "optimizer.kind=sgd"),
};

/// Checks the events of two epochs: each sample was used once, and the exchanges of each round are known.
fn check_events(events: &[Event]) {
    let verdicts: Vec<(u64, u64, u64)> = events
        .iter()
        .filter_map(|event| match event {
            Event::EpochFinished {
                used_once,
                missing,
                repeated,
                ..
            } => Some((*used_once, *missing, *repeated)),
            _ => None,
        })
        .collect();
    assert!(verdicts.len() >= 2, "{verdicts:?}");
    assert!(
        verdicts.iter().all(|verdict| *verdict == (61, 0, 0)),
        "{verdicts:?}"
    );
    assert_eq!(steps(events), [0, 1, 2, 3]);
    // A round that is recorded again by another rank has the same numbers.
    let mut rounds = BTreeMap::new();
    for event in events {
        if let Event::ReplicasAveraged {
            step,
            distance,
            updates,
            ..
        } = event
        {
            assert!(distance.is_finite() && *distance >= 0.0);
            rounds.insert(step.0, updates.iter().sum::<u64>());
        }
    }
    assert_eq!(rounds.into_values().collect::<Vec<_>>(), [7, 1, 7, 1]);
}

fn check_job(end: &JobResult, least: u32) {
    assert!(end.bits.len() as u32 >= least, "{} workers", end.bits.len());
    let first = &end.bits[0];
    assert!(end.bits.iter().all(|bits| bits.agree_with(first)));
    check_events(&end.events);
}

#[test]
fn one_worker_has_the_bits_of_plain_training() {
    let plain = alone(PLAIN_RUN);
    let end = train_with(EACH, 1, &[], false, None);
    assert!(end.bits[0].agree_with(&plain));
    check_events(&end.events);
    let exchanged = |event: &Event| match event {
        Event::ReplicasAveraged {
            distance,
            exchanges,
            ..
        } => *exchanges > 0 || *distance > 0.0,
        _ => false,
    };
    assert!(!end.events.iter().any(exchanged));
}

#[test]
fn workers_that_average_in_pairs_use_each_sample_once() {
    for (run, count) in [(EACH, 2), (EACH, 3), (SECOND, 4), (EACH, 7)] {
        let end = train_with(run, count, &[], false, None);
        check_job(&end, count);
    }
}

#[test]
fn exchanges_send_the_weights_both_ways_at_most() {
    let end = train_with(EACH, 4, &[], false, None);
    let (held, weights) = &end.bits[0].0[0];
    assert_eq!(held.len(), weights.len());
    let each = 2 * 4 * weights.len() as u64;
    let mut sums = (0, 0);
    for event in &end.events {
        if let Event::ReplicasAveraged {
            exchanges,
            missed,
            exchanged_bytes,
            ..
        } = event
        {
            let (least, most) = (exchanges * each, (exchanges + missed) * each);
            assert!(
                (least..=most).contains(exchanged_bytes),
                "{event:?}, {each}"
            );
            sums = (sums.0 + exchanges, sums.1 + missed);
        }
    }
    assert!(sums.0 > 0, "{sums:?}");
}

#[test]
fn frozen_parameters_keep_their_bits() {
    const FROZEN: &str = "train.parameter_groups=[{ tensors = \"*\", frozen = true }]";
    let plain = RunSettings {
        steps: UPDATES,
        sets: &["train.global_batch_size=8", FROZEN],
    };
    let run = RunSettings {
        steps: UPDATES,
        sets: gossip!(FROZEN),
    };
    let initial = alone(plain);
    let end = train_with(run, 3, &[], false, None);
    assert!(end.bits.iter().all(|bits| bits.agree_with(&initial)));
}

#[test]
fn a_death_at_any_operation_of_a_round_costs_no_sample() {
    for (run, count) in [(EACH, 3), (SECOND, 4)] {
        for operation in (0..90).step_by(4) {
            for id in [0, count - 1] {
                let replaced = operation % 8 == 0;
                let end = train_with(run, count, &[(id, operation)], replaced, None);
                check_job(&end, count - 1);
            }
        }
    }
}

#[test]
fn a_third_of_the_workers_may_die() {
    for operation in (10..70).step_by(10) {
        for deaths in [
            [(0, operation), (1, operation + 1)],
            [(2, operation), (5, operation)],
        ] {
            let end = train_with(EACH, 6, &deaths, operation % 20 == 0, None);
            check_job(&end, 4);
        }
    }
}

#[test]
fn a_worker_that_misses_the_outcome_of_a_vote_has_the_same_state() {
    for operation in 0..40 {
        let job = Job::of(EACH);
        let mut listeners = Vec::new();
        for id in 0..3 {
            let (listener, address) = ronde_comm::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
            listeners.push(listener);
            let mut members = job.members.lock().unwrap();
            members.present.push((id, address));
            members.begins_on_request = true;
        }
        let fault = |id| (id == 1).then_some(InjectedFault::MissesOutcome(operation));
        let workers: Vec<_> = listeners
            .into_iter()
            .zip(0..)
            .map(|(listener, id)| start(&job, id, listener, fault(id)))
            .collect();
        let bits: Vec<Bits> = workers
            .into_iter()
            .map(|worker| worker.join().unwrap().unwrap())
            .collect();
        assert!(
            bits.iter().all(|other| other.agree_with(&bits[0])),
            "{operation}"
        );
        check_events(&job.events.lock().unwrap());
    }
}

#[test]
fn a_gradient_that_is_not_finite_ends_the_run_on_all_workers_with_its_tensor() {
    let run = RunSettings {
        steps: UPDATES,
        sets: gossip!("train.learning_rate=1e30", "optimizer.kind=sgd"),
    };
    let job = Job::of(run);
    let mut listeners = Vec::new();
    for id in 0..3 {
        let (listener, address) = ronde_comm::bind(IpAddr::V4(Ipv4Addr::LOCALHOST)).unwrap();
        job.members.lock().unwrap().present.push((id, address));
        listeners.push((id, listener));
    }
    let workers: Vec<_> = listeners
        .into_iter()
        .map(|(id, listener)| start(&job, id, listener, None))
        .collect();
    for worker in workers {
        let error = worker.join().unwrap().unwrap_err();
        assert!(matches!(error, TrainError::NotFinite { .. }), "{error}");
    }
}
