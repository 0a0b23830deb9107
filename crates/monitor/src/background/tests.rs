//! Event lines written to writers that store, refuse or delay them.

use std::sync::mpsc::channel;

use ronde_core::event::PhaseTimes;
use std::path::Path;

use ronde_core::{FormatHeader, Rank, Step};

use super::*;

/// A writer that accepts `room` bytes, like a disk that fills up.
struct SmallWriter {
    room: usize,
    kept: Arc<Mutex<Vec<u8>>>,
}

impl Write for SmallWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut kept = self.kept.lock().unwrap();
        if kept.len() + bytes.len() > self.room {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        kept.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn disk(room: usize) -> (BackgroundWriter, Arc<Mutex<Vec<u8>>>) {
    let kept = Arc::<Mutex<Vec<u8>>>::default();
    let disk = SmallWriter {
        room,
        kept: Arc::clone(&kept),
    };
    (BackgroundWriter::json_lines(Box::new(disk)), kept)
}

fn times(step: u64, compute_s: f64) -> Event {
    Event::StepTimes {
        rank: Rank(1),
        step: Step(step),
        times: PhaseTimes {
            compute_s,
            ..PhaseTimes::default()
        },
        arrived_s: None,
        bytes_sent: 5,
    }
}

#[test]
fn the_header_is_first_and_every_event_can_be_read_back() {
    let (lines, kept) = disk(usize::MAX);
    lines.record(times(7, 0.5));
    lines.record(times(8, f64::NAN));
    assert!(lines.finish());
    lines.record(times(9, 0.5));
    drop(lines);
    let text = String::from_utf8(kept.lock().unwrap().clone()).unwrap();
    let mut read = text.lines();
    let header: FormatHeader = serde_json::from_str(read.next().unwrap()).unwrap();
    header.check(FormatHeader::EVENTS).unwrap();
    let values: Vec<serde_json::Value> = read.map(|l| serde_json::from_str(l).unwrap()).collect();
    let steps: Vec<_> = values.iter().map(|v| v["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [7, 8, 9]);
    assert!(values[0]["t"].as_f64().unwrap() > 1.7e9);
    assert_eq!(values[0]["event"], "step_times");
    assert!(values[1]["compute_s"].is_null());
    let mut first = values[0].clone();
    first.as_object_mut().unwrap().remove("t");
    assert_eq!(
        serde_json::from_value::<Event>(first).unwrap(),
        times(7, 0.5)
    );
    let second: Event = serde_json::from_value(values[1].clone()).unwrap();
    assert!(matches!(second, Event::StepTimes { times, .. } if times.compute_s.is_nan()));
}

#[test]
fn a_full_disk_is_reported_once_and_does_not_stop_the_run() {
    let (lines, kept) = disk(60);
    assert!(lines.finish(), "the header fits");
    assert_eq!(lines.problem(), None);
    lines.record(times(1, 0.5));
    assert!(!lines.finish());
    lines.record(times(2, 0.5));
    assert!(!lines.finish());
    let problem = lines.problem().unwrap();
    assert!(problem.starts_with("cannot write events: "), "{problem}");
    assert!(
        problem.ends_with("all later events are missing"),
        "{problem}"
    );
    assert_eq!(lines.problem(), None, "reported once");
    assert!(kept.lock().unwrap().ends_with(b"}\n"), "no half line");
}

#[test]
fn a_blocked_writer_does_not_block_recording() {
    struct BlockedWriter(Receiver<()>);
    impl Write for BlockedWriter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let _ = self.0.recv();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let (release, wait) = channel();
    let lines = BackgroundWriter::json_lines(Box::new(BlockedWriter(wait)));
    for step in 0..(EVENTS_MAX as u64 + 5_000) {
        lines.record(times(step, 0.5));
    }
    drop(release);
    assert!(!lines.finish(), "some did not fit");
    let problem = lines.problem().unwrap();
    assert!(
        problem.contains("the writer could not keep up"),
        "{problem}"
    );
}

#[test]
fn a_symbolic_link_is_replaced_and_not_followed() {
    let folder = std::env::temp_dir().join(format!("ronde-events-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (target, link) = (folder.join("target"), folder.join("events.jsonl"));
    std::fs::write(&target, "mine").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let lines = BackgroundWriter::event_file(EventFile::create(&link, Default::default()).unwrap());
    lines.record(times(1, 0.5));
    assert!(lines.finish());
    assert_eq!(std::fs::read_to_string(&target).unwrap(), "mine");
    assert!(
        std::fs::read_to_string(&link)
            .unwrap()
            .contains("step_times")
    );
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_file_that_cannot_be_created_is_named() {
    let error = EventFile::create(
        Path::new("/no/such/folder/events.jsonl"),
        Default::default(),
    )
    .err()
    .unwrap();
    assert!(error.to_string().contains("/no/such/folder/events.jsonl"));
}
