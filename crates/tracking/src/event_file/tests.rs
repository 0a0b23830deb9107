//! Tests of event files over several attempts, with limits and after crashes.

use ronde_core::event::PhaseTimes;
use ronde_core::{Epoch, Generation, Rank, Step};

use super::*;

const STEPS: u64 = 1000;

fn started() -> Event {
    Event::RunStarted {
        name: "digits".into(),
        plan: "0123".into(),
        world_size: 2,
        logical_shards: 8,
        parameters: 10,
        steps: STEPS,
        epochs: 10,
        samples: 640,
        unit: ronde_core::event::SampleUnit::Sample,
    }
}

fn loaded(step: u64) -> Event {
    Event::CheckpointLoaded {
        step: Step(step),
        world_size: 2,
        bytes: 1,
        duration_s: 0.1,
        address: Some("there".to_owned()),
        skipped: vec![],
    }
}

/// Returns the events of one step of two workers.
fn step(step: u64) -> Vec<Event> {
    let committed = Event::StepCommitted {
        step: Step(step),
        epoch: Epoch(step / 100),
        generation: Generation(0),
        loss: 0.5,
        samples: 60,
        targets: 60,
        skipped: 4,
        learning_rate: 0.1,
        gradient_norm: 1.0,
        skipped_update: None,
        duration_s: 0.25,
    };
    let times = |rank| Event::StepTimes {
        rank: Rank(rank),
        step: Step(step),
        times: PhaseTimes {
            compute_s: 0.2,
            ..PhaseTimes::default()
        },
        arrived_s: None,
        bytes_sent: (step + 1) * 100,
    };
    vec![times(0), committed, times(1)]
}

/// Writes the steps of a range, and a time of one second each.
fn run(file: &mut EventFile, t: &mut f64, steps: std::ops::Range<u64>) {
    file.start().unwrap();
    for number in steps {
        *t += 1.0;
        for event in step(number) {
            file.write(*t, &event).unwrap();
        }
    }
    file.flush().unwrap();
}

/// Runs 900 steps, resumes from a checkpoint at step 800, and runs to the end.
fn two_attempts(settings: EventFileSettings) -> (RunView, u64, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut t = 1e9;
    let mut file = EventFile::create(&path, settings).unwrap();
    file.start().unwrap();
    file.write(t, &started()).unwrap();
    run(&mut file, &mut t, 0..900);
    drop(file);
    // A crash in the middle of a line.
    let mut broken = OpenOptions::new().append(true).open(&path).unwrap();
    broken
        .write_all(b"{\"t\": 1e9, \"event\": \"step_com")
        .unwrap();
    t += 5000.0;
    let mut file = EventFile::append(&path, settings).unwrap();
    let attempt = file.next_attempt();
    for event in [attempt, started(), loaded(800)] {
        file.write(t, &event).unwrap();
    }
    run(&mut file, &mut t, 800..STEPS);
    let bytes = std::fs::metadata(&path).unwrap().len()
        + std::fs::metadata(previous(&path)).map_or(0, |file| file.len());
    let text = std::fs::read_to_string(&path).unwrap();
    drop(file);
    let read = EventFile::append(&path, settings).unwrap();
    (read.view().clone(), bytes, text)
}

#[track_caller]
fn check(settings: EventFileSettings) -> (u64, String) {
    let (view, bytes, text) = two_attempts(settings);
    assert_eq!(view.attempt, 2);
    assert_eq!(
        view.throughput.samples(),
        60 * STEPS,
        "no step counts twice"
    );
    assert_eq!(view.throughput.seconds(), 0.25 * STEPS as f64);
    assert_eq!(view.skipped, 4 * STEPS);
    // The process of each attempt counts from zero, and its last report is of its last step.
    assert_eq!(view.workers[&Rank(1)].bytes_sent, 100 * (900 + STEPS));
    let compute_s = view.workers[&Rank(1)].times.compute_s;
    assert!((compute_s - 0.2 * STEPS as f64).abs() < 1e-6, "{compute_s}");
    assert_eq!(view.progress.unwrap().committed, STEPS);
    assert_eq!(view.name, "digits");
    // 900 seconds, then 200; the time between the attempts does not count.
    assert!((view.earlier_s - 1100.0).abs() < 1e-3, "{}", view.earlier_s);
    (bytes, text)
}

#[test]
fn a_resumed_run_appends_and_its_totals_cover_all_attempts() {
    let (_, text) = check(EventFileSettings::default());
    let lines = |kind: &str| text.lines().filter(|line| line.contains(kind)).count();
    assert_eq!(lines("\"step_committed\""), 900 + 200);
    assert_eq!(lines("\"attempt_started\""), 1);
    assert_eq!(lines("ronde.events"), 1, "one header");
}

#[test]
fn a_limited_file_stays_below_its_limit_and_keeps_the_totals() {
    let (bytes, text) = check(EventFileSettings {
        bytes_max: 40_000,
        ..EventFileSettings::default()
    });
    assert!(bytes <= 44_000, "{bytes}");
    assert!(text.lines().nth(1).unwrap().contains("run_totals"));
}

