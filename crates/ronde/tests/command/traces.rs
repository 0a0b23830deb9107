//! Recordings of real runs and their timelines.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{RONDE, TestFolder, until};

/// Returns the events of the timeline of the run in `out`.
fn timeline(dir: &TestFolder) -> Vec<Value> {
    let text = std::fs::read(dir.path().join("out/trace/trace.json")).unwrap();
    let trace: Value = serde_json::from_slice(&text).unwrap();
    assert!(trace["otherData"]["dropped_spans"].is_u64());
    trace["traceEvents"].as_array().unwrap().clone()
}

/// Returns the pairs of rank and name of all spans.
fn names(events: &[Value]) -> BTreeSet<(u64, String)> {
    let spans = events.iter().filter(|event| event["ph"] == "X");
    spans
        .map(|event| {
            let name = event["name"].as_str().unwrap().to_owned();
            (event["pid"].as_u64().unwrap(), name)
        })
        .collect()
}

#[test]
fn recording_a_run_shows_every_phase_of_every_rank_and_changes_no_bit() {
    let dir = TestFolder::new();
    let train = [
        "train",
        "--json",
        "-n",
        "2",
        "--set",
        "run.output=out",
        "--set",
        "train.epochs=2",
        "--set",
        "checkpoint.every_steps=10",
    ];
    let plain = dir.run(&train).expect(0, &[]).blake3();
    dir.run(&["trace", "out"])
        .expect(2, &["out has no recording"]);
    let recorded = [&train[..], &["--overwrite", "--trace"]].concat();
    assert_eq!(dir.run(&recorded).expect(0, &[]).blake3(), plain);
    dir.run(&["trace", "out"])
        .expect(0, &["trace.json", "spans of 2 ranks"]);
    let events = timeline(&dir);
    let names = names(&events);
    for rank in 0..2 {
        for name in [
            "step",
            "wait for data",
            "forward",
            "backward",
            "wait for reduction",
            "vote",
            "optimizer",
            "evaluation",
            "collective",
            "fetch",
            "decode",
            "write checkpoint",
        ] {
            assert!(names.contains(&(rank, name.to_owned())), "{rank} {name}");
        }
    }
    assert!(names.contains(&(0, "publish checkpoint".to_owned())));
    // All ranks leave the vote on a step after all have entered it, so aligned votes overlap.
    let vote = |rank: u64| {
        let is_it = |event: &&Value| {
            event["pid"] == rank && event["name"] == "vote" && event["args"]["step"] == 20
        };
        let event = events.iter().find(is_it).unwrap();
        let begin = event["ts"].as_f64().unwrap();
        (begin, begin + event["dur"].as_f64().unwrap())
    };
    let (first, second) = (vote(0), vote(1));
    assert!(
        first.0 < second.1 && second.0 < first.1,
        "{first:?} {second:?}"
    );
    // A new run has no recording.
    let again = [&train[..], &["--overwrite"]].concat();
    dir.run(&again).expect(0, &[]);
    dir.run(&["trace", "out"])
        .expect(2, &["out has no recording"]);
}

#[test]
fn a_running_job_is_recorded_on_request() {
    let dir = TestFolder::new();
    dir.run(&["trace"]).expect(2, &["no run in runs"]);
    dir.run(&["trace", "nowhere"])
        .expect(2, &["nowhere is not the folder of a run"]);
    let arguments = [
        "train",
        "--json",
        "-n",
        "2",
        "--set",
        "run.output=out",
        "--set",
    ];
    let arguments = [&arguments[..], &["train.epochs=100000"]].concat();
    let mut run = dir.start(RONDE, &arguments, &[]);
    run.after_steps(20);
    dir.run(&["trace", "out", "--stop"])
        .expect(2, &["out is not being recorded"]);
    dir.run(&["trace", "out", "--start"]).expect(0, &["--stop"]);
    until("both workers are recorded", || {
        dir.list("out/trace").len() == 3
    });
    dir.run(&["trace", "out", "--for", "1s"])
        .expect(2, &["is being recorded already"]);
    dir.run(&["trace", "out", "--stop"])
        .expect(0, &["spans of 2 ranks"]);
    assert!(names(&timeline(&dir)).contains(&(1, "vote".to_owned())));
    dir.run(&["trace", "out", "--for", "300ms", "--to", "missing/t.json"])
        .expect(2, &["cannot write the timeline to missing/t.json"]);
    dir.run(&["trace", "out"]).expect(0, &["spans of 2 ranks"]);
    run.signal(Signal::TERM);
    run.wait();
    dir.run(&["trace", "out", "--for", "1s"])
        .expect(2, &["the run is not under way"]);
    // The last recording can still be read.
    dir.run(&["trace", "out"]).expect(0, &[]);
}
