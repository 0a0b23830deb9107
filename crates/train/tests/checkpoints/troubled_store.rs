//! A store that is very slow, or that cannot be written to while a run stops.

use std::io::{Error, ErrorKind};
use std::thread;
use std::time::Duration;

use ronde_core::Event;
use ronde_store::StoreError;
use ronde_train::TrainError;

use crate::{Disturbed, RunResult, RunSettings, local, train_in, undisturbed};

fn notices(result: &RunResult, text: &str) -> usize {
    let has_text =
        |event: &&Event| matches!(event, Event::Notice { message, .. } if message.contains(text));
    result.events.iter().filter(has_text).count()
}

#[test]
fn a_very_slow_store_delays_saves_but_changes_neither_steps_nor_bits() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let slow = Disturbed::over(&store, |_| {
        thread::park_timeout(Duration::from_millis(1_100));
        Ok(())
    });
    let start = RunSettings::new(2).with("checkpoint.every_steps=3");
    let end = train_in(&slow, &start);
    assert_eq!(end.bits(), undisturbed());
    assert_eq!(end.committed(), (0..9).collect::<Vec<_>>());
    assert_eq!((end.saved().last(), end.failed()), (Some(&9), vec![]));
    // The last one is waited for.
    assert!(notices(&end, "waiting for the ") > 0, "{:?}", end.events);
    let again = train_in(&store, &start.resuming());
    assert_eq!(again.loaded(), Some((9, vec![])));
}

/// Stops a run whose store refuses files of checkpoints with an error for the first `refusals` times.
fn stopped(kind: ErrorKind, refusals: u32, sets: &[&'static str]) -> (RunResult, bool) {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    let mut refused = 0;
    let full = Disturbed::over(&store, move |name| {
        refused += 1;
        if refused > refusals {
            return Ok(());
        }
        Err(StoreError::Disk {
            operation: "write",
            location: name.to_string(),
            source: Error::from(kind),
        })
    });
    let settings = RunSettings::new(2).stopping(4);
    let settings = sets
        .iter()
        .fold(settings, |settings, set| settings.with(set));
    let end = train_in(&full, &settings);
    let saved = |rank: &Result<_, TrainError>| match rank {
        Err(TrainError::Stopped { saved, .. }) => *saved,
        other => panic!("{other:?}"),
    };
    let saved: Vec<bool> = end.ranks.iter().map(saved).collect();
    assert_eq!(saved[0], saved[1], "all ranks know the same");
    if saved[0] {
        let again = train_in(&store, &RunSettings::new(3).resuming());
        assert_eq!(again.bits(), undisturbed());
    }
    let is_saved = saved[0];
    (end, is_saved)
}

#[test]
fn a_run_that_stops_keeps_its_state_until_it_can_be_saved() {
    for kind in [
        ErrorKind::StorageFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::ReadOnlyFilesystem,
        ErrorKind::PermissionDenied,
    ] {
        // Both ranks fail in the first attempt, and one of them in the second one.
        let (end, is_saved) = stopped(kind, 3, &[]);
        assert!(is_saved, "{kind}: {:?}", end.events);
        assert_eq!(end.failed().len(), 1, "{kind}: reported once");
        assert_eq!(notices(&end, "the workers keep the state of step"), 1);
    }
}

#[test]
fn a_run_that_stops_gives_its_state_up_at_the_limit_or_if_waiting_is_in_vain() {
    let limit = ["checkpoint.finish_limit_s=3.5"];
    let (end, is_saved) = stopped(ErrorKind::StorageFull, u32::MAX, &limit);
    assert!(!is_saved);
    assert_eq!(notices(&end, "the workers keep the state of step"), 1);
    let (end, is_saved) = stopped(ErrorKind::InvalidInput, u32::MAX, &[]);
    assert!(!is_saved);
    assert_eq!(notices(&end, "the workers keep the state of step"), 0);
    let is_last = |event: &Event| matches!(event, Event::CheckpointFailed { is_last: true, .. });
    assert!(end.events.iter().any(is_last), "{:?}", end.events);
}