#[test]
fn a_thinned_file_has_every_nth_step_and_the_totals_of_all() {
    let (_, text) = check(EventFileSettings {
        every_steps: 100,
        bytes_max: 0,
    });
    let committed = text
        .lines()
        .filter(|line| line.contains("\"step_committed\"") && !line.contains("run_totals"));
    assert_eq!(committed.count(), 9 + 2);
}

#[test]
fn an_archived_file_begins_with_the_totals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut t = 1e9;
    let mut file = EventFile::create(&path, EventFileSettings::default()).unwrap();
    file.start().unwrap();
    file.write(t, &started()).unwrap();
    run(&mut file, &mut t, 0..10);
    drop(file);
    EventFile::archive(&path).unwrap();
    let read = EventFile::append(&path, EventFileSettings::default()).unwrap();
    assert_eq!(
        (read.view().attempt, read.view().throughput.samples()),
        (2, 600)
    );
    assert!(previous(&path).ends_with("events.1.jsonl") && previous(&path).is_file());
    drop(read);
    let first = std::fs::read_to_string(previous(&path)).unwrap();
    EventFile::archive(&path).unwrap();
    let both = std::fs::read_to_string(previous(&path)).unwrap();
    assert!(both.starts_with(&first) && both.len() > first.len());
}

const LIMITED: EventFileSettings = EventFileSettings {
    every_steps: 1,
    bytes_max: 40_000,
};

#[test]
fn a_crash_in_a_rotation_loses_no_totals() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut t = 1e9;
    let mut file = EventFile::create(&path, LIMITED).unwrap();
    file.start().unwrap();
    file.write(t, &started()).unwrap();
    run(&mut file, &mut t, 0..300);
    drop(file);
    assert!(previous(&path).is_file(), "300 steps exceed the limit");
    // The file is renamed, and the new one is missing or incomplete.
    for left in [
        "",
        "{\"format\"",
        "{}\n",
        "{}\n{\"t\": 1e9, \"event\": \"run_tot",
    ] {
        std::fs::rename(&path, previous(&path)).unwrap();
        if !left.is_empty() {
            std::fs::write(&path, left).unwrap();
        }
        for _ in 0..2 {
            let file = EventFile::append(&path, LIMITED).unwrap();
            let view = file.view();
            assert_eq!(view.throughput.samples(), 60 * 300, "after {left:?}");
            assert_eq!(view.workers[&Rank(0)].bytes_sent, 30_000);
            assert_eq!(
                (&*view.name, view.progress.unwrap().committed),
                ("digits", 300)
            );
            assert!((view.earlier_s - 300.0).abs() < 1e-3, "{}", view.earlier_s);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.lines().nth(1).unwrap().contains("run_totals"),
            "{text}"
        );
    }
}

#[test]
fn the_result_of_a_run_survives_a_rotation_but_not_the_next_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    let mut t = 1e9;
    let mut file = EventFile::create(&path, EventFileSettings::default()).unwrap();
    file.start().unwrap();
    file.write(t, &started()).unwrap();
    run(&mut file, &mut t, 0..10);
    let saved = Event::ModelSaved {
        path: "model.safetensors".into(),
        config_path: "model.json".into(),
        blake3: "ab".into(),
    };
    let finished = Event::RunFinished {
        steps: 10,
        samples: 600,
        skipped: 40,
        duration_s: 12.5,
    };
    file.write(t, &saved).unwrap();
    file.write(t, &finished).unwrap();
    file.rotate(t).unwrap();
    drop(file);
    let mut file = EventFile::append(&path, EventFileSettings::default()).unwrap();
    assert_eq!(file.view().model.as_ref().unwrap().blake3, "ab");
    assert_eq!(file.view().finished_s, Some(12.5));
    let attempt = file.next_attempt();
    file.write(t, &attempt).unwrap();
    file.rotate(t).unwrap();
    let view = EventFile::append(&path, EventFileSettings::default()).unwrap();
    assert_eq!((&view.view().model, view.view().finished_s), (&None, None));
}

#[test]
fn the_duration_of_a_run_does_not_include_changes_of_the_clock() {
    let (mut clock, day) = (RunClock::default(), 86_400.0);
    let event = Event::Notice {
        rank: None,
        message: String::new(),
    };
    let start = 20_000.0 * day;
    // 5 s and 3 s, and after the clock is set by a day in each direction 4 s and 6 s.
    for t in [0.0, 5.0, 8.0, day, day + 4.0, 10.0, 16.0] {
        clock.tick(start + t, &event);
    }
    assert_eq!(clock.elapsed_s(), 18.0);
    clock.tick(start + 2.0 * day, &Event::AttemptStarted { attempt: 2 });
    clock.tick(start + 2.0 * day + 7.0, &event);
    assert_eq!(clock.elapsed_s(), 25.0);
}
