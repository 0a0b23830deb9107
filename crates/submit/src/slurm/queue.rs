//! The state of a job from Slurm's queue, and from the exit code of its launcher.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::client::call;
use super::heartbeat::silences;
use super::lost_launcher::QueuedAgain;
use crate::clock;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::process_folder::ProcessState;
use crate::state::JobState;

/// Interval between two requests to the scheduler while output is followed.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// What `squeue` reports about a job. All is empty for a job that Slurm has forgotten.
#[derive(Debug, Default, PartialEq, Eq)]
struct SqueueLine {
    state: String,
    /// The node of the launcher.
    first_node: String,
    /// The nodes of the allocation; of a job that ends, those on which it has not ended.
    nodes: String,
    reason: String,
}

impl SqueueLine {
    /// The format of [`SqueueLine::parse`].
    const FORMAT: &str = "%i|%T|%B|%N|%r";

    /// Returns the number of a job, and what is reported about it.
    fn parse(line: &str) -> Option<(String, Self)> {
        let mut fields = line.splitn(5, '|').map(|field| field.trim().to_owned());
        let id = fields.next()?;
        let line = Self {
            state: fields.next()?,
            first_node: fields.next()?,
            nodes: fields.next()?,
            reason: fields.next()?,
        };
        Some((id, line))
    }

    /// Returns whether processes of the job may run.
    fn is_active(&self) -> bool {
        matches!(
            self.state.as_str(),
            "RUNNING"
                | "CONFIGURING"
                | "COMPLETING"
                | "SUSPENDED"
                | "STOPPED"
                | "SIGNALING"
                | "RESIZING"
                | "STAGE_OUT"
        )
    }
}

/// What the folder of a job reports about its launcher.
struct LauncherReport {
    process: ProcessState,
    /// How long a launcher that does not respond has been silent.
    silence: Option<Duration>,
    /// The lost first node of a job that was queued again.
    lost_node: Option<String>,
}

/// Returns the state of a job. Slurm forgets a job some minutes after its end; then the launcher's exit code counts.
pub(super) fn state(
    id: &str,
    paths: &JobPaths,
    is_cancelled: bool,
) -> Result<JobState, SubmitError> {
    look(id, paths, is_cancelled).map(|(state, _)| state)
}

/// Returns the state of a job, and whether it has a launcher that does not respond.
pub(super) fn look(
    id: &str,
    paths: &JobPaths,
    is_cancelled: bool,
) -> Result<(JobState, bool), SubmitError> {
    let line = lines(&[id])?.remove(id).unwrap_or_default();
    let silence = match line.is_active() {
        true => silences(&[paths]).into_iter().next().flatten(),
        false => None,
    };
    let state = state_of(&line, paths, silence, is_cancelled)?;
    Ok((state, silence.is_some()))
}

/// Returns the states of jobs, each given by its number, its files and whether it was cancelled, with one request.
pub(super) fn states(jobs: &[(&str, &JobPaths, bool)]) -> Vec<JobState> {
    let ids: Vec<_> = jobs.iter().map(|(id, ..)| *id).collect();
    let lines = match lines(&ids) {
        Ok(lines) => lines,
        Err(error) => return vec![JobState::unknown(&error); jobs.len()],
    };
    let active = jobs
        .iter()
        .filter(|(id, ..)| lines.get(*id).is_some_and(SqueueLine::is_active));
    let active: BTreeMap<_, _> = active.map(|(id, paths, _)| (*id, *paths)).collect();
    let silences = silences(&active.values().copied().collect::<Vec<_>>());
    let silences: BTreeMap<_, _> = active.keys().copied().zip(silences).collect();
    let forgotten = SqueueLine::default();
    let states = jobs.iter().map(|(id, paths, is_cancelled)| {
        let line = lines.get(*id).unwrap_or(&forgotten);
        let silence = silences.get(id).copied().flatten();
        let state = state_of(line, paths, silence, *is_cancelled);
        state.unwrap_or_else(|error| JobState::unknown(&error))
    });
    states.collect()
}

