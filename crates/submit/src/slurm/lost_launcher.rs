//! What an agent does when the first node of an allocation, on which the launcher runs, is lost: Slurm keeps such an allocation
//! (`--no-kill`), without a process that trains in it. The agents of the other nodes queue the job again.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::CANCELLED_FILE;
use super::allocation::{DRAINED_CODE, SlurmAllocation};
use super::client::call;
use super::heartbeat::{BEAT_EVERY, HeartbeatReader};
use crate::copying::publish_json;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::process_folder::{ProcessState, read_json, remove_if_exists};

/// The file with the [`QueuedAgain`].
const QUEUED_AGAIN_FILE: &str = "queued-again.json";
/// The number of looks without a heartbeat after which Slurm is queried about the launcher, and between two questions.
const ASK_EVERY: u32 = 4;
/// The number of looks without a heartbeat after which a launcher whose node Slurm has not missed yet is lost: 25 s.
const LOST_AFTER: u32 = 50;
/// Time limit for the coordinator to accept a connection.
const CONNECT_MAX: Duration = Duration::from_secs(3);
/// The exit code of a launcher that was lost and cannot be replaced.
const LOST_CODE: i32 = 3;

/// A job that its agents have queued again because its first node was lost.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct QueuedAgain {
    /// The first node.
    pub(super) node: String,
}

impl QueuedAgain {
    /// Returns the note in the folder of a job.
    pub(super) fn of(folder: &Path) -> Option<Self> {
        read_json(&folder.join(QUEUED_AGAIN_FILE)).ok().flatten()
    }

    /// Removes the note when a launcher leads the job again.
    pub(super) fn remove(folder: &Path) -> Result<(), SubmitError> {
        remove_if_exists(&folder.join(QUEUED_AGAIN_FILE))
    }
}

/// What Slurm reports about the allocation of a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct JobReport {
    state: String,
    reason: String,
    restarts: u32,
    /// The node of the launcher.
    batch_host: String,
    /// The nodes that are still in the allocation, as Slurm writes them.
    pub(super) nodes: String,
}

impl JobReport {
    /// Reads the answer of `scontrol show job --oneliner`.
    fn parse(text: &str) -> Option<Self> {
        let field = |key: &str| {
            let mut words = text.split_whitespace();
            words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
        };
        Some(Self {
            state: field("JobState")?.to_owned(),
            reason: field("Reason").unwrap_or_default().to_owned(),
            restarts: field("Restarts")?.parse().ok()?,
            batch_host: field("BatchHost").unwrap_or_default().to_owned(),
            nodes: field("NodeList").unwrap_or_default().to_owned(),
        })
    }

    pub(super) fn of(id: u64) -> Result<Self, SubmitError> {
        let text = call("scontrol", &["show", "job", "--oneliner", &id.to_string()])?;
        Self::parse(&text).ok_or_else(|| SubmitError::Program {
            program: "scontrol".to_owned(),
            problem: format!("unexpected answer `{}`", text.trim().escape_debug()),
        })
    }

    /// Returns whether Slurm has removed the first node from the allocation.
    fn has_lost_first_node(&self) -> Result<bool, SubmitError> {
        let nodes = call("scontrol", &["show", "hostnames", &self.nodes])?;
        Ok(!nodes.lines().any(|node| node.trim() == self.batch_host))
    }
}

/// The state of a launcher without a heartbeat.
#[derive(Debug, PartialEq, Eq)]
enum LauncherVerdict {
    /// It may still run.
    Unknown,
    /// Slurm has ended the job, or has started it again.
    Ended,
    /// It was on this node, which is lost.
    Lost(String),
}

/// Decides about a launcher after a number of looks without a heartbeat.
fn judge(
    report: &JobReport,
    restarts: u32,
    unchanged: u32,
    has_lost_first_node: bool,
    is_reachable: impl FnOnce() -> bool,
) -> LauncherVerdict {
    let lost = || LauncherVerdict::Lost(report.batch_host.clone());
    if report.restarts != restarts {
        return LauncherVerdict::Ended;
    }
    match report.state.as_str() {
        "RUNNING" if has_lost_first_node || unchanged >= LOST_AFTER => match is_reachable() {
            true => LauncherVerdict::Unknown,
            false => lost(),
        },
        "RUNNING" | "SUSPENDED" | "STOPPED" => LauncherVerdict::Unknown,
        // Slurm has killed the launcher with its node. Without a reason, a user has ended the job.
        "COMPLETING" | "FAILED" | "NODE_FAIL" if has_lost_first_node && report.reason != "None" => {
            lost()
        }
        _ => LauncherVerdict::Ended,
    }
}

impl SlurmAllocation {
    /// Watches the launcher from another node, until the agent of this node has ended in another way than by the loss of the
    /// launcher. If the first node is lost, queues the job again, or ends the allocation where Slurm refuses that. `agent` returns
    /// the exit code of the agent when it has ended, `coordinator` the address of the coordinator when it is known.
    pub fn watch_launcher(
        &self,
        paths: &JobPaths,
        coordinator: &dyn Fn() -> Option<String>,
        agent: &dyn Fn() -> Option<i32>,
        report: &dyn Fn(&str),
    ) {
        let mut heartbeat = HeartbeatReader::new(paths.folder());
        let mut problem = None;
        loop {
            let ended = agent();
            let unchanged = heartbeat.look();
            let launcher = paths.process(0).state();
            let is_over = matches!(launcher, Ok(ProcessState::Exited { .. }))
                || paths.folder().join(CANCELLED_FILE).exists()
                || self.is_replaced(paths);
            let ends_as_usual = matches!(launcher, Ok(ProcessState::Running { .. }))
                && matches!(ended, Some(0 | DRAINED_CODE));
            if is_over || ends_as_usual || (ended.is_some() && unchanged == 0) {
                return;
            }
            if unchanged > 0 && unchanged.is_multiple_of(ASK_EVERY) {
                match self.replace_lost(paths, unchanged, coordinator, report) {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(error) if problem.as_ref() == Some(&error.to_string()) => {}
                    Err(error) => {
                        report(&format!("cannot ask Slurm about the launcher: {error}"));
                        problem = Some(error.to_string());
                    }
                }
            }
            ronde_clock::pause(BEAT_EVERY);
        }
    }

