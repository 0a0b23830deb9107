//! [`SlurmAllocation`]: the launcher's knowledge and actions inside of its allocation.

use std::net::{IpAddr, ToSocketAddrs};
use std::time::Duration;

use super::client::call;
use super::heartbeat::{self, AgentHeartbeat, HeartbeatReader};
use super::lost_launcher::QueuedAgain;
use super::sending::LeadingJob;
use super::{ADDRESS_WORD, CANCELLED_FILE};
use crate::copying::publish_json;
use crate::drain_sources;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::launcher_arguments::RESUME;
use crate::process_folder::{ProcessCommand, ProcessState, read_json};

/// Has the number of restarts of the allocation whose launcher leads the job.
const LEADER_FILE: &str = "leader.json";
/// Time limit for the launcher of an earlier allocation to save a checkpoint and end.
const EARLIER_MAX: Duration = Duration::from_secs(1800);
/// The number of looks without a heartbeat after which the launcher of an earlier allocation is lost: 60 s.
const EARLIER_SILENT: u32 = 120;
/// The exit code of a launcher that was ordered to end and has saved a checkpoint.
pub(super) const DRAINED_CODE: i32 = 143;

/// The allocation of a job, as Slurm describes it to the processes in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlurmAllocation {
    /// The number of the job.
    pub id: u64,
    /// The number of its array.
    pub array: Option<u64>,
    /// The name of this node.
    pub node: String,
    /// The number of nodes.
    pub nodes: u32,
    /// How often the job was queued again.
    pub restarts: u32,
}

/// Returns the address of a node of Slurm, at which the other nodes reach it.
///
/// # Errors
/// Slurm does not answer, or the address cannot be resolved.
pub fn slurm_node_address(node: &str) -> Result<IpAddr, SubmitError> {
    let answer = call("scontrol", &["show", "node", node, "--oneliner"])?;
    let name = answer
        .split_whitespace()
        .find_map(|word| word.strip_prefix("NodeAddr="));
    let name = name.unwrap_or(node);
    let resolved = (name, 0)
        .to_socket_addrs()
        .ok()
        .and_then(|mut all| all.next());
    let address = resolved.ok_or_else(|| SubmitError::Program {
        program: "scontrol".to_owned(),
        problem: format!("the address `{name}` of node `{node}` cannot be resolved"),
    })?;
    Ok(address.ip())
}

impl SlurmAllocation {
    /// Returns the address of this node, at which the other nodes reach it.
    ///
    /// # Errors
    /// Slurm does not answer, or the address cannot be resolved.
    pub fn address(&self) -> Result<IpAddr, SubmitError> {
        slurm_node_address(&self.node)
    }

    /// Returns the words of the launcher on this node. A job that was queued again resumes from its checkpoint.
    ///
    /// # Errors
    /// As [`SlurmAllocation::address`].
    pub fn launcher(
        &self,
        paths: &JobPaths,
        command: &ProcessCommand,
    ) -> Result<Vec<String>, SubmitError> {
        let mut words = command.arguments.clone();
        for word in words.iter_mut().filter(|word| word.contains(ADDRESS_WORD)) {
            *word = word.replace(ADDRESS_WORD, &self.address()?.to_string());
        }
        let resumes = self.restarts > 0 && paths.has_checkpoint();
        if resumes && !words.iter().any(|word| word == RESUME) {
            words.push(RESUME.to_owned());
        }
        Ok(words)
    }

    /// Returns the words of the agent on this node. It drains at the same notices as the launcher.
    #[must_use]
    pub fn agent(&self, paths: &JobPaths, slots: u32, address: &str) -> Vec<String> {
        let token = paths.token().display().to_string();
        let logs = paths.process_path(1).display().to_string();
        let slots = slots.to_string();
        let words = ["join", address, "--token-file", &token, "-n", &slots];
        let more = ["--host", &self.node, "--logs", &logs];
        let words = words.into_iter().chain(more).map(str::to_owned);
        // An agent without the launcher's command cannot join either, and then reports that itself.
        let launcher = paths.process(0).command().ok();
        let launcher = launcher.map(|command| command.arguments).into_iter();
        let drain = launcher
            .flatten()
            .filter(|word| drain_sources::is_word(word));
        words.chain(drain).collect()
    }

