//! Runs that choose their model by its evaluations, keep an average and lower their rate: the remaining and the new workers
//! make the same decisions.

use super::*;

/// Keys of a run whose evaluations get worse, so that the best model is an earlier one.
macro_rules! choosing {
    ($($more:literal),*) => {
        &[
            "train.learning_rate=0.05",
            "train.evaluate_every_epochs=1",
            "train.keep_best=loss",
            "train.average_decay=0.6",
            "train.reduce_on_plateau.patience=1",
            $($more),*
        ]
    };
}

/// A run that ends early, one of its planned length, and the same with a divided state and with divided layers.
const CHOOSING: [RunSettings; 6] = [
    RunSettings {
        steps: 60,
        sets: choosing!("train.early_stopping.patience=3"),
    },
    RunSettings {
        steps: STEPS,
        sets: choosing!(),
    },
    RunSettings {
        steps: STEPS,
        sets: choosing!(
            "model.hidden=[300, 64]",
            "parallel.zero=2",
            "parallel.copies=2"
        ),
    },
    RunSettings {
        steps: STEPS,
        sets: choosing!(
            "model.hidden=[300, 64]",
            "parallel.pipeline=3",
            "parallel.copies=2"
        ),
    },
    RunSettings {
        steps: STEPS,
        sets: choosing!(
            "model.hidden=[300, 64]",
            "parallel.pipeline=2",
            "parallel.copies=2"
        ),
    },
    RunSettings {
        steps: STEPS,
        sets: choosing!(
            "model.hidden=[300, 64]",
            "parallel.zero=3",
            "parallel.copies=2"
        ),
    },
];

#[test]
fn all_workers_choose_the_same_model_after_a_loss_at_any_operation() {
    for run in CHOOSING {
        let whole = train_with(run, 1, &[], false, None);
        let ended = steps(&whole.events);
        assert!(ended.len() < 60, "the run ends early");
        for operation in (0..60).step_by(if run.steps == STEPS { 2 } else { 5 }) {
            let end = train_with(run, 3, &[(0, operation)], false, None);
            let name = format!("{:?}: {operation}", run.sets);
            for bits in &end.bits {
                assert!(bits.agree_with(&whole.bits[0]), "{name}");
            }
            assert_eq!(steps(&end.events), ended, "{name}");
        }
    }
}

#[test]
fn a_new_worker_knows_the_best_model_and_the_scores() {
    for run in CHOOSING {
        let whole = train_with(run, 1, &[], false, None);
        for operation in (10..56).step_by(5) {
            let end = train_with(run, 3, &[(1, operation)], true, None);
            let name = format!("{:?}: {operation}", run.sets);
            assert_eq!(end.bits.len(), 3, "{name}");
            for bits in &end.bits {
                assert!(bits.agree_with(&whole.bits[0]), "{name}");
            }
            assert_eq!(steps(&end.events), steps(&whole.events), "{name}");
        }
    }
}

#[test]
fn a_worker_that_misses_an_outcome_makes_the_same_choices() {
    for run in &CHOOSING[1..] {
        let undisturbed = alone(*run);
        // Workers with parts of the weights also count the messages for these and between their layers.
        let is_part = |set: &&str| set.contains("pipeline") || set.contains("zero=3");
        let has_parts = run.sets.iter().any(is_part);
        let operations = 6..if has_parts { 90 } else { 38 };
        let applied = operations.map(|operation| miss_outcome(*run, operation, &undisturbed));
        assert!(applied.sum::<usize>() >= 2, "{:?}", run.sets);
    }
}
