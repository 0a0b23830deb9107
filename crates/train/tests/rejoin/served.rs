//! Parameter servers: every sample counts once, whichever worker dies, and a single worker computes the bits of plain training.

use super::*;

/// Keys of a run whose epochs have a round of three updates and one of a single update.
macro_rules! served {
    ($($more:literal),*) => {
        &[
            "train.clip_norm=0.5",
            "sync.kind=parameter_server",
            "sync.round_updates=3",
            $($more),*
        ]
    };
}

/// Two epochs.
const UPDATES: u64 = 8;

const PLAIN_RUN: RunSettings = RunSettings {
    steps: UPDATES,
    sets: &["train.clip_norm=0.5"],
};

const ONE_SERVER: RunSettings = RunSettings {
    steps: UPDATES,
    sets: served!(),
};

const TWO_SERVERS: RunSettings = RunSettings {
    steps: UPDATES,
    sets: served!("sync.servers=2"),
};

/// Checks the events of two epochs: each sample was used once, and the staleness of each update is known.
fn check_events(events: &[Event], most: Option<u64>) {
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
    let rounds: BTreeMap<u64, u64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Staleness { step, workers } => {
                if let Some(most) = most {
                    assert!(workers.iter().all(|worker| worker.most() <= most));
                }
                let updates = workers.iter().map(|worker| worker.updates());
                Some((step.0, updates.sum()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(rounds.into_values().collect::<Vec<_>>(), [3, 1, 3, 1]);
}

#[test]
fn one_computing_worker_has_the_bits_of_plain_training() {
    let plain = alone(PLAIN_RUN);
    for (run, counts) in [(ONE_SERVER, &[1, 2][..]), (TWO_SERVERS, &[1, 2, 3])] {
        for count in counts {
            let end = train_with(run, *count, &[], false, None);
            assert_eq!(end.bits.len() as u32, *count);
            let same = |bits: &Bits| bits.agree_with(&plain);
            assert!(end.bits.iter().all(same), "{count} workers");
            check_events(&end.events, Some(0));
        }
    }
}

#[test]
fn workers_that_do_not_wait_for_each_other_use_each_sample_once() {
    let bound = RunSettings {
        steps: UPDATES,
        sets: served!(
            "sync.servers=2",
            "sync.staleness_max=1",
            "sync.scale_by_staleness=true"
        ),
    };
    for (run, count, most) in [
        (ONE_SERVER, 4, None),
        (TWO_SERVERS, 5, None),
        (bound, 5, Some(1)),
    ] {
        let end = train_with(run, count, &[], false, None);
        let first = &end.bits[0];
        assert!(end.bits.iter().all(|bits| bits.agree_with(first)));
        check_events(&end.events, most);
    }
}

#[test]
fn a_death_at_any_operation_of_a_round_costs_no_sample() {
    for (run, count) in [(ONE_SERVER, 3), (TWO_SERVERS, 4)] {
        for operation in (0..90).step_by(4) {
            for id in [0, count - 1] {
                let replaced = operation % 8 == 0;
                let end = train_with(run, count, &[(id, operation)], replaced, None);
                assert!(end.bits.len() as u32 >= count - 1, "{id} at {operation}");
                let first = &end.bits[0];
                let same = end.bits.iter().all(|bits| bits.agree_with(first));
                assert!(same, "{id} at {operation}");
                check_events(&end.events, None);
            }
        }
    }
}

#[test]
fn a_server_and_its_copy_die_together_and_the_round_begins_again() {
    for operation in (10..70).step_by(10) {
        let deaths = [(2, operation), (3, operation + 1)];
        let end = train_with(TWO_SERVERS, 4, &deaths, false, None);
        let first = &end.bits[0];
        assert!(end.bits.len() >= 2);
        assert!(
            end.bits.iter().all(|bits| bits.agree_with(first)),
            "{operation}"
        );
        check_events(&end.events, None);
    }
}

#[test]
fn a_gradient_that_is_not_finite_ends_the_run_on_all_workers_with_its_tensor() {
    let run = RunSettings {
        steps: UPDATES,
        sets: served!("train.learning_rate=1e30", "optimizer.kind=sgd"),
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