/// Returns what Slurm reports about each job, by number, with one request. Slurm may have forgotten jobs.
fn lines(ids: &[&str]) -> Result<BTreeMap<String, SqueueLine>, SubmitError> {
    let jobs = ids.join(",");
    let format = [
        "-h",
        "--states=all",
        "-r",
        "-o",
        SqueueLine::FORMAT,
        "-j",
        &jobs,
    ];
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
    Ok(listed.lines().filter_map(SqueueLine::parse).collect())
}

fn state_of(
    line: &SqueueLine,
    paths: &JobPaths,
    silence: Option<Duration>,
    is_cancelled: bool,
) -> Result<JobState, SubmitError> {
    let launcher = LauncherReport {
        process: paths.process(0).state()?,
        silence,
        lost_node: QueuedAgain::of(paths.folder()).map(|note| note.node),
    };
    Ok(interpret(line, &launcher, is_cancelled))
}

/// Returns the state for what `squeue` and the folder of the job report.
fn interpret(line: &SqueueLine, launcher: &LauncherReport, is_cancelled: bool) -> JobState {
    let process = &launcher.process;
    match line.state.as_str() {
        "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" | "RESV_DEL_HOLD" => {
            JobState::Queued {
                reason: match line.reason.as_str() {
                    "None" => String::new(),
                    reason => reason.to_owned(),
                },
            }
        }
        "COMPLETING" if launcher.silence.is_some() => match &launcher.lost_node {
            // Slurm waits for a lost node until it is down, and needs no one for that.
            _ if is_cancelled && line.nodes == line.first_node => JobState::Cancelled,
            Some(node) if !is_cancelled => JobState::Queued {
                reason: format!("again; its first node {node} is lost"),
            },
            _ => JobState::RUNNING,
        },
        _ if line.is_active() => match (launcher.silence, process) {
            (Some(silence), _) => JobState::Running {
                problem: Some(format!(
                    "its launcher on the first node {} has not responded for {} s; `ronde cancel` ends it",
                    line.first_node,
                    silence.as_secs()
                )),
            },
            (None, ProcessState::Running { .. }) => JobState::of(process, is_cancelled),
            _ => JobState::RUNNING,
        },
        state => match process {
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
            let (state, reason) = line.split_once('|').unwrap_or_default();
            let line = SqueueLine {
                state: state.to_owned(),
                reason: reason.to_owned(),
                ..SqueueLine::default()
            };
            let launcher = LauncherReport {
                process,
                silence: None,
                lost_node: None,
            };
            assert_eq!(
                interpret(&line, &launcher, is_cancelled),
                expected,
                "{line:?}"
            );
        }
    }

    #[test]
    fn a_launcher_that_does_not_respond_is_part_of_the_state() {
        let state = |text: &str, lost_node: Option<&str>, is_cancelled| {
            let (id, line) = SqueueLine::parse(text).unwrap();
            assert_eq!(id, "7");
            let launcher = LauncherReport {
                process: ProcessState::Lost,
                silence: Some(Duration::from_secs(41)),
                lost_node: lost_node.map(str::to_owned),
            };
            interpret(&line, &launcher, is_cancelled).to_string()
        };
        for (line, lost_node, is_cancelled, expected) in [
            (
                "7|RUNNING|n1|n[2-3]|None",
                None,
                false,
                "running: its launcher on the first node n1 has not responded for 41 s; `ronde cancel` ends it",
            ),
            ("7|COMPLETING|n1|n[1-3]|None", None, true, "running"),
            ("7|COMPLETING|n1|n1|None", None, true, "cancelled"),
            (
                "7|COMPLETING|n1|n1|None",
                Some("n1"),
                false,
                "queued (again; its first node n1 is lost)",
            ),
            ("7|PENDING|n1|n1|None", Some("n1"), false, "queued"),
        ] {
            assert_eq!(state(line, lost_node, is_cancelled), expected, "{line}");
        }
    }
}
