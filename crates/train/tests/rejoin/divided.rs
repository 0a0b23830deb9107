//! Losses of workers that hold a part of the state, or of the weights.

use super::*;

/// Settings of runs whose state is divided among the workers, each slice on two of them.
const DIVIDED: [RunSettings; 5] = [
    RunSettings {
        steps: STEPS,
        sets: &[WIDE, "parallel.zero=1", "parallel.copies=2"],
    },
    RunSettings {
        steps: STEPS,
        sets: &[WIDE, "parallel.zero=2", "train.clip_norm=0.1"],
    },
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "parallel.zero=2",
            "optimizer.kind=lamb",
            "train.clip_norm=0.1",
        ],
    },
    // Two workers compute, and the third one serves.
    RunSettings {
        steps: STEPS,
        sets: &[WIDE, "parallel.servers=1", "train.clip_norm=0.1"],
    },
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "parallel.servers=2",
            "optimizer.kind=lamb",
            "train.clip_norm=0.1",
        ],
    },
];

/// Runs whose workers have different parts of the weights.
const PARTS: [RunSettings; 10] = [
    // Two workers and a spare, which replaces either of them.
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "parallel.pipeline=2",
            "parallel.copies=2",
            "train.clip_norm=0.1",
        ],
    },
    RunSettings {
        steps: STEPS,
        sets: &[WIDE, "parallel.pipeline=3"],
    },
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "parallel.pipeline=3",
            "parallel.schedule=gpipe",
            "optimizer.kind=lamb",
        ],
    },
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "parallel.pipeline=2",
            "parallel.cuts=[\"layer2\"]",
            "parallel.copies=2",
            "parallel.zero=2",
        ],
    },
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "parallel.zero=3",
            "parallel.copies=2",
            "train.clip_norm=0.1",
        ],
    },
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "parallel.zero=3",
            "parallel.pipeline=2",
            "parallel.schedule=zero_bubble",
            "parallel.copies=2",
        ],
    },
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "parallel.zero=3",
            "parallel.servers=1",
            "parallel.copies=2",
        ],
    },
    // Two workers divide the parts of each layer, and a spare replaces either of them.
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "model.tensor_parts=4",
            "parallel.tensor=2",
            "parallel.copies=2",
            "train.clip_norm=0.1",
        ],
    },
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "model.tensor_parts=3",
            "parallel.tensor=3",
            "optimizer.kind=lamb",
        ],
    },
    // With three workers, the layers are in one piece.
    RunSettings {
        steps: STEPS,
        sets: &[
            WIDE,
            "model.tensor_parts=4",
            "parallel.tensor=2",
            "parallel.pipeline=2",
            "parallel.zero=3",
            "parallel.copies=2",
        ],
    },
];

#[test]
fn a_divided_state_survives_the_loss_of_one_worker_at_any_operation() {
    for run in DIVIDED {
        let undisturbed = alone(run);
        for operation in 0..36 {
            for id in [0, 2] {
                let end = train_with(run, 3, &[(id, operation)], false, None);
                let name = format!("{:?}: {id} at {operation}", run.sets);
                assert_eq!(end.bits.len(), 2, "{name}");
                assert!(
                    end.bits.iter().all(|bits| bits.agree_with(&undisturbed)),
                    "{name}"
                );
                assert_eq!(steps(&end.events), (0..STEPS).collect::<Vec<_>>(), "{name}");
            }
        }
    }
}

#[test]
fn without_a_second_copy_the_workers_load_the_newest_checkpoint_or_begin_again() {
    let run = |sets| RunSettings { steps: STEPS, sets };
    let saving = run(&[
        WIDE,
        "parallel.zero=2",
        "parallel.copies=1",
        "checkpoint.every_steps=2",
        "checkpoint.overlap=false",
    ]);
    let undisturbed = alone(run(&[WIDE]));
    let (mut loaded, mut restarted) = (0, 0);
    for operation in (9..72).step_by(3) {
        let end = train_with(saving, 3, &[(1, operation)], false, None);
        assert_eq!(end.bits.len(), 2, "{operation}");
        assert!(
            end.bits.iter().all(|bits| bits.agree_with(&undisturbed)),
            "{operation}"
        );
        assert_eq!(
            steps(&end.events),
            (0..STEPS).collect::<Vec<_>>(),
            "{operation}"
        );
        let is_load = |event: &&Event| matches!(event, Event::CheckpointLoaded { .. });
        loaded += end.events.iter().filter(is_load).count();
        restarted += restarts(&end.events);
    }
    assert!(loaded > 3 && restarted > 2, "{loaded}, {restarted}");
}

