//! Tests of the settings that may change when a run continues.

use std::path::PathBuf;

use ronde_core::{Step, WorldSize};
use ronde_data::OpenContext;

use super::*;
use crate::config::RunConfig;
use crate::config::{DEFAULT_RUN_FILE, Document, Override};

/// Returns the plan of the example with other values.
fn plan(sets: &[&str]) -> Plan {
    let sets: Vec<Override> = sets
        .iter()
        .map(|set| Override::Set((*set).to_owned()))
        .collect();
    let (config, _): (RunConfig, _) = Document::load(DEFAULT_RUN_FILE, "test", &[], &sets).unwrap();
    let context = OpenContext::new(&std::env::temp_dir(), config.run.seed);
    let data = ronde_data::open(&config.data, &context).unwrap();
    Plan::resolve(&config, WorldSize::ONE, &*data.train).unwrap()
}

/// Returns a checkpoint of a plan; an epoch of the example has 23 steps.
fn checkpoint(plan: &Plan, step: u64) -> NewestCheckpoint {
    let mut identity = plan.identity.clone();
    identity.set(TENSORS, "2 tensors");
    NewestCheckpoint {
        step: Step(step),
        name: "digits".to_owned(),
        identity,
        vectors: checkpoints::vector_names(&plan.config),
        run: String::new(),
        base: PathBuf::new(),
    }
}

fn bind(sets: &[&str], allowed: &[&str], step: u64) -> Result<Option<ParentPlan>, String> {
    let extension = Extension {
        allowed: allowed.iter().map(|&name| name.to_owned()).collect(),
    };
    let from = checkpoint(&plan(&[]), step);
    let mut extended = plan(sets);
    let parent = extension.bind(&mut extended, &from);
    let parent = parent.map_err(|error| error.to_string())?;
    if let Some(parent) = &parent {
        assert_eq!(extended.identity.lineage(), std::slice::from_ref(parent));
        assert_eq!(parent.plan, from.identity.hex());
        // The same command again, from a checkpoint that the extended run has saved.
        let mut again = plan(sets);
        let bound = Extension::default().bind(&mut again, &checkpoint(&extended, step + 1));
        assert_eq!(bound.unwrap(), None);
        assert_eq!(again.identity, extended.identity);
    }
    Ok(parent)
}

#[test]
fn a_run_continues_with_the_changes_that_are_allowed() {
    assert_eq!(bind(&[], &[], 23), Ok(None));
    assert_eq!(
        bind(&["comm.timeout_s=9", "workers.count=3"], &[], 23),
        Ok(None)
    );
    for (set, allowed, step) in [
        ("train.epochs=30", &[][..], 10),
        ("train.steps=600", &[], 575),
        ("train.learning_rate=0.1", &["learning_rate"], 10),
        ("train.learning_rate=0.1", &["train.learning_rate"], 10),
        ("schedule.warmup_steps=9", &["schedule"], 10),
        ("schedule.warmup_steps=9", &["schedule.warmup_steps"], 10),
        ("optimizer.kind=adam", &["optimizer"], 10),
        ("run.seed=1", &["run.seed"], 46),
    ] {
        let parent = bind(&[set], allowed, step).unwrap().unwrap();
        assert_eq!(parent.step, Step(step));
        assert!(parent.changes.contains("changed from"), "{parent:?}");
    }
}

#[test]
fn a_change_that_is_not_allowed_is_refused_by_name() {
    for (set, allowed, step, words) in [
        (
            "train.learning_rate=0.1",
            &[][..],
            23,
            "cannot resume: train.learning_rate changed from 0.02 to 0.1\n  help: to continue with the new value, name it: \
             `--allow-change learning_rate`",
        ),
        (
            "train.clip_norm=1.0",
            &["learning_rate"],
            23,
            "`--allow-change clip_norm`",
        ),
        (
            "schedule.kind=constant",
            &["sched"],
            23,
            "invalid `--allow-change sched`",
        ),
        ("run.seed=1", &["run.seed"], 24, "an epoch is under way"),
        ("train.shuffle=false", &[], 23, "`--allow-change shuffle`"),
        (
            "model.channels=3",
            &["model"],
            23,
            "the tensors of the earlier model",
        ),
        (
            "workers.logical_shards=4",
            &["workers"],
            23,
            "the form of all sums",
        ),
        (
            "train.global_batch_size=32",
            &["train"],
            23,
            "the steps of an epoch",
        ),
        (
            "optimizer.kind=sgd",
            &["optimizer"],
            23,
            "has the state `weights, optimizer.mean, optimizer.mean_square`, but",
        ),
        (
            "train.clip_norm=1.0",
            &["clip_norm"],
            575,
            "575 steps, and the checkpoint has 575 already",
        ),
        ("train.precision=f16", &["precision"], 23, "loss_scale"),
        (
            "train.epochs=1",
            &[],
            24,
            "would have 23 steps, and the checkpoint has 24 already",
        ),
    ] {
        let problem = bind(&[set], allowed, step).unwrap_err();
        assert!(problem.contains(words), "{set}: {problem}");
        assert!(problem.contains("\n  help: "), "{set}: {problem}");
    }
}

#[test]
fn names_of_no_setting_are_refused() {
    let longer = ["train.epochs=40"];
    for (name, words) in [
        ("learning_rat", "did you mean `learning_rate`?"),
        ("nonsense", "optimizer.weight_decay"),
        ("comm.timeout_s", "that the trained bits depend on"),
    ] {
        let problem = bind(&longer, &["schedule", name], 23).unwrap_err();
        assert!(
            problem.contains(&format!("`--allow-change {name}`")),
            "{problem}"
        );
        assert!(problem.contains(words), "{name}: {problem}");
    }
    // A name of a setting that has not changed is accepted.
    assert!(bind(&longer, &["learning_rate"], 23).unwrap().is_some());
}

#[test]
fn names_of_settings_that_never_change_are_refused() {
    let check = |name: &str| {
        let allowed = vec![name.to_owned()];
        Extension { allowed }.check_names()
    };
    for name in [
        "learning_rate",
        "schedule",
        "optimizer.weight_decay",
        "cpu",
        "train",
    ] {
        assert!(check(name).is_ok(), "{name}");
    }
    for name in [
        "model",
        "model.channels",
        "global_batch_size",
        "data",
        "workers.logical_shards",
    ] {
        let problem = check(name).unwrap_err().to_string();
        assert!(
            problem.contains(&format!("invalid `--allow-change {name}`")),
            "{problem}"
        );
    }
}
