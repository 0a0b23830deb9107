//! The agents of an allocation: a step of Slurm for each node but the first, so that the loss of a node ends no other agent. They
//! start with the launcher, because they watch it: without them, an allocation whose first node is lost would remain.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::allocation::SlurmAllocation;
use super::client::call;
use super::heartbeat::{AgentHeartbeat, LAST_CODES};
use super::lost_launcher::JobReport;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::limited::wait;

/// Time for the agents to end after the run.
const GRACE: Duration = Duration::from_secs(15);
/// Interval between two looks at the agents.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time after the first end of an agent before its node gets another one: its node may have been started again. It doubles each time.
const AGAIN_AFTER: Duration = Duration::from_secs(5);
/// The longest such time.
const AGAIN_MAX: Duration = Duration::from_secs(60);

/// The agent of a node.
struct NodeAgent {
    node: String,
    /// Its step, while it runs.
    step: Option<Child>,
    /// When it is started again.
    due: Option<Instant>,
    /// The time until the next start.
    delay: Duration,
}

impl NodeAgent {
    /// Notes the end of the step, and starts that of a missed agent again when it is due. `start` returns `None` for a node that has
    /// left the allocation.
    fn look(&mut self, folder: &Path, start: &dyn Fn(&str) -> Result<Option<Child>, SubmitError>) {
        if let Some(Ok(Some(ended))) = self.step.as_mut().map(Child::try_wait) {
            self.step = None;
            // The exit code of a step whose node was lost may be that of a success, and one that has not begun has no heartbeat.
            let is_last = ended.code().is_some_and(|code| LAST_CODES.contains(&code));
            let is_missed = !is_last || AgentHeartbeat::is_missed(folder, &self.node);
            self.due = is_missed.then(|| self.next());
        }
        if self.due.is_some_and(|due| ronde_clock::now() >= due) {
            let started = start(&self.node);
            self.due = started.is_err().then(|| self.next());
            self.step = started.ok().flatten();
        }
    }

    /// Returns when the agent is started again.
    fn next(&mut self) -> Instant {
        let due = ronde_clock::now() + self.delay;
        self.delay = (2 * self.delay).min(AGAIN_MAX);
        due
    }
}

impl SlurmAllocation {
    /// Runs an agent on each other node until `is_over` returns true, and waits for their end. An agent that is lost with its node is
    /// started again when the node is back.
    ///
    /// # Errors
    /// Slurm does not answer, or `srun` cannot be started.
    pub fn run_agents(
        &self,
        program: &Path,
        paths: &JobPaths,
        slots: u32,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), SubmitError> {
        if self.nodes < 2 {
            return Ok(());
        }
        let since = ronde_clock::unix_ms();
        let start = |node: &str| {
            let words = ["__job", "slurm-agent", "--slots", &slots.to_string()].map(str::to_owned);
            let mut command = step_on(node, paths);
            command.arg(program).args(words).arg(paths.folder());
            command
                .arg(since.to_string())
                .spawn()
                .map_err(|error| SubmitError::Program {
                    program: "srun".to_owned(),
                    problem: error.to_string(),
                })
        };
        // Slurm removes a node from the allocation that it has lost for a while.
        let restart = |node: &str| match self.other_nodes()?.iter().any(|other| other == node) {
            true => start(node).map(Some),
            false => Ok(None),
        };
        let mut agents = Vec::new();
        for node in self.other_nodes()? {
            let step = Some(start(&node)?);
            agents.push(NodeAgent {
                node,
                step,
                due: None,
                delay: AGAIN_AFTER,
            });
        }
        while !is_over() {
            agents
                .iter_mut()
                .for_each(|agent| agent.look(paths.folder(), &restart));
            ronde_clock::pause(LOOK_EVERY);
        }
        // They end with the run; those on lost nodes do not.
        let end = ronde_clock::now() + GRACE;
        for step in agents.iter_mut().filter_map(|agent| agent.step.as_mut()) {
            wait(step, end.saturating_duration_since(ronde_clock::now()));
        }
        Ok(())
    }

    /// Returns the nodes of the allocation but this one.
    fn other_nodes(&self) -> Result<Vec<String>, SubmitError> {
        let report = JobReport::of(self.id)?;
        let nodes = call("scontrol", &["show", "hostnames", &report.nodes])?;
        let nodes = nodes.lines().map(|node| node.trim().to_owned());
        Ok(nodes
            .filter(|node| !node.is_empty() && *node != self.node)
            .collect())
    }

    /// Waits until the coordinator of the launcher that has started the agents at `since` listens, and returns its address; `None` if
    /// `is_over` returns true before.
    #[must_use]
    pub fn wait_for_coordinator(
        &self,
        paths: &JobPaths,
        since: u64,
        is_over: &dyn Fn() -> bool,
    ) -> Option<String> {
        loop {
            let address = paths.coordinator(since);
            if address.is_some() || is_over() {
                return address;
            }
            ronde_clock::pause(LOOK_EVERY);
        }
    }
}

/// Returns the command that runs a program on a node of the allocation.
fn step_on(node: &str, paths: &JobPaths) -> Command {
    let log = paths.folder().join("agents.log");
    let mut command = Command::new("srun");
    command
        // A step of a node that was lost may not have ended for Slurm.
        .args(["--overlap", "--no-kill", "--kill-on-bad-exit=0", "--wait=0"])
        .args(["--nodes=1", "--ntasks=1", "--open-mode=append"])
        .arg(format!("--nodelist={node}"))
        .arg(format!("--output={}", log.display()))
        .stdin(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_is_started_again_unless_it_has_ended_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let ended = |code: &str| {
            let mut step = Command::new("sh").args(["-c", code]).spawn().unwrap();
            step.wait().unwrap();
            NodeAgent {
                node: "n2".to_owned(),
                step: Some(step),
                due: None,
                delay: AGAIN_AFTER,
            }
        };
        let look = |agent: &mut NodeAgent| agent.look(dir.path(), &|_| Ok(None));
        for (code, is_missed) in [
            ("exit 0", false),
            ("exit 2", false),
            ("exit 143", false),
            ("exit 1", true),
            ("kill -9 $$", true),
        ] {
            let mut agent = ended(code);
            look(&mut agent);
            assert_eq!(agent.due.is_some(), is_missed, "{code}");
        }
        // Its node was lost, and Slurm reports no exit code.
        AgentHeartbeat::start(dir.path(), "n2").unwrap().end(3);
        let mut agent = ended("exit 0");
        look(&mut agent);
        assert!(agent.due.is_some() && agent.delay == 2 * AGAIN_AFTER);
        // It has left the allocation.
        agent.due = Some(ronde_clock::now());
        look(&mut agent);
        assert!(agent.due.is_none() && agent.step.is_none());
    }
}