#[test]
fn without_checkpoints_the_loss_of_a_part_begins_the_run_again() {
    const ONE: &str = "parallel.copies=1";
    const TENSOR: &str = "model.tensor_parts=2";
    for (count, sets) in [
        (
            3,
            &[WIDE, ONE, "parallel.zero=1", "train.average_decay=0.9"][..],
        ),
        (3, &[WIDE, ONE, "parallel.zero=2", "optimizer.kind=adam"]),
        (3, &[WIDE, ONE, "parallel.zero=3", "optimizer.kind=adam"]),
        (3, &[WIDE, ONE, "parallel.pipeline=3"]),
        (4, &[WIDE, ONE, "parallel.pipeline=2", "parallel.zero=3"]),
        (3, &[WIDE, ONE, TENSOR, "parallel.tensor=2"]),
        (
            4,
            &[
                WIDE,
                ONE,
                TENSOR,
                "parallel.tensor=2",
                "parallel.pipeline=2",
            ],
        ),
    ] {
        let run = RunSettings { steps: STEPS, sets };
        begins_again(run, count, &alone(run));
    }
}

#[test]
fn divided_weights_survive_the_loss_of_one_worker_at_any_operation() {
    for run in PARTS {
        let undisturbed = alone(run);
        // Before the first step, one worker remains of two.
        for operation in 0..6 {
            let end = train_with(run, 2, &[(0, operation)], false, None);
            let bits = &end.bits[end.bits.len() - 1];
            assert!(bits.agree_with(&undisturbed), "{operation} with {run:?}");
        }
        for workers in [3, 4] {
            let end = train_with(run, workers, &[], false, None);
            assert!(
                end.bits.iter().all(|bits| bits.agree_with(&undisturbed)),
                "{run:?} on {workers}"
            );
        }
        for operation in (0..80).step_by(5) {
            for id in 0..3 {
                let end = train_with(run, 3, &[(id, operation + id)], false, None);
                let place = format!("{id} at {operation} with {run:?}");
                // A spare may finish before it reaches that operation.
                assert!(end.bits.len() >= 2, "{place}");
                assert!(
                    end.bits.iter().all(|bits| bits.agree_with(&undisturbed)),
                    "{place}"
                );
            }
        }
    }
}

#[test]
fn a_worker_that_holds_all_slices_saves_all_of_them_alone() {
    let sets: &[&str] = &[
        WIDE,
        "parallel.zero=1",
        "parallel.copies=2",
        "checkpoint.every_steps=1000",
    ];
    let job = Job::of(RunSettings { steps: STEPS, sets });
    job.members.lock().unwrap().saves_alone = true;
    let end = train_job(&job, 2, &[(1, 21)], false, None);
    let saved = end.events.iter().filter_map(|event| match event {
        Event::CheckpointSaved { step, bytes, .. } => Some((step.0, *bytes)),
        _ => None,
    });
    // The remaining worker saves alone when it loses the other one, and again at the end.
    let saved: Vec<(u64, u64)> = saved.collect();
    let [(first, some), (STEPS, all)] = saved[..] else {
        panic!("{saved:?}")
    };
    assert!(first < STEPS, "{saved:?}");
    assert_eq!(some, all, "{saved:?}");
}

#[test]
fn slices_move_to_a_worker_that_replaces_another_one() {
    for run in DIVIDED {
        let undisturbed = alone(run);
        for operation in [0, 9, 14, 21, 30] {
            let end = train_with(run, 4, &[(1, operation)], true, None);
            let name = format!("{:?}: {operation}", run.sets);
            assert_eq!(end.bits.len(), 4, "{name}");
            assert!(
                end.bits.iter().all(|bits| bits.agree_with(&undisturbed)),
                "{name}"
            );
        }
    }
}

#[test]
fn a_second_loss_while_slices_move_changes_no_bit() {
    for run in DIVIDED {
        let undisturbed = alone(run);
        for operation in [14, 21] {
            for second in 0..22 {
                // The ranks of the remaining workers change, so slices move between them too.
                let fault = Some(InjectedFault::Dies(second));
                let end = train_with(run, 4, &[(0, operation)], true, fault);
                let name = format!("{:?}: {operation}, then {second}", run.sets);
                assert!(end.bits.len() >= 3, "{name}");
                assert!(
                    end.bits.iter().all(|bits| bits.agree_with(&undisturbed)),
                    "{name}"
                );
            }
        }
    }
}

#[test]
fn a_worker_that_misses_an_outcome_applies_its_part_of_the_gradient() {
    for run in DIVIDED {
        let undisturbed = alone(run);
        let applied = (6..40).map(|operation| miss_outcome(run, operation, &undisturbed));
        assert!(applied.sum::<usize>() >= 2, "{:?}", run.sets);
    }
}
