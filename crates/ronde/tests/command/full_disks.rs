//! Disks that are full or become read-only while a run writes to them, and have space again later.

use rustix::process::Signal;
use serde_json::Value;

use crate::folders::SmallDisk;
use crate::support::{RONDE, TestFolder, events, of_kind, until};

/// Returns the hash of the model of an undisturbed run.
fn reference(dir: &TestFolder, sets: &[&str]) -> String {
    let train = [
        "train",
        "-n",
        "1",
        "--json",
        "--set",
        "run.output=reference",
    ];
    let ended = dir.run(&[&train[..], sets].concat());
    ended.expect(0, &[]).blake3()
}

/// Returns the events in the file of a run.
fn event_file(dir: &TestFolder, path: &str) -> Vec<Value> {
    events(&std::fs::read_to_string(dir.path().join(path)).unwrap())
}

const SHORT_RUN: [&str; 4] = ["--set", "train.steps=800", "--set", "model.channels=1"];

#[test]
fn a_run_that_stops_on_a_full_disk_saves_its_state_when_there_is_space() {
    let dir = TestFolder::new();
    let Some(disk) = SmallDisk::mount(&dir, "64k") else {
        return;
    };
    let sets = [
        &SHORT_RUN[..],
        &[
            "--set",
            "checkpoint.to=disk",
            "--set",
            "checkpoint.every_steps=20",
        ],
    ]
    .concat();
    let start = [
        &["train", "-n", "2", "--json", "--set", "run.output=out"],
        &sets[..],
    ]
    .concat();
    let mut run = dir.start(RONDE, &start, &[]);
    run.wait_stdout("\"event\":\"checkpoint_failed\"", 1);
    run.signal(Signal::TERM);
    run.wait_stdout("the workers keep the state of step", 1);
    disk.grow("64m");
    let ended = run.wait().expect(143, &["checkpoint saved; resume with"]);
    let seen = ended.events();
    let stopped = of_kind(&seen, "run_stopped").next().unwrap();
    assert_eq!(stopped["saved"], true, "{stopped}");
    let resume = ["train", "--resume", "disk", "-n", "2", "--json"];
    let resumed = dir.run(&resume).expect(0, &[]);
    let loaded = resumed.events();
    let loaded = of_kind(&loaded, "checkpoint_loaded").next().unwrap();
    assert_eq!(loaded["step"], stopped["step"]);
    assert_eq!(resumed.blake3(), reference(&dir, &SHORT_RUN));
}

/// A run that ends by a signal only, with its events on the small disk and its checkpoints elsewhere.
const FOREVER: [&str; 12] = [
    "train",
    "-n",
    "2",
    "--json",
    "--set",
    "run.output=disk/out",
    "--set",
    "checkpoint.to=checkpoints",
    "--set",
    "model.channels=1",
    "--set",
    "train.epochs=1000000",
];

#[test]
fn events_are_written_again_when_a_full_disk_has_space() {
    let dir = TestFolder::new();
    let Some(disk) = SmallDisk::mount(&dir, "256k") else {
        return;
    };
    let mut run = dir.start(RONDE, &FOREVER, &[]);
    run.wait_stdout("cannot write events: No space left on device", 1);
    disk.grow("64m");
    run.wait_stdout("can write events again", 1);
    let file = dir.path().join("disk/out/events.jsonl");
    let steps = || {
        std::fs::read_to_string(&file)
            .unwrap()
            .matches("step_committed")
            .count()
    };
    let before = steps();
    until("steps are written again", || steps() > before);
    run.signal(Signal::TERM);
    let ended = run.wait().expect(
        143,
        &["could not write events for a time", "checkpoint saved"],
    );
    let shown = ended.events();
    let stopped = of_kind(&shown, "run_stopped").next().unwrap();
    let written = event_file(&dir, "disk/out/events.jsonl");
    // The totals replace the missing events.
    assert_eq!(of_kind(&written, "run_totals").count(), 1);
    assert_eq!(
        of_kind(&written, "run_stopped").next().unwrap()["step"],
        stopped["step"]
    );
    let step = stopped["step"].as_u64().unwrap() + 5;
    let steps = format!("train.steps={step}");
    let more = ["--resume", "checkpoints", "--set", &steps, "--json"];
    let ended = dir.run(&[&["train"], &more[..]].concat());
    ended.expect(0, &[]).blake3();
}

#[test]
fn a_coordinator_on_a_full_disk_says_so_and_continues_when_there_is_space() {
    let dir = TestFolder::new();
    let Some(disk) = SmallDisk::mount(&dir, "256k") else {
        return;
    };
    let forever = [&FOREVER[..], &["--listen"]].concat();
    let mut run = dir.start(RONDE, &forever, &[]);
    run.wait_stdout("the coordinator cannot", 1);
    disk.grow("64m");
    run.wait_stdout("the coordinator can write the events again", 1);
    run.signal(Signal::TERM);
    let ended = run.wait().expect(143, &["checkpoint saved"]);
    let shown = ended.events();
    let saved = of_kind(&shown, "checkpoint_saved").next().unwrap();
    let written = event_file(&dir, "disk/out/events.jsonl");
    let steps: Vec<u64> = of_kind(&written, "step_committed")
        .map(|event| event["step"].as_u64().unwrap())
        .collect();
    let all: Vec<u64> = (0..saved["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, all, "no event is lost");
}

#[test]
fn a_folder_of_checkpoints_that_is_read_only_for_a_while_loses_only_the_saves_of_that_time() {
    let dir = TestFolder::new();
    let Some(disk) = SmallDisk::mount(&dir, "64m") else {
        return;
    };
    let forever = [
        "train",
        "-n",
        "2",
        "--json",
        "--set",
        "run.output=out",
        "--set",
        "checkpoint.to=disk",
        "--set",
        "model.channels=1",
        "--set",
        "checkpoint.every_steps=50",
        "--set",
        "train.epochs=1000000",
    ];
    let mut run = dir.start(RONDE, &forever, &[]);
    run.wait_stdout("\"event\":\"checkpoint_saved\"", 1);
    until("no file is open for writing", || disk.remount("ro"));
    run.wait_stdout("Read-only file system", 1);
    run.signal(Signal::TERM);
    run.wait_stdout("the workers keep the state of step", 1);
    assert!(disk.remount("rw"));
    let ended = run.wait().expect(143, &["checkpoint saved; resume with"]);
    let seen = ended.events();
    let reported: Vec<&Value> = of_kind(&seen, "checkpoint_saved").collect();
    let last = reported.last().unwrap();
    // Every checkpoint that was reported as saved is complete, or was removed after a newer one.
    let listed = dir.run(&["checkpoint", "verify", "disk"]).expect(0, &[]);
    assert!(
        listed.stdout.contains(&last["step"].to_string()),
        "{listed:#?}"
    );
}
