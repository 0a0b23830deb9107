//! Event lines written to writers that store, refuse or delay them.

use std::path::Path;
use std::sync::mpsc::channel;

use ronde_core::event::PhaseTimes;
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

#[test]
fn writing_continues_when_a_full_disk_has_space_and_both_are_reported() {
    struct Disk {
        is_full: Arc<AtomicBool>,
        steps: Arc<Mutex<Vec<(u64, bool)>>>,
    }
    impl Disk {
        fn check(&self) -> std::io::Result<()> {
            match self.is_full.load(Ordering::Relaxed) {
                true => Err(std::io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            }
        }
        fn note(&self, event: &Event, is_written: bool) {
            if let Event::StepTimes { step, .. } = event {
                self.steps.lock().unwrap().push((step.0, is_written));
            }
        }
    }
    impl EventWriter for Disk {
        fn start(&mut self) -> std::io::Result<()> {
            self.check()
        }
        fn write(&mut self, _: f64, event: &Event) -> std::io::Result<()> {
            self.check()?;
            self.note(event, true);
            Ok(())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            self.check()
        }
        fn skip(&mut self, _: f64, event: &Event) {
            self.note(event, false);
        }
        fn resume(&mut self, _: f64) -> std::io::Result<()> {
            self.check()
        }
    }
    let (is_full, steps) = (Arc::<AtomicBool>::default(), Arc::default());
    let disk = Disk {
        is_full: Arc::clone(&is_full),
        steps: Arc::clone(&steps),
    };
    let reports = Arc::<Mutex<Vec<String>>>::default();
    let reported = Arc::clone(&reports);
    let lines = BackgroundWriter::start("numbers", Box::new(disk));
    let lines = lines.reporting(move |text| reported.lock().unwrap().push(text.to_owned()));
    lines.record(times(1, 0.5));
    assert!(lines.finish());
    is_full.store(true, Ordering::Relaxed);
    assert!(!lines.finish());
    lines.record(times(2, 0.5));
    assert!(!lines.finish());
    is_full.store(false, Ordering::Relaxed);
    assert!(!lines.finish(), "an event is missing");
    lines.record(times(3, 0.5));
    lines.finish();
    assert_eq!(*steps.lock().unwrap(), [(1, true), (2, false), (3, true)]);
    let reports = reports.lock().unwrap();
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(reports[0].starts_with("cannot write numbers: "));
    assert_eq!(reports[1], "can write numbers again; 1 events are missing");
    let problem = lines.problem().unwrap();
    assert!(problem.starts_with("could not write numbers for a time: "));
    assert!(problem.ends_with("1 events are missing"), "{problem}");
}
