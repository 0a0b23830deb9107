//! The state of a job from Slurm's queue, and from the exit code of its launcher.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::client::call;
use crate::clock;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::process_folder::ProcessState;
use crate::state::JobState;

/// Interval between two requests to the scheduler while output is followed.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// Returns the state of a job. Slurm forgets a job some minutes after its end; then the launcher's exit code counts.
pub(super) fn state(
    id: &str,
    paths: &JobPaths,
    is_cancelled: bool,
) -> Result<JobState, SubmitError> {
    state_in(&lines(&[id])?, id, paths, is_cancelled)
}

/// Returns the state and the reason of each job, by number, in one request. Slurm may have forgotten jobs.
pub(super) fn lines(ids: &[&str]) -> Result<BTreeMap<String, String>, SubmitError> {
    let jobs = ids.join(",");
    let format = ["-h", "--states=all", "-r", "-o", "%i|%T|%r", "-j", &jobs];
    let listed = match ids.is_empty() {
        true => Ok(String::new()),
        false => call("squeue", &format),
    };
    let listed = match listed {
        Err(SubmitError::Program { problem, .. }) if problem.contains("Invalid job id") => {
            String::new()
        }
        listed => listed?,
    };
    let lines = listed.lines().filter_map(|line| line.split_once('|'));
    Ok(lines
        .map(|(id, state)| (id.trim().to_owned(), state.trim().to_owned()))
        .collect())
}

/// Returns the state of a job from an answer of [`lines`].
pub(super) fn state_in(
    lines: &BTreeMap<String, String>,
    id: &str,
    paths: &JobPaths,
    is_cancelled: bool,
) -> Result<JobState, SubmitError> {
    let line = lines.get(id).map_or("", String::as_str);
    let process = paths.process(0).state()?;
    Ok(interpret(line, &process, is_cancelled))
}

/// Returns the state for a line of `squeue` and the state of the launcher.
fn interpret(line: &str, process: &ProcessState, is_cancelled: bool) -> JobState {
    let (state, reason) = line.split_once('|').unwrap_or((line, ""));
    match state {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => {
            JobState::Queued {
                reason: match reason {
                    "None" => String::new(),
                    reason => reason.to_owned(),
                },
            }
        }
        "RUNNING" | "CONFIGURING" | "COMPLETING" | "SUSPENDED" | "STOPPED" | "SIGNALING"
        | "RESIZING" | "STAGE_OUT" => match process {
            ProcessState::Running { .. } => JobState::of(process, is_cancelled),
            _ => JobState::RUNNING,
        },
        _ => match process {
            ProcessState::Exited { .. } => JobState::of(process, is_cancelled),
            // Ended by Slurm before the launcher could write its exit code.
            _ if is_cancelled || state == "CANCELLED" => JobState::Cancelled,
            _ => JobState::Lost,
        },
    }
}

/// Returns a function that reports whether a job is over; it asks the scheduler now and then.
pub(super) fn watch(id: &str, paths: &JobPaths) -> impl FnMut() -> bool + use<> {
    let (id, paths) = (id.to_owned(), paths.clone());
    let mut asked: Option<Instant> = None;
    let mut is_over = false;
    move || {
        if !is_over && asked.is_none_or(|at| clock::now() >= at + ASK_EVERY) {
            asked = Some(clock::now());
            is_over = state(&id, &paths, false).is_ok_and(|state| state.is_over());
        }
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_decides_while_it_has_the_job_and_then_the_exit_code() {
        let exited = |code| ProcessState::Exited {
            code,
            at_ms: 0,
            reason: None,
        };
        let queued = |reason: &str| JobState::Queued {
            reason: reason.to_owned(),
        };
        for (line, process, is_cancelled, expected) in [
            (
                "PENDING|Resources",
                ProcessState::NotStarted,
                false,
                queued("Resources"),
            ),
            ("PENDING|BeginTime", exited(143), false, queued("BeginTime")),
            (
                "RUNNING|None",
                ProcessState::NotStarted,
                false,
                JobState::RUNNING,
            ),
            ("COMPLETED|None", exited(0), false, JobState::Finished),
            (
                "FAILED|NonZeroExitCode",
                exited(3),
                false,
                JobState::failed(3),
            ),
            ("", exited(0), false, JobState::Finished),
            ("", exited(143), true, JobState::Cancelled),
            (
                "CANCELLED|None",
                ProcessState::Lost,
                false,
                JobState::Cancelled,
            ),
            ("NODE_FAIL|None", ProcessState::Lost, false, JobState::Lost),
            ("", ProcessState::NotStarted, true, JobState::Cancelled),
        ] {
            assert_eq!(
                interpret(line, &process, is_cancelled),
                expected,
                "{line} {process:?}"
            );
        }
    }
}
