//! Gradients in a short form: the bits, residuals included, do not depend on the workers, nor on their deaths.

use super::*;

/// Keys of a run of four senders with two shards each, of tensors with several units.
macro_rules! compressed {
    ($($more:literal),*) => {
        &[
            WIDE,
            "workers.logical_shards=8",
            "train.clip_norm=0.5",
            "compression.senders=4",
            $($more),*
        ]
    };
}

/// As [`compressed`], with checkpoints.
macro_rules! saved {
    ($($more:literal),*) => {
        compressed!("checkpoint.every_steps=2", "checkpoint.overlap=false", $($more),*)
    };
}

/// Keys of a run of local SGD with nine rounds of two steps.
macro_rules! local {
    ($($more:literal),*) => {
        compressed!(
            "train.steps=17",
            "sync.kind=local_sgd",
            "sync.inner_steps=2",
            "sync.replicas=4",
            $($more),*
        )
    };
}

const fn run(sets: &'static [&'static str]) -> RunSettings {
    RunSettings { steps: STEPS, sets }
}

/// Runs with each codec, and the number of vectors of their state besides those of the optimizer and the weights.
const CODECS: [(RunSettings, usize); 7] = [
    (run(compressed!("compression.codec=bf16")), 1),
    (run(compressed!("compression.codec=f16")), 1),
    (run(compressed!("compression.codec=int8_blocks")), 1),
    (run(compressed!("compression.codec=top_k")), 1),
    (
        run(compressed!(
            "compression.codec=top_k",
            "compression.ratio=0.2",
            "optimizer.kind=lamb",
            "train.average_decay=0.6",
            "comm.bucket_bytes_max=1000000"
        )),
        2,
    ),
    (run(compressed!("compression.codec=power_sgd")), 2),
    (
        run(&[
            "workers.logical_shards=8",
            "compression.senders=4",
            "compression.codec=power_sgd",
            "compression.rank=2",
            "model.kind=digits_cnn",
            "data.source=digits",
            "train.epochs=1",
            "train.global_batch_size=200",
        ]),
        2,
    ),
];

/// Runs of local SGD whose replicas send their displacements with residuals.
const LOCAL: [RunSettings; 2] = [
    run(local!("compression.codec=top_k", "compression.ratio=0.1")),
    run(local!(
        "compression.codec=power_sgd",
        "compression.rank=2",
        "sync.inner_state=average"
    )),
];

/// Runs with checkpoints, which a loss falls back to.
const SAVED: [RunSettings; 4] = [
    run(local!(
        "compression.codec=int8_blocks",
        "checkpoint.every_steps=2",
        "checkpoint.overlap=false"
    )),
    run(saved!("compression.codec=int8_blocks")),
    run(saved!("compression.codec=top_k", "compression.ratio=0.05")),
    run(saved!("compression.codec=power_sgd", "compression.rank=2")),
];

#[test]
fn senders_have_the_same_bits_on_any_number_of_workers() {
    let plain = alone(run(&[
        WIDE,
        "workers.logical_shards=8",
        "train.clip_norm=0.5",
    ]));
    for (run, vectors) in CODECS {
        let alone = alone(run);
        let optimizer = 3;
        assert_eq!(alone.0.len(), optimizer + vectors, "{run:?}");
        assert!(alone.0[0] != plain.0[0], "{run:?} rounds");
        let is_kept = |(_, values): &&(HeldRanges, Vec<u32>)| values.iter().any(|bits| *bits != 0);
        assert_eq!(
            alone.0.iter().filter(is_kept).count(),
            alone.0.len(),
            "{run:?}"
        );
        for count in [2, 3, 4] {
            let end = train_with(run, count, &[], false, None);
            assert_eq!(end.bits.len(), count as usize);
            for bits in &end.bits {
                assert!(bits.agree_with(&alone), "{count} workers, {run:?}");
            }
        }
    }
}

