//! The end of a job on request.

use std::time::Duration;

use super::CANCELLED_FILE;
use super::client::call;
use super::heartbeat::{BEAT_EVERY, HeartbeatReader, may_be_silent};
use super::queue;
use crate::copying::publish_json;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::process_folder::ProcessState;
use crate::state::JobState;

/// Time limit for the scheduler to end a job.
const END_MAX: Duration = Duration::from_secs(90);
/// How long a command waits before it reports that it waits.
const QUIET_MAX: Duration = Duration::from_secs(1);
/// The numbers of looks without a heartbeat after which a launcher is not waited for: 10 s, or 3 s if its lock is free.
const SILENT_AFTER: u32 = 20;
const UNLOCKED_AFTER: u32 = 6;
/// Reported instead of a last checkpoint.
const NO_LAUNCHER: &str =
    "the launcher of the job does not respond: ending the allocation without a last checkpoint";

/// Ends a job: its launcher saves a checkpoint if it can within `grace`; then Slurm ends the allocation.
pub(super) fn cancel(
    id: &str,
    paths: &JobPaths,
    grace: Duration,
    report: fn(&str),
) -> Result<(), SubmitError> {
    // Before the signal, after which the launcher looks for it.
    publish_json(
        &paths.folder().join(CANCELLED_FILE),
        &ronde_clock::unix_ms(),
    )?;
    if may_be_silent(paths) {
        report("the launcher of the job may be lost; looking for its heartbeat");
    }
    let (state, is_silent) = match queue::look(id, paths, true) {
        Ok((state, _)) if state.is_over() => return Ok(()),
        Ok((state, is_silent)) => (Some(state), is_silent),
        Err(_) => (None, false),
    };
    let is_over = || queue::state(id, paths, true).is_ok_and(|state| state.is_over());
    let is_running = matches!(state, Some(JobState::Running { .. }));
    if is_running && is_silent {
        report(NO_LAUNCHER);
    } else if is_running && !grace.is_zero() {
        drain(id, paths, grace, report, &is_over);
    }
    if is_silent || !is_over() {
        call("scancel", &[id])?;
    }
    let waits = || report("waiting until Slurm has ended the processes of the job");
    match wait_for(END_MAX, &waits, &mut || is_over()) {
        true => Ok(()),
        false => Err(SubmitError::Program {
            program: "scancel".to_owned(),
            problem: format!(
                "Slurm job {id} has not ended within {} s",
                END_MAX.as_secs()
            ),
        }),
    }
}

/// Lets the launcher save a checkpoint and end. Returns early if there is none.
fn drain(
    id: &str,
    paths: &JobPaths,
    grace: Duration,
    report: fn(&str),
    is_over: &dyn Fn() -> bool,
) {
    if let Err(error) = call("scancel", &["--batch", "--signal=TERM", id]) {
        report(&format!(
            "cannot ask the launcher for a last checkpoint: {error}"
        ));
        return;
    }
    let waits = || {
        report(&format!(
            "waiting for a last checkpoint for up to {} s; `ronde cancel --now` ends the job without it",
            grace.as_secs()
        ));
    };
    let mut heartbeat = HeartbeatReader::new(paths.folder());
    let mut is_lost = false;
    wait_for(grace, &waits, &mut || {
        let unchanged = heartbeat.look();
        is_lost = match paths.process(0).state() {
            Ok(ProcessState::Running { .. }) => unchanged >= SILENT_AFTER,
            Ok(ProcessState::Lost) => unchanged >= UNLOCKED_AFTER,
            _ => false,
        };
        is_lost || is_over()
    });
    if is_lost && !is_over() {
        report(NO_LAUNCHER);
    }
}

/// Waits until `is_done` returns true, and calls `waits` if that takes longer than a moment. Returns false at the limit.
fn wait_for(limit: Duration, waits: &dyn Fn(), is_done: &mut dyn FnMut() -> bool) -> bool {
    let start = ronde_clock::now();
    let mut has_reported = false;
    ronde_clock::wait_until_every(limit, BEAT_EVERY, || {
        if !has_reported && ronde_clock::now() >= start + QUIET_MAX {
            has_reported = true;
            waits();
        }
        is_done()
    })
}
