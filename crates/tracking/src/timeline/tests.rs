//! Recordings as written by workers, read back as trace events.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

/// Reads files with these contents.
fn timeline(files: &[&str]) -> io::Result<RunTimeline> {
    let folder = tempfile::tempdir()?;
    for (number, text) in files.iter().enumerate() {
        std::fs::write(folder.path().join(format!("rank-{number}.1.spans")), text)?;
    }
    std::fs::write(folder.path().join("request"), "1 0")?;
    RunTimeline::read(&RunTimeline::files(folder.path())?)
}

fn chrome(timeline: &RunTimeline) -> Value {
    let mut text = Vec::new();
    timeline.write_chrome(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Checks every event against the format: fields and types; spans of a thread are in order and nested.
fn check_format(trace: &Value) {
    let mut open: BTreeMap<(u64, u64), Vec<f64>> = BTreeMap::new();
    let mut last: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        let pid = event["pid"].as_u64().unwrap();
        assert!(event["name"].is_string() && event["args"].is_object());
        match event["ph"].as_str().unwrap() {
            "M" => assert!(event["args"]["name"].is_string()),
            "C" => assert!(event["ts"].is_f64() && event["args"]["bytes"].is_u64()),
            "X" => {
                let thread = (pid, event["tid"].as_u64().unwrap());
                let (begin, duration) = (
                    event["ts"].as_f64().unwrap(),
                    event["dur"].as_f64().unwrap(),
                );
                assert!(begin >= 0.0 && duration >= 0.0);
                let before = last.insert(thread, begin).unwrap_or(0.0);
                assert!(begin >= before, "{event} before {before}");
                let open = open.entry(thread).or_default();
                while open.last().is_some_and(|end| *end <= begin + 1e-4) {
                    open.pop();
                }
                let end = begin + duration;
                assert!(
                    open.last().is_none_or(|outer| end <= outer + 1e-3),
                    "{event}"
                );
                open.push(end);
            }
            other => panic!("event of type {other}"),
        }
    }
}

#[test]
fn ranks_are_aligned_and_every_event_has_the_format() {
    let first = "ronde.recording 2\nsection 5 0 1 100 0 0\n\
                 4 2000 500 7 0\n2 1000 900 0 0\n0 1000 3000 7 0\n10 2000 700 4096 0\n\
                 12 1500 100 32 0\n13 1550 900 5 1\n14 1000 4000 7 0\n15 5000 100 7 0\n";
    // Its clock is 1 ms ahead.
    let second = "ronde.recording 2\nsection 5 1 1 101 -1000000 250\n\
                  2 1001500 1000 1 0\n10 1002600 100 4096 0\ndropped 3\n";
    let timeline = timeline(&[first, second]).unwrap();
    assert_eq!((timeline.spans(), timeline.dropped), (10, 3));
    assert_eq!((timeline.clock_error_ns, timeline.damaged_lines), (250, 0));
    let trace = chrome(&timeline);
    check_format(&trace);
    let events = trace["traceEvents"].as_array().unwrap();
    let forward: Vec<_> = events.iter().filter(|e| e["name"] == "forward").collect();
    let begins: Vec<_> = forward.iter().map(|e| (&e["pid"], &e["ts"])).collect();
    assert_eq!(begins, [(&0.into(), &0.0.into()), (&1.into(), &0.5.into())]);
    assert_eq!(forward[1]["args"]["shard"], 1);
    assert_eq!(trace["otherData"]["clock_error_us"], 0.25);
    let threads = events.iter().filter(|e| e["name"] == "thread_name");
    let threads: Vec<_> = threads
        .map(|e| {
            (
                e["pid"].as_u64().unwrap(),
                e["args"]["name"].as_str().unwrap(),
            )
        })
        .collect();
    let names = [
        "compute",
        "collectives",
        "checkpoint",
        "checkpoint publication",
        "loader 0",
        "loader 1",
    ];
    let of_first = names.map(|name| (0, name));
    assert_eq!(
        threads,
        [&of_first[..], &[(1, "compute"), (1, "collectives")]].concat()
    );
    let fetch = events.iter().find(|e| e["name"] == "fetch").unwrap();
    assert_eq!(
        (&fetch["tid"], &fetch["args"]["samples"]),
        (&5.into(), &32.into())
    );
}

#[test]
fn damaged_lines_are_counted_and_other_files_are_rejected() {
    let text = "ronde.recording 2\n2 1 1 1 0\nsection 5 0 1 100 0 0\nnonsense\n2 5 1 0 0\n2 50 1";
    let read = timeline(&[text]).unwrap();
    assert_eq!((read.spans(), read.damaged_lines), (1, 3));
    for text in [
        "{}\n",
        "ronde.recording 3\n",
        "\u{0}",
        "section 5 0 1 100 0 0\n",
    ] {
        let error = timeline(&[text]).unwrap_err().to_string();
        assert!(error.contains("not a recording"), "{error}");
    }
    let empty = timeline(&["", "ronde.recording 2\n"]).unwrap();
    assert_eq!((empty.spans(), empty.duration_s()), (0, 0.0));
    check_format(&chrome(&empty));
}

proptest! {
    #[test]
    fn any_spans_give_a_valid_timeline(
        spans in prop::collection::vec((0_u64..16, 0_u64..5_000, 0_u64..2_000, any::<u64>(), any::<u32>()), 0..60),
        offset in -6_000_i64..6_000,
    ) {
        let mut text = format!("ronde.recording 2\nsection 1 0 1 9 {offset} 3\n");
        for (kind, begin, duration, detail, thread) in spans {
            text.push_str(&format!("{kind} {begin} {duration} {detail} {thread}\n"));
        }
        check_format(&chrome(&timeline(&[&text]).unwrap()));
    }
}
