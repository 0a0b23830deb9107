//! The state of a job from Slurm's queue, and from the exit code of its launcher.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::allocation::DRAINED_CODE;
use super::client::call;
use super::heartbeat::{SilentProcesses, silences};
use super::lost_launcher::QueuedAgain;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::process_folder::ProcessState;
use crate::state::JobState;

/// Interval between two requests to the scheduler while output is followed.
const ASK_EVERY: Duration = Duration::from_secs(2);

/// The exit code of a job that Slurm could not start.
const LAUNCH_FAILED: i32 = 3;

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

    /// Returns the number of a job, and the report about it.
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

/// The launcher's state in the folder of a job.
struct LauncherReport {
    process: ProcessState,
    silent: SilentProcesses,
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
    let silent = match line.is_active() {
        true => silences(&[paths]).pop().unwrap_or_default(),
        false => SilentProcesses::default(),
    };
    let is_silent = silent.launcher.is_some();
    Ok((state_of(&line, paths, silent, is_cancelled)?, is_silent))
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
    let mut silences: BTreeMap<_, _> = active.keys().copied().zip(silences).collect();
    let forgotten = SqueueLine::default();
    let states = jobs.iter().map(|(id, paths, is_cancelled)| {
        let line = lines.get(*id).unwrap_or(&forgotten);
        let silent = silences.remove(id).unwrap_or_default();
        let state = state_of(line, paths, silent, *is_cancelled);
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
    silent: SilentProcesses,
    is_cancelled: bool,
) -> Result<JobState, SubmitError> {
    let launcher = LauncherReport {
        process: paths.process(0).state()?,
        silent,
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
                reason: explained(&line.reason),
            }
        }
        // Slurm may wait for a lost node long after the end of the run. A launcher that was drained queues the job again.
        "COMPLETING" if has_ended(process, is_cancelled) => JobState::of(process, is_cancelled),
        "COMPLETING" if launcher.silent.launcher.is_some() => match &launcher.lost_node {
            // Slurm waits for a lost node until it is down, and needs no one for that.
            _ if is_cancelled && line.nodes == line.first_node => JobState::Cancelled,
            Some(node) if !is_cancelled => JobState::Queued {
                reason: format!("again; its first node {node} is lost"),
            },
            _ => JobState::RUNNING,
        },
        _ if line.is_active() => match (launcher.silent.launcher, process) {
            (Some(silence), _) => JobState::Running {
                problem: Some(format!(
                    "its launcher on the first node {} has not responded for {} s; `ronde cancel` ends it",
                    line.first_node,
                    silence.as_secs()
                )),
            },
            (None, ProcessState::Running { problem, .. }) => JobState::Running {
                problem: problem
                    .clone()
                    .or_else(|| silent_nodes(&launcher.silent.agents)),
            },
            _ => JobState::RUNNING,
        },
        state => match process {
            ProcessState::Exited { .. } => JobState::of(process, is_cancelled),
            // Ended by Slurm before the launcher could write its exit code.
            _ if is_cancelled || state == "CANCELLED" => JobState::Cancelled,
            ProcessState::NotStarted if state == "FAILED" => not_started(line),
            _ => JobState::Lost,
        },
    }
}

/// Returns the reason for which a job waits, with a warning if the job may wait for ever.
fn explained(reason: &str) -> String {
    let meaning = match reason {
        "None" => return String::new(),
        "PartitionDown" | "PartitionInactive" => {
            "the partition is down: ask its administrator, or choose another `partition`"
        }
        "PartitionNodeLimit" => {
            "the partition has or allows fewer nodes: reduce `nodes`, or choose another `partition`"
        }
        "PartitionTimeLimit" => {
            "the partition allows less time: reduce `time`, or choose another `partition`"
        }
        "PartitionConfig" | "BadConstraints" => {
            "no node of the partition has what the job needs: reduce its workers, `slots` or `cpus_per_worker`"
        }
        "AccountNotAllowed" | "InvalidAccount" => {
            "the account may not use the partition: choose another `account` or `partition`"
        }
        "ReqNodeNotAvail" => "nodes that it needs are down or reserved",
        _ => return reason.to_owned(),
    };
    format!("{reason}: {meaning}")
}

