//! What the command says and writes when all is well, and when training itself fails.

use crate::support::{Place, RONDE, of_kind};

#[test]
fn the_file_that_init_writes_trains_and_is_never_overwritten() {
    let place = Place::new();
    place.run(&["init"]).expect(0, &["wrote ronde.toml"]);
    let ended = place
        .run(&["train", "ronde.toml", "--set", "train.epochs=2"])
        .expect(
            0,
            &[
                "changed: train.epochs=2",
                "46 steps in 2 epochs on 2 workers",
                "test accuracy",
                "blake3",
            ],
        );
    assert_eq!(ended.stdout, "");
    assert_eq!(
        place.list("runs/digits"),
        [
            "events.jsonl",
            "model.json",
            "model.safetensors",
            "run.toml"
        ]
    );
    place.write("mine.toml", "# mine");
    place
        .run(&["init", "mine.toml"])
        .expect(2, &["mine.toml exists already"]);
    let mine = std::fs::read_to_string(place.path().join("mine.toml")).unwrap();
    assert_eq!(mine, "# mine");
    place
        .run(&["init", "gone/a.toml"])
        .expect(2, &["cannot write gone/a.toml", "hint: "]);
}

#[test]
fn the_run_file_that_is_kept_trains_to_the_same_bits() {
    let place = Place::new();
    let first = place
        .run(&["train", "--json", "--set", "train.steps=10"])
        .expect(0, &[]);
    let kept = "runs/digits/run.toml";
    std::fs::rename(place.path().join(kept), place.path().join("kept.toml")).unwrap();
    let second = place.run(&["train", "kept.toml", "--json"]).expect(0, &[]);
    assert_eq!(first.blake3(), second.blake3());
}

#[test]
fn json_is_all_that_standard_output_gets() {
    let place = Place::new();
    let ended = place.run(&["train", "--json", "-n", "3", "--set", "train.steps=23"]);
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
    assert_eq!(
        count("notice"),
        2,
        "the engine; 3 workers share 8 shards unevenly"
    );
    let kept = std::fs::read_to_string(place.path().join("runs/digits/events.jsonl")).unwrap();
    let kept = crate::support::events(&kept);
    assert_eq!(of_kind(&kept, "step_committed").count(), 23);
}

#[test]
fn json_that_cannot_be_written_is_not_passed_over() {
    let place = Place::new();
    let script = format!("exec {RONDE} train --json --set train.steps=3 > /dev/full");
    let ended = place.start("/bin/sh", &["-c", &script], &[]).wait();
    ended.expect(3, &["error: standard output: ", "No space left"]);
    assert!(
        place
            .list("runs/digits")
            .contains(&"model.safetensors".to_owned())
    );
}

#[test]
fn a_run_that_diverges_says_at_which_step_and_what_to_try() {
    let place = Place::new();
    let sets = [
        "--set",
        "train.learning_rate=1e30",
        "--set",
        "schedule.kind=constant",
    ];
    let ended = place
        .run(&[&["train", "-n", "3"], &sets[..]].concat())
        .expect(
            3,
            &[
                "training diverged at step 1: ",
                "is not finite (learning rate 1.000e30)",
                "hint: try a lower train.learning_rate",
                "after step 0",
            ],
        );
    // All ranks see the same; it is announced once, and once more as the error at the end.
    let announced = |line: &&str| line.starts_with("rank ") && line.contains(" failed: ");
    let lines = ended.stderr.lines().filter(announced).count();
    assert_eq!(lines, 1, "{}", ended.stderr);
    assert_eq!(place.results("runs/digits"), ["events.jsonl"]);
}

#[test]
fn a_worker_without_a_supervisor_says_so() {
    let place = Place::new();
    place
        .run(&["__worker"])
        .expect(3, &["error: the task of this worker cannot be read"]);
    let control = [("RONDE_CONTROL", "127.0.0.1:1")];
    let ended = place.start(RONDE, &["__worker"], &control).wait();
    ended.expect(3, &["RONDE_CONTROL is set but RONDE_WORLD_SIZE"]);
}