    /// Takes the folder of the job for this job of Slurm, and returns whether it has it now. Another one has it if the script
    /// was sent twice, because its submitter was killed.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn claim(&self, paths: &JobPaths) -> Result<bool, SubmitError> {
        let job = LeadingJob {
            id: self.id,
            array: self.array,
        };
        job.claim(paths.folder())
    }

    /// Notes in the folder of the job that this launcher leads it now. One of an earlier allocation, on a node that is cut
    /// off from Slurm, sees it as long as it reaches the folder, and ends.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn lead(&self, paths: &JobPaths) -> Result<(), SubmitError> {
        QueuedAgain::remove(paths.folder())?;
        heartbeat::remove_of_agents(paths.folder())?;
        publish_json(&paths.folder().join(LEADER_FILE), &self.restarts)
    }

    /// Returns whether a launcher of a later allocation leads the job.
    #[must_use]
    pub fn is_replaced(&self, paths: &JobPaths) -> bool {
        let leader: Option<u32> = read_json(&paths.folder().join(LEADER_FILE)).ok().flatten();
        leader.is_some_and(|restarts| restarts > self.restarts)
    }

    /// Waits until the launcher of an earlier allocation has ended. Calls `waiting` if there is one. Returns the exit code of a
    /// launcher that has ended the run meanwhile. A launcher without a heartbeat was on a node that is lost.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn wait_for_earlier(
        &self,
        paths: &JobPaths,
        waiting: &dyn Fn(),
    ) -> Result<Option<i32>, SubmitError> {
        self.wait_for_earlier_every(paths, waiting, heartbeat::BEAT_EVERY)
    }

    fn wait_for_earlier_every(
        &self,
        paths: &JobPaths,
        waiting: &dyn Fn(),
        every: Duration,
    ) -> Result<Option<i32>, SubmitError> {
        let process = paths.process(0);
        if process.is_over() {
            return Ok(None);
        }
        waiting();
        let mut heartbeat = HeartbeatReader::new(paths.folder());
        ronde_clock::wait_until_every(EARLIER_MAX, every, || {
            process.is_over() || heartbeat.look() >= EARLIER_SILENT
        });
        match process.state() {
            Ok(ProcessState::Exited { code, .. }) if code != DRAINED_CODE => return Ok(Some(code)),
            // The file system may keep the lock of a lost node.
            Ok(ProcessState::Running { .. }) => process.replace_lock()?,
            _ => {}
        }
        Ok(None)
    }

    /// Starts the heartbeat of the launcher, which shows others that it runs.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn start_heartbeat(&self, paths: &JobPaths) -> Result<(), SubmitError> {
        heartbeat::start(paths.folder())
    }

    /// Starts the heartbeat of the agent on this node.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn start_agent_heartbeat(&self, paths: &JobPaths) -> Result<AgentHeartbeat, SubmitError> {
        AgentHeartbeat::start(paths.folder(), &self.node)
    }

    /// Queues the job again, unless it was cancelled. Slurm then ends this process.
    ///
    /// # Errors
    /// Slurm refuses it.
    pub fn queue_again(&self, paths: &JobPaths) -> Result<(), SubmitError> {
        match paths.folder().join(CANCELLED_FILE).exists() {
            true => Ok(()),
            false => call("scontrol", &["requeue", &self.id.to_string()]).map(|_| ()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_drain_at_the_notices_of_their_launcher() {
        let dir = tempfile::tempdir().unwrap();
        let paths = JobPaths::new(dir.path());
        let allocation = SlurmAllocation {
            id: 7,
            array: None,
            node: "n2".to_owned(),
            nodes: 2,
            restarts: 0,
        };
        let drain = drain_sources::words(&["/run/notice".to_owned()]);
        let launcher = crate::ProcessCommand {
            arguments: [vec!["train".to_owned()], drain].concat(),
            directory: dir.path().to_owned(),
        };
        paths.process(0).prepare(&launcher).unwrap();
        let words = allocation.agent(&paths, 2, "n1:4711");
        assert_eq!(words[..2], ["join", "n1:4711"]);
        assert!(
            words.contains(&"--drain-on=/run/notice".to_owned()),
            "{words:?}"
        );
    }

    #[test]
    fn the_launcher_of_the_newest_allocation_leads() {
        let dir = tempfile::tempdir().unwrap();
        let paths = JobPaths::new(dir.path());
        let of = |restarts| SlurmAllocation {
            id: 7,
            array: None,
            node: "n1".to_owned(),
            nodes: 1,
            restarts,
        };
        assert!(!of(0).is_replaced(&paths));
        of(0).lead(&paths).unwrap();
        assert!(!of(0).is_replaced(&paths));
        of(1).lead(&paths).unwrap();
        assert!(of(0).is_replaced(&paths) && !of(1).is_replaced(&paths));
        assert_eq!(of(1).wait_for_earlier(&paths, &|| ()).unwrap(), None);
        // The launcher of a node that has lost its power, with a file system that keeps its lock.
        let command = crate::ProcessCommand {
            arguments: Vec::new(),
            directory: dir.path().to_owned(),
        };
        paths.process(0).prepare(&command).unwrap();
        let _earlier = paths.process(0).enter().unwrap();
        let every = Duration::from_millis(1);
        let waited = of(1).wait_for_earlier_every(&paths, &|| (), every);
        assert_eq!(waited.unwrap(), None);
        paths.process(0).enter().unwrap();
    }
}
