//! Frames and files; the contents are read by TensorBoard in `crates/ronde/tests`.

use ronde_core::{Epoch, Generation, Step};

use super::*;

#[test]
fn a_record_has_the_known_bytes_of_the_first_event() {
    // The first record of a file that TensorBoard 2.20 wrote at 1.5 s.
    let bytes = record(file_version(1.5));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("first_record.hex").trim_end());
}

#[test]
fn a_resumed_run_begins_another_file_that_sorts_after_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("tensorboard");
    let begin = |resumes| {
        let run = RunDescription::default();
        let mut files = TensorboardFiles::new(&folder, run, "node/1", resumes);
        files.start().unwrap();
        files.flush().unwrap();
        files
    };
    begin(false);
    let mut files = begin(true);
    let names = || {
        let mut names: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names().len(), 2);
    assert!(names()[0].ends_with("node1"), "{:?}", names());
    let commit = Event::StepCommitted {
        step: Step(0),
        epoch: Epoch(0),
        generation: Generation(0),
        loss: 1.0,
        samples: 64,
        targets: 64,
        skipped: 0,
        learning_rate: 0.1,
        gradient_norm: 2.0,
        skipped_update: None,
        duration_s: 0.5,
    };
    files.write(2.0, &commit).unwrap();
    files.flush().unwrap();
    let last = folder.join(&names()[1]);
    let size = std::fs::metadata(&last).unwrap().len();
    assert!(size > 200, "{size}");
}
