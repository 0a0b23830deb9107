//! The lines of both files, also after a run continues from a checkpoint.

use std::collections::BTreeMap;

use ronde_core::{Epoch, Generation, Step};

use super::*;

fn commit(step: u64, loss: f64) -> Event {
    Event::StepCommitted {
        step: Step(step),
        epoch: Epoch(0),
        generation: Generation(0),
        loss,
        samples: 64,
        targets: 64,
        skipped: 0,
        learning_rate: 0.1,
        gradient_norm: 2.0,
        skipped_update: None,
        duration_s: 0.5,
    }
}

fn loaded(step: u64) -> Event {
    Event::CheckpointLoaded {
        step: Step(step),
        world_size: 1,
        bytes: 1,
        duration_s: 0.1,
        address: None,
        skipped: Vec::new(),
    }
}

#[test]
fn each_step_is_in_the_file_once_after_a_checkpoint_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = CsvFiles::new(dir.path(), false);
    files.start().unwrap();
    for step in 0..4 {
        files.write(1.0, &commit(step, 1.0)).unwrap();
    }
    files.flush().unwrap();
    drop(files);
    let path = dir.path().join(CsvFiles::METRICS_FILE);
    // A crash leaves an incomplete line.
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}5,0,1.0")).unwrap();
    let mut files = CsvFiles::new(dir.path(), true);
    files.start().unwrap();
    files.write(2.0, &loaded(2)).unwrap();
    files.write(2.0, &commit(2, f64::NAN)).unwrap();
    files.flush().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    assert_eq!(
        text,
        format!(
            "{STEPS}1,0,1.000,1,0.1,2,64,0.5\n2,0,1.000,1,0.1,2,64,0.5\n3,0,2.000,NaN,0.1,2,64,0.5\n"
        )
    );
    let mut files = CsvFiles::new(dir.path(), false);
    files.start().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), STEPS, "a new run");
}

#[test]
fn names_of_metrics_are_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let mut files = CsvFiles::new(dir.path(), false);
    files.start().unwrap();
    let evaluated = Event::Evaluated {
        step: Step(9),
        loss: 0.25,
        samples: 10,
        metrics: BTreeMap::from([("a,\"b\"".to_owned(), 0.5)]),
    };
    files.write(1.0, &evaluated).unwrap();
    files.flush().unwrap();
    let text = std::fs::read_to_string(dir.path().join(CsvFiles::EVALUATIONS_FILE)).unwrap();
    assert_eq!(
        text,
        format!("{EVALUATIONS}10,1.000,loss,0.25\n10,1.000,\"a,\"\"b\"\"\",0.5\n")
    );
}
