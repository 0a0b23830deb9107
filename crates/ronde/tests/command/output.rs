//! Output and files of successful runs, and of runs whose training fails.

use crate::support::{RONDE, TestFolder, of_kind};

#[test]
fn the_file_that_init_writes_trains_and_is_never_overwritten() {
    let dir = TestFolder::new();
    dir.run(&["init"]).expect(0, &["wrote ronde.toml"]);
    let ended = dir
        .run(&["train", "ronde.toml", "--set", "train.epochs=2"])
        .expect(
            0,
            &[
                "override: train.epochs=2",
                "46 steps in 2 epochs on 2 workers",
                "accuracy ",
                "blake3",
            ],
        );
    assert_eq!(ended.stdout, "");
    assert_eq!(
        dir.list("runs/digits"),
        [
            "README.md",
            "checkpoints",
            "events.jsonl",
            "model.json",
            "model.safetensors",
            "run.toml"
        ]
    );
    dir.write("mine.toml", "# mine");
    dir.run(&["init", "mine.toml"])
        .expect(2, &["cannot write mine.toml: the file exists already"]);
    let mine = std::fs::read_to_string(dir.path().join("mine.toml")).unwrap();
    assert_eq!(mine, "# mine");
    dir.run(&["init", "gone/a.toml"])
        .expect(2, &["cannot write gone/a.toml", "help: "]);
}

#[test]
fn the_stored_run_file_trains_to_the_same_bits() {
    let dir = TestFolder::new();
    let first = dir
        .run(&["train", "--json", "--set", "train.steps=10"])
        .expect(0, &[]);
    let kept = "runs/digits/run.toml";
    std::fs::rename(dir.path().join(kept), dir.path().join("kept.toml")).unwrap();
    let second = dir
        .run(&["train", "kept.toml", "--json", "--overwrite"])
        .expect(0, &[]);
    assert_eq!(first.blake3(), second.blake3());
}

#[test]
fn standard_output_contains_only_json() {
    let dir = TestFolder::new();
    let ended = dir.run(&["train", "--json", "-n", "3", "--set", "train.steps=23"]);
    let ended = ended.expect(0, &[]);
    // Reading them checks that every line is JSON and the first one the header.
    let events = ended.events();
    let count = |kind| of_kind(&events, kind).count();
    assert_eq!(count("step_committed"), 23);
    assert_eq!(count("step_times"), 3 * 23);
    for once in [
        "run_started",
        "epoch_finished",
        "evaluated",
        "model_saved",
        "run_finished",
    ] {
        assert_eq!(count(once), 1, "{once}");
    }
    assert_eq!(count("notice"), 1, "3 workers share 8 shards unevenly");
    let kept = std::fs::read_to_string(dir.path().join("runs/digits/events.jsonl")).unwrap();
    let kept = crate::support::events(&kept);
    assert_eq!(of_kind(&kept, "step_committed").count(), 23);
}

#[test]
fn json_that_cannot_be_written_is_an_error() {
    let dir = TestFolder::new();
    let script = format!("exec {RONDE} train --json --set train.steps=3 > /dev/full");
    let ended = dir.start("/bin/sh", &["-c", &script], &[]).wait();
    ended.expect(
        3,
        &["error: cannot write standard output: ", "No space left"],
    );
    assert!(
        dir.list("runs/digits")
            .contains(&"model.safetensors".to_owned())
    );
}

#[test]
fn a_diverged_run_names_the_step_and_gives_help() {
    let dir = TestFolder::new();
    let sets = [
        "--set",
        "train.learning_rate=1e30",
        "--set",
        "schedule.kind=constant",
    ];
    let ended = dir
        .run(&[&["train", "-n", "3"], &sets[..]].concat())
        .expect(
            3,
            &[
                "training diverged at step 1: ",
                "is not finite (learning rate 1.000e30)",
                "help: try a lower train.learning_rate",
                "after step 0",
            ],
        );
    // All ranks see the same; it is announced once, and once more as the error at the end.
    let announced = |line: &&str| line.starts_with("rank ") && line.contains(" failed: ");
    let lines = ended.stderr.lines().filter(announced).count();
    assert_eq!(lines, 1, "{}", ended.stderr);
    assert_eq!(dir.results("runs/digits"), ["events.jsonl", "run.toml"]);
}

#[test]
fn a_worker_without_a_supervisor_says_so() {
    let dir = TestFolder::new();
    dir.run(&["__worker"])
        .expect(3, &["error: cannot read the task of this worker"]);
    let control = [("RONDE_CONTROL", "127.0.0.1:1")];
    let ended = dir.start(RONDE, &["__worker"], &control).wait();
    ended.expect(3, &["RONDE_CONTROL is set but RONDE_WORLD_SIZE"]);
}