#[test]
fn after_a_death_at_any_operation_all_load_the_newest_checkpoint_or_begin_again() {
    for run in SAVED {
        let undisturbed = alone(run);
        let mut loaded = 0;
        for operation in (0..60).step_by(5) {
            for id in [0, 2] {
                let end = train_with(run, 3, &[(id, operation)], false, None);
                let place = format!("{id} at {operation} with {run:?}");
                assert!(end.bits.len() >= 2, "{place}");
                let same = |bits: &Bits| bits.agree_with(&undisturbed);
                assert!(end.bits.iter().all(same), "{place}");
                let expected: Vec<u64> = (0..STEPS).collect();
                assert_eq!(steps(&end.events), expected, "{place}");
                let is_load = |event: &&Event| matches!(event, Event::CheckpointLoaded { .. });
                loaded += end.events.iter().filter(is_load).count();
            }
        }
        assert!(loaded > 3, "{loaded} with {run:?}");
    }
}

#[test]
fn after_a_death_all_return_to_the_newest_copy_in_memory() {
    const COPIED: RunSettings = run(compressed!(
        "compression.codec=top_k",
        "elastic.copy_steps=2"
    ));
    let undisturbed = alone(COPIED);
    for operation in [40, 55] {
        let end = train_with(COPIED, 3, &[(1, operation)], false, None);
        assert!(end.bits.iter().all(|bits| bits.agree_with(&undisturbed)));
        let is_load =
            |event: &Event| matches!(event, Event::CheckpointLoaded { address: None, .. });
        assert!(end.events.iter().any(is_load), "{operation}");
    }
}

#[test]
fn replicas_with_residuals_have_the_same_bits_on_any_number_of_workers() {
    for run in LOCAL {
        let alone = alone(run);
        for count in [2, 3, 4] {
            let end = train_with(run, count, &[], false, None);
            assert_eq!(end.bits.len(), count as usize);
            for bits in &end.bits {
                assert!(bits.agree_with(&alone), "{count} workers, {run:?}");
            }
        }
    }
}

#[test]
fn without_checkpoints_the_loss_of_residuals_begins_the_run_again() {
    for (run, _) in CODECS {
        begins_again(run, 3, &alone(run));
    }
}

#[test]
fn a_worker_that_misses_the_outcome_of_a_vote_applies_its_gradient_and_its_residuals() {
    for (run, _) in [CODECS[3], CODECS[5]] {
        let undisturbed = alone(run);
        let applied = (0..24).map(|operation| miss_outcome(run, operation, &undisturbed));
        let applied: usize = applied.sum();
        assert!(applied >= 2, "{applied}");
    }
}

#[test]
fn residuals_bring_errors_to_later_steps() {
    let of = |sets| {
        let bits = alone(RunSettings { steps: 60, sets });
        let weights = bits.0[0].1.iter().map(|bits| f32::from_bits(*bits));
        weights.collect::<Vec<f32>>()
    };
    let plain = of(&[
        "workers.logical_shards=8",
        "optimizer.kind=sgd",
        "train.learning_rate=0.05",
    ]);
    let start = of(&[
        "workers.logical_shards=8",
        "optimizer.kind=sgd",
        "train.learning_rate=0",
    ]);
    let distance = |one: &[f32], other: &[f32]| {
        let squares = one
            .iter()
            .zip(other)
            .map(|(one, other)| (one - other).powi(2));
        squares.sum::<f32>().sqrt()
    };
    let moved = distance(&plain, &start);
    for (limit, codec) in [
        (0.03, ["compression.codec=bf16", "train.drop_last=false"]),
        (0.01, ["compression.codec=f16", "train.drop_last=false"]),
        (
            0.05,
            ["compression.codec=int8_blocks", "train.drop_last=false"],
        ),
        (0.5, ["compression.codec=top_k", "compression.ratio=0.2"]),
        (0.5, ["compression.codec=power_sgd", "compression.rank=4"]),
    ] {
        let mut sets = vec![
            "workers.logical_shards=8",
            "optimizer.kind=sgd",
            "train.learning_rate=0.05",
            "compression.senders=2",
        ];
        sets.extend(codec);
        let found = distance(&of(sets.leak()), &plain) / moved;
        assert!(found < limit && found > 1e-7, "{codec:?}: {found}");
    }
}