/// Returns whether a launcher has ended the run for good.
fn has_ended(process: &ProcessState, is_cancelled: bool) -> bool {
    matches!(process, ProcessState::Exited { code, .. } if is_cancelled || *code != DRAINED_CODE)
}

/// Returns the state of a job whose script has not run.
fn not_started(line: &SqueueLine) -> JobState {
    let (node, reason) = (&line.first_node, &line.reason);
    JobState::Failed {
        code: LAUNCH_FAILED,
        reason: Some(format!(
            "Slurm could not start it on node {node} ({reason}): has that node the folder of the job?"
        )),
    }
}

/// Describes the nodes whose agents do not respond; `None` if there are none.
fn silent_nodes(agents: &[(String, Duration)]) -> Option<String> {
    let longest = agents.iter().map(|(_, silence)| silence.as_secs()).max()?;
    let nodes: Vec<&str> = agents.iter().map(|(node, _)| node.as_str()).collect();
    let (of, have, them) = match nodes.len() {
        1 => ("node", "has", "it"),
        _ => ("nodes", "have", "them"),
    };
    let nodes = nodes.join(", ");
    Some(format!(
        "{of} {nodes} {have} not responded for {longest} s; the run continues without {them}"
    ))
}

/// Returns a function that reports whether a job is over; it queries the scheduler now and then.
pub(super) fn watch(id: &str, paths: &JobPaths) -> impl FnMut() -> bool + use<> {
    let (id, paths) = (id.to_owned(), paths.clone());
    let mut asked: Option<Instant> = None;
    let mut is_over = false;
    move || {
        if !is_over && asked.is_none_or(|at| ronde_clock::now() >= at + ASK_EVERY) {
            asked = Some(ronde_clock::now());
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
            ("COMPLETING|None", exited(0), false, JobState::Finished),
            ("COMPLETING|None", exited(3), false, JobState::failed(3)),
            ("COMPLETING|None", exited(143), false, JobState::RUNNING),
            ("COMPLETING|None", exited(143), true, JobState::Cancelled),
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
                silent: SilentProcesses::default(),
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
                silent: SilentProcesses {
                    launcher: Some(Duration::from_secs(41)),
                    agents: Vec::new(),
                },
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

    #[test]
    fn reasons_for_which_a_job_may_wait_for_ever_are_explained() {
        assert_eq!(explained("None"), "");
        assert_eq!(explained("Priority"), "Priority");
        let down = explained("PartitionDown");
        assert!(
            down.contains("PartitionDown: the partition is down"),
            "{down}"
        );
    }

    #[test]
    fn nodes_that_do_not_respond_and_scripts_that_were_not_started_are_named() {
        let text = |state: &str, process: ProcessState, silent: &[&str]| {
            let (_, line) =
                SqueueLine::parse(&format!("7|{state}|n1|n[1-3]|JobLaunchFailure")).unwrap();
            let silent = silent
                .iter()
                .map(|node| ((*node).to_owned(), Duration::from_secs(12)));
            let launcher = LauncherReport {
                process,
                silent: SilentProcesses {
                    launcher: None,
                    agents: silent.collect(),
                },
                lost_node: None,
            };
            interpret(&line, &launcher, false).to_string()
        };
        let running = || ProcessState::Running {
            pid: 1,
            problem: None,
        };
        assert_eq!(text("RUNNING", running(), &[]), "running");
        assert_eq!(
            text("RUNNING", running(), &["n2"]),
            "running: node n2 has not responded for 12 s; the run continues without it"
        );
        assert_eq!(
            text("RUNNING", running(), &["n2", "n3"]),
            "running: nodes n2, n3 have not responded for 12 s; the run continues without them"
        );
        assert_eq!(
            text("FAILED", ProcessState::NotStarted, &[]),
            "failed (exit code 3): Slurm could not start it on node n1 (JobLaunchFailure): has that node the folder of the job?"
        );
    }
}
