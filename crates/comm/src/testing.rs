//! Ranks as threads of one process, with a watchdog that shows every rank's error.

use std::fmt::Display;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use ronde_core::GroupRank;

use crate::config::GroupConfig;
use crate::group::ProcessGroup;

/// Runs `f` once per rank of an in-process group of `size`, each on its own thread, and returns their
/// results by rank.
///
/// # Panics
/// When a rank fails, panics, or has not finished after `limit`: the message shows every rank's state.
pub fn spawn_ranks<T, E, F>(size: usize, limit: Duration, f: F) -> Vec<T>
where
    T: Send + 'static,
    E: Display + 'static,
    F: Fn(ProcessGroup) -> Result<T, E> + Send + Sync + 'static,
{
    let configs = (0..size)
        .map(|rank| {
            let mut config = GroupConfig::new("test", "test", GroupRank(rank as u32));
            config.timeout = limit;
            config
        })
        .collect();
    let groups = in_process_groups(configs);
    run_ranks(groups, limit, f)
}

/// Returns the groups of [`ProcessGroup::in_process`].
///
/// # Panics
/// When a group cannot be made.
#[must_use]
pub fn in_process_groups(configs: Vec<GroupConfig>) -> Vec<ProcessGroup> {
    ProcessGroup::in_process(configs)
        .into_iter()
        .map(|group| group.unwrap_or_else(|error| panic!("cannot join: {error}")))
        .collect()
}

/// Runs as [`spawn_ranks`] does, over groups that are already connected.
///
/// # Panics
/// When a rank fails, panics, or has not finished after `limit`: the message shows every rank's state.
pub fn run_ranks<T, E, F>(groups: Vec<ProcessGroup>, limit: Duration, f: F) -> Vec<T>
where
    T: Send + 'static,
    E: Display + 'static,
    F: Fn(ProcessGroup) -> Result<T, E> + Send + Sync + 'static,
{
    let size = groups.len();
    let f = Arc::new(f);
    let (done, finished) = mpsc::channel();
    for (rank, group) in groups.into_iter().enumerate() {
        let (f, done) = (Arc::clone(&f), done.clone());
        thread::spawn(move || {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| f(group)))
                .map_or_else(
                    |panic| Err(format!("panicked: {}", panic_text(&*panic))),
                    |result| result.map_err(|error| error.to_string()),
                );
            // The receiver is dropped only after the watchdog has reported.
            let _late = done.send((rank, outcome));
        });
    }
    drop(done);
    let mut states: Vec<Option<Result<T, String>>> = (0..size).map(|_| None).collect();
    let end = ronde_clock::deadline(limit);
    while states.iter().any(Option::is_none) {
        match finished.recv_timeout(ronde_clock::left(end)) {
            Ok((rank, outcome)) => states[rank] = Some(outcome),
            Err(_) => break,
        }
    }
    if states.iter().all(|state| matches!(state, Some(Ok(_)))) {
        return states.into_iter().flatten().flatten().collect();
    }
    panic!("{}", verdict(&states, limit));
}

fn verdict<T>(states: &[Option<Result<T, String>>], limit: Duration) -> String {
    let lines = states.iter().enumerate().map(|(rank, state)| match state {
        None => format!("rank {rank}: not done after {limit:?}"),
        Some(Ok(_)) => format!("rank {rank}: fine"),
        Some(Err(error)) => format!("rank {rank}: {error}"),
    });
    format!("ranks failed:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_else(|| "no message".to_owned())
}