    /// Asks Slurm about a launcher without a heartbeat, and queues the job again if it is lost. Returns whether nothing is left
    /// to watch.
    fn replace_lost(
        &self,
        paths: &JobPaths,
        unchanged: u32,
        coordinator: &dyn Fn() -> Option<String>,
        report: &dyn Fn(&str),
    ) -> Result<bool, SubmitError> {
        let found = JobReport::of(self.id)?;
        let has_lost_first_node = found.has_lost_first_node()?;
        let is_reachable = || coordinator().is_some_and(|address| accepts(&address));
        let verdict = judge(
            &found,
            self.restarts,
            unchanged,
            has_lost_first_node,
            is_reachable,
        );
        let node = match verdict {
            LauncherVerdict::Unknown => return Ok(false),
            LauncherVerdict::Ended => return Ok(true),
            LauncherVerdict::Lost(node) => node,
        };
        let say = |text: &str| {
            report(text);
            append_to_log(paths, text);
        };
        let me = &self.node;
        say(&format!(
            "the first node {node} is lost: the agent on {me} queues the job again"
        ));
        let note = QueuedAgain { node: node.clone() };
        publish_json(&paths.folder().join(QUEUED_AGAIN_FILE), &note)?;
        let refusal = match self.queue_again(paths) {
            Err(SubmitError::Program { problem, .. }) => problem,
            queued => return queued.map(|()| true),
        };
        // Slurm refuses the second request of two agents once the job waits.
        let now = JobReport::of(self.id)?;
        if now.restarts != self.restarts || now.state == "PENDING" {
            return Ok(true);
        }
        let problem = format!(
            "the first node {node} is lost, and Slurm does not queue the job again: {refusal}"
        );
        say(&format!("{problem}; ending the allocation"));
        QueuedAgain::remove(paths.folder())?;
        paths.process(0).record_end(LOST_CODE, &problem)?;
        call("scancel", &[&self.id.to_string()]).map(|_| true)
    }
}

/// Returns whether a coordinator accepts a connection.
fn accepts(coordinator: &str) -> bool {
    let addresses = coordinator.to_socket_addrs().into_iter().flatten();
    let mut connections =
        addresses.map(|address| TcpStream::connect_timeout(&address, CONNECT_MAX));
    connections.any(|connection| connection.is_ok())
}

/// Appends a line to the output of the launcher, which `ronde logs` shows.
fn append_to_log(paths: &JobPaths, text: &str) {
    let output = OpenOptions::new()
        .append(true)
        .open(paths.process(0).output());
    // The output of the agents has the line, too.
    let _ = output.and_then(|mut output| output.write_all(format!("{text}\n").as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = "JobId=1 JobName=long JobState=RUNNING Reason=None Dependency=(null) Requeue=1 Restarts=0 \
                          ReqNodeList=(null) NodeList=n[2-3] BatchHost=n1 NumNodes=2";

    #[test]
    fn a_launcher_is_lost_with_its_node_or_after_a_time_without_any_sign() {
        let report = |state: &str, reason: &str| JobReport {
            state: state.to_owned(),
            reason: reason.to_owned(),
            ..JobReport::parse(ANSWER).unwrap()
        };
        let running = report("RUNNING", "None");
        assert_eq!(
            (running.batch_host.as_str(), running.nodes.as_str()),
            ("n1", "n[2-3]")
        );
        let lost = || LauncherVerdict::Lost("n1".to_owned());
        for (report, unchanged, has_lost_node, is_reachable, expected) in [
            (&running, ASK_EVERY, false, false, LauncherVerdict::Unknown),
            (&running, LOST_AFTER, false, false, lost()),
            (&running, LOST_AFTER, false, true, LauncherVerdict::Unknown),
            (&running, ASK_EVERY, true, false, lost()),
            (&running, ASK_EVERY, true, true, LauncherVerdict::Unknown),
            (
                &report("FAILED", "JobLaunchFailure"),
                ASK_EVERY,
                true,
                false,
                lost(),
            ),
            (
                &report("FAILED", "NonZeroExitCode"),
                ASK_EVERY,
                false,
                false,
                LauncherVerdict::Ended,
            ),
            (
                &report("COMPLETING", "None"),
                ASK_EVERY,
                true,
                false,
                LauncherVerdict::Ended,
            ),
            (
                &report("PENDING", "BeginTime"),
                ASK_EVERY,
                true,
                false,
                LauncherVerdict::Ended,
            ),
        ] {
            let verdict = judge(report, 0, unchanged, has_lost_node, || is_reachable);
            assert_eq!(verdict, expected, "{report:?} {unchanged}");
        }
        let later = judge(&running, 1, LOST_AFTER, true, || false);
        assert_eq!(later, LauncherVerdict::Ended, "another launcher leads");
    }
}
