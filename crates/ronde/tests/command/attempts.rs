//! Runs of several attempts: their event file and summary cover the whole run. Run files that `ronde check` rejects.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{RONDE, TestFolder, events, of_kind};

/// 2000 steps of a small model.
const SETS: [&str; 5] = [
    "train.steps=2000",
    "model.channels=1",
    "checkpoint.every_steps=50",
    "run.name=attempts",
    "run.output=out",
];

fn arguments<'a>(first: &[&'a str], sets: &[&'a str]) -> Vec<&'a str> {
    let mut all = first.to_vec();
    for set in SETS.iter().chain(sets) {
        all.extend(["--set", set]);
    }
    all
}

fn steps(events: &[Value]) -> Vec<u64> {
    let of = |event: &Value| event["step"].as_u64().unwrap();
    of_kind(events, "step_committed").map(of).collect()
}

#[test]
fn a_resumed_run_appends_its_events_and_its_summary_covers_all_attempts() {
    let dir = TestFolder::new();
    let mut running = dir.start(RONDE, &arguments(&["train", "--json", "-n", "2"], &[]), &[]);
    running.after_steps(1000);
    // Without a last checkpoint, so that steps are computed again.
    for pid in running.workers().into_values() {
        crate::support::send(pid, Signal::STOP);
    }
    running.signal(Signal::KILL);
    running.wait();
    let path = dir.path().join("out/events.jsonl");
    let first = std::fs::read_to_string(&path).unwrap();
    let before = steps(&events(&first)).len();
    assert!(before >= 1000, "{before}");

    let ended = dir.run(&["train", "--resume", "out"]).expect(
        0,
        &["attempts finished in ", "(attempt 2; ", "2,000 of 2,000"],
    );
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(
        text.starts_with(first.trim_end()),
        "earlier events are kept"
    );
    let all = events(&text);
    assert_eq!(of_kind(&all, "attempt_started").count(), 1);
    let committed = steps(&all);
    let unique: BTreeSet<u64> = committed.iter().copied().collect();
    assert_eq!(unique.len(), 2000, "{}", ended.stderr);
    let loaded = of_kind(&all, "checkpoint_loaded").next().unwrap();
    let resumed_at = loaded["step"].as_u64().unwrap();
    // The newest checkpoint that was complete; a busy machine postpones saves.
    assert!((1..=before as u64).contains(&resumed_at), "{resumed_at}");
}

#[test]
fn the_event_file_is_thinned_and_bounded() {
    let dir = TestFolder::new();
    let sets = ["events.every_steps=10", "events.limit_mib=1"];
    dir.run(&arguments(&["train", "-n", "2"], &sets))
        .expect(0, &["2,000 of 2,000"]);
    let text = std::fs::read_to_string(dir.path().join("out/events.jsonl")).unwrap();
    assert_eq!(steps(&events(&text)).len(), 200);
    assert!(text.len() < 600_000, "{}", text.len());
}

#[test]
fn the_schema_of_the_run_file_is_printed_as_json() {
    let dir = TestFolder::new();
    let ended = dir.run(&["schema"]).expect(0, &[]);
    let schema: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(
        schema["$schema"],
        "https://json-schema.org/draft/2020-12/schema"
    );
    let train = schema["$defs"]["TrainSection"]["properties"].clone();
    assert_eq!(train["global_batch_size"]["default"], 64);
    assert_eq!(ended.stderr, "");
}

#[test]
fn check_validates_a_run_file_without_training() {
    let dir = TestFolder::new();
    dir.run(&["init", "run.toml"]).expect(0, &[]);
    let ended = dir.run(&["check", "run.toml"]).expect(0, &[]);
    assert!(
        ended
            .stdout
            .contains("run.toml is valid: 575 steps in 25 epochs")
    );
    assert_eq!(dir.list("."), ["run.toml"]);
    dir.run(&["check", "run.toml", "--set", "train.epoch=3"])
        .expect(2, &["unknown key `epoch` in [train]"]);
    dir.run(&["check", "none.toml"])
        .expect(2, &["cannot read run file none.toml"]);
    dir.write(
        "translate.toml",
        "[data]\nsource = \"number_words\"\nsamples = 64\n[model]\nkind = \"transformer\"\nsource = 3\n\
         layers = 1\nwidth = 16\nheads = 2\n[train]\nsteps = 3\n",
    );
    for command in ["check", "train"] {
        dir.run(&[command, "translate.toml"]).expect(
            2,
            &[
                "`model.source` is 3, but samples",
                "translate.toml:6:10",
                "set `model.source` to 9",
            ],
        );
    }
}
