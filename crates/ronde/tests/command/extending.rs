//! Runs that continue from a finished or interrupted run with more steps or other settings.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Ended, RONDE, TestFolder, of_kind};

const SMALL: [&str; 2] = ["model.channels=4", "run.output=out"];
const CONSTANT: &str = "schedule.kind=constant";

/// Trains in the folder `out` for three epochs of 23 steps, unless `sets` has another length.
fn train(dir: &TestFolder, workers: &str, sets: &[&str]) -> Ended {
    let mut arguments = vec!["train", "--json", "-n", workers, "--set", "train.epochs=3"];
    for set in SMALL.iter().chain(sets) {
        arguments.extend(["--set", set]);
    }
    dir.run(&arguments).expect(0, &[])
}

fn extend(dir: &TestFolder, workers: &str, more: &[&str]) -> Ended {
    let arguments = ["train", "--json", "-n", workers, "--resume", "out"];
    dir.run(&[&arguments[..], more].concat())
}

fn manifest(dir: &TestFolder) -> Value {
    let text = std::fs::read_to_string(dir.path().join("out/model.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn identity(dir: &TestFolder, part: &str) -> Option<String> {
    let manifest = manifest(dir);
    let parts = manifest["identity"].as_array().unwrap();
    let mut parts = parts.iter().filter(|pair| pair[0] == part);
    parts
        .next()
        .map(|pair| pair[1].as_str().unwrap().to_owned())
}

#[test]
fn a_longer_run_has_the_bits_of_one_that_was_longer_from_the_start() {
    let whole = TestFolder::new();
    let expected = train(&whole, "1", &[CONSTANT, "train.epochs=5"]).blake3();

    let dir = TestFolder::new();
    train(&dir, "2", &[CONSTANT]);
    let first = manifest(&dir)["plan"].as_str().unwrap().to_owned();
    let ended = extend(&dir, "3", &["--set", "train.epochs=5"]).expect(0, &[]);
    assert_eq!(ended.blake3(), expected);
    assert_eq!(manifest(&dir)["steps"], 115);
    assert_eq!(identity(&dir, "lineage.000.plan"), Some(first.clone()));
    assert_eq!(identity(&dir, "lineage.000.step").unwrap(), "69");
    let changes = identity(&dir, "lineage.000.changes").unwrap();
    assert_eq!(changes, "train.epochs changed from 3 to 5");
    let card = std::fs::read_to_string(dir.path().join("out/README.md")).unwrap();
    assert!(
        card.contains(&format!("| `{first}` | 69 | {changes} |")),
        "{card}"
    );

    // One history: all steps once, and where the run was extended.
    let text = std::fs::read_to_string(dir.path().join("out/events.jsonl")).unwrap();
    let all = crate::support::events(&text);
    let steps = of_kind(&all, "step_committed").map(|event| event["step"].as_u64().unwrap());
    assert_eq!(steps.collect::<Vec<_>>(), (0..115).collect::<Vec<_>>());
    let extended: Vec<&Value> = of_kind(&all, "run_extended").collect();
    assert_eq!(extended.len(), 1);
    assert_eq!(extended[0]["parent"], first);
    assert_eq!(extended[0]["changes"], changes);
    let attempts: Vec<&Value> = of_kind(&all, "attempt_started").collect();
    assert_eq!(attempts[0]["attempt"], 2);

    // Nothing is left to train; a further extension has two parents.
    extend(&dir, "1", &["--set", "train.epochs=5"]).expect(0, &["this run is finished: 115 steps"]);
    extend(&dir, "1", &["--set", "train.steps=120"]).expect(0, &[]);
    assert_eq!(identity(&dir, "lineage.001.step").unwrap(), "115");
}

#[test]
fn a_schedule_over_the_whole_run_gives_the_same_bits_for_the_same_lineage() {
    let extended = |workers: [&str; 2]| {
        let dir = TestFolder::new();
        train(&dir, workers[0], &[]);
        let ended = extend(&dir, workers[1], &["--set", "train.epochs=5"]).expect(0, &[]);
        let plan = manifest(&dir)["plan"].as_str().unwrap().to_owned();
        (ended.blake3(), plan)
    };
    let one = extended(["1", "1"]);
    assert_eq!(one, extended(["3", "2"]));
    let whole = train(&TestFolder::new(), "1", &["train.epochs=5"]).blake3();
    assert_ne!(
        one.0, whole,
        "the rate of the first epochs depends on the length"
    );
}

#[test]
fn an_extended_run_that_is_interrupted_resumes_without_its_arguments() {
    let sets = [
        "--set",
        "train.epochs=300",
        "--set",
        "train.learning_rate=0.001",
    ];
    let allow = [
        "--allow-change",
        "learning_rate",
        "--allow-change",
        "schedule",
    ];
    let undisturbed = TestFolder::new();
    train(&undisturbed, "2", &[CONSTANT]);
    let short = [
        "--set",
        "train.epochs=6",
        "--set",
        "train.learning_rate=0.001",
    ];
    extend(&undisturbed, "1", &short).expect(
        2,
        &[
            "cannot resume: train.learning_rate changed from 0.02 to 0.001",
            "where: checkpoint of step 69 of run `digits`",
            "`--allow-change learning_rate`",
        ],
    );

    let dir = TestFolder::new();
    train(&dir, "2", &[CONSTANT]);
    let arguments = ["train", "--json", "-n", "2", "--resume", "out"];
    let all = [&arguments[..], &sets, &allow].concat();
    let mut running = dir.start(RONDE, &all, &[]);
    running.after_steps(100);
    running.signal(Signal::TERM);
    running.wait().expect(143, &["checkpoint saved"]);
    let mut again = dir.start(
        RONDE,
        &["train", "--json", "-n", "3", "--resume", "out"],
        &[],
    );
    again.after_steps(2500);
    again.signal(Signal::TERM);
    let ended = again.wait().expect(143, &["checkpoint saved"]);
    let events = ended.events();
    assert_eq!(
        of_kind(&events, "run_extended").count(),
        0,
        "it is the same run"
    );
    let started = of_kind(&events, "run_started").next().unwrap();
    assert_eq!(started["steps"], 6900);
    dir.run(&["train", "--resume", "out", "--set", "model.channels=2"]).expect(
        2,
        &[
            "cannot resume: model.channels changed from 4 to 2; the checkpoint has the tensors of the earlier model",
            "--init-from",
        ],
    );
    dir.run(&["train", "--allow-change", "learning_rate"])
        .expect(2, &["--resume"]);
}

#[test]
fn a_run_from_the_weights_of_another_has_the_same_bits_on_any_number_of_workers() {
    let dir = TestFolder::new();
    train(&dir, "2", &[]);
    let weights = dir.path().join("out/model.safetensors");
    std::fs::rename(weights, dir.path().join("weights.safetensors")).unwrap();
    let tuned = |workers, more: &[&str]| {
        let arguments = ["train", "--json", "-n", workers, "--set", "train.epochs=1"];
        let sets = ["--set", "model.channels=4", "--set", "run.output=tuned"];
        dir.run(&[&arguments[..], &sets, &["--overwrite"], more].concat())
    };
    let from = ["--init-from", "weights.safetensors"];
    let hashes = ["1", "2", "3"].map(|workers| tuned(workers, &from).expect(0, &[]).blake3());
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    let file = dir
        .path()
        .join("out/model.safetensors")
        .display()
        .to_string();
    tuned("2", &["--init-from", "out"]).expect(2, &[&file, "model.init"]);
}

#[test]
fn an_extension_of_a_run_that_stopped_early_counts_the_evaluations_again() {
    let stopping = "train.early_stopping={metric='loss', patience=2, min_delta=100.0}";
    let sets = [stopping, "train.evaluate_every_epochs=1", "train.epochs=9"];
    let dir = TestFolder::new();
    let ended = train(&dir, "2", &sets);
    // The first evaluation sets the score, and two follow without an improvement.
    let evaluated = |ended: &Ended| -> Vec<u64> {
        let events = ended.events();
        let evaluated = of_kind(&events, "evaluated").map(|event| event["step"].as_u64().unwrap());
        evaluated.collect()
    };
    assert_eq!(evaluated(&ended), [22, 45, 68]);
    extend(&dir, "1", &[]).expect(0, &["this run is finished: 69 steps"]);
    let again = extend(&dir, "3", &["--set", "train.epochs=12"]).expect(0, &[]);
    assert_eq!(of_kind(&again.events(), "run_extended").count(), 1);
    // The evaluation at the checkpoint is repeated, and does not count again.
    assert_eq!(evaluated(&again), [68, 91, 114]);
    assert_eq!(manifest(&dir)["steps"], 115);
    let one = TestFolder::new();
    train(&one, "1", &sets);
    let alone = extend(&one, "1", &["--set", "train.epochs=12"]).expect(0, &[]);
    assert_eq!(alone.blake3(), again.blake3());
    // A longer patience continues as well, and is a change that must be named.
    let patient = ["--set", "train.early_stopping.patience=3"];
    extend(&dir, "2", &patient).expect(2, &["--allow-change early_stopping"]);
    let named = [&patient[..], &["--allow-change", "early_stopping"]].concat();
    extend(&dir, "2", &named).expect(0, &[]);
    assert_eq!(manifest(&dir)["steps"], 184);
}

#[test]
fn a_run_with_a_damaged_newest_checkpoint_is_extended_from_an_older_one() {
    let saved = ["checkpoint.every_steps=20", "checkpoint.keep=5"];
    let dir = TestFolder::new();
    train(&dir, "2", &saved);
    let mut steps = dir.list("out/checkpoints");
    steps.retain(|name| name.starts_with("step-"));
    steps.sort();
    assert_eq!(steps.pop().unwrap(), "step-00000069");
    // A checkpoint that is due while the one before is still being written is postponed.
    let older: u64 = steps.pop().unwrap()["step-".len()..].parse().unwrap();
    let folder = "out/checkpoints/step-00000069";
    for group in dir.list(folder).iter().filter(|name| name.starts_with('g')) {
        for name in dir.list(&format!("{folder}/{group}")) {
            if name.starts_with("rank-00000") {
                let path = dir.path().join(format!("{folder}/{group}/{name}"));
                let mut bytes = std::fs::read(&path).unwrap();
                let middle = bytes.len() / 2;
                bytes[middle] ^= 1;
                std::fs::write(path, bytes).unwrap();
            }
        }
    }
    let ended = extend(&dir, "1", &["--set", "train.epochs=5"]).expect(0, &[]);
    assert_eq!(
        identity(&dir, "lineage.000.step").unwrap(),
        older.to_string()
    );
    let events = ended.events();
    let loaded = of_kind(&events, "checkpoint_loaded").next().unwrap();
    assert_eq!(loaded["step"], older);
    let skipped = loaded["skipped"][0].as_str().unwrap();
    assert!(
        skipped.starts_with("step 69: ") && skipped.contains("blake3"),
        "{skipped}"
    );
    assert_eq!(manifest(&dir)["steps"], 115);
    // The run has its own checkpoints now.
    extend(&dir, "2", &["--set", "train.epochs=6"]).expect(0, &[]);
    assert_eq!(identity(&dir, "lineage.001.step").unwrap(), "115");
}
