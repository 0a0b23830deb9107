//! [`LocalLauncher`]: ranks as processes of this machine, each leading a process group.

use std::collections::BTreeMap;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use ronde_core::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::Pid;

use crate::child;
use crate::groups;
use crate::launcher::{Launcher, LogSink, ProcessSpec, StartedProcess, StopSignal};
use crate::outcome::ProcessExit;
use crate::output_pump::OutputPump;

/// Polling interval where the system does not notify about the end of a child.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Starts ranks as children of this process.
///
/// Every rank leads its own process group, so that signals reach its children and Ctrl-C reaches
/// none of them. On Linux a rank gets SIGKILL when the thread that started it ends: call
/// [`Launcher::start`] from a thread that lives as long as the job.
pub struct LocalLauncher {
    host: String,
    children: BTreeMap<Rank, LocalChild>,
    pump: OutputPump,
}

struct LocalChild {
    child: Child,
    group: Pid,
    /// Becomes readable at the end of the process; `None` if the system does not support it.
    pidfd: Option<OwnedFd>,
    ended: bool,
    gone: bool,
}

impl LocalLauncher {
    /// Returns a launcher without processes. Starts one thread for the output.
    #[must_use]
    pub fn new() -> Self {
        Self {
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            children: BTreeMap::new(),
            pump: OutputPump::start(),
        }
    }

    /// Waits until a child may have ended.
    fn wait(&self, timeout: Duration) {
        let running: Vec<&LocalChild> = self.children.values().filter(|c| !c.ended).collect();
        let mut fds: Vec<PollFd<'_>> = running
            .iter()
            .filter_map(|c| c.pidfd.as_ref())
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        let blind = fds.len() < running.len();
        let wait = if blind {
            timeout.min(LOOK_EVERY)
        } else {
            timeout
        };
        let timespec = Timespec {
            tv_sec: wait.as_secs().cast_signed(),
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        if poll(&mut fds, Some(&timespec)).is_err() {
            // Usually interrupted by a signal: the caller checks and calls again.
            ronde_clock::pause(wait.min(Duration::from_millis(1)));
        }
    }
}

impl Default for LocalLauncher {
    fn default() -> Self {
        Self::new()
    }
}

impl Launcher for LocalLauncher {
    fn host(&self) -> String {
        self.host.clone()
    }

    fn start(
        &mut self,
        process: &ProcessSpec,
        log: &Arc<dyn LogSink>,
    ) -> std::io::Result<StartedProcess> {
        let mut command = Command::new(&process.program);
        command
            .args(&process.arguments)
            .envs(
                process
                    .environment
                    .iter()
                    .map(|(name, value)| (name, value)),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(directory) = &process.working_directory {
            command.current_dir(directory);
        }
        child::end_with_parent(&mut command);
        let mut child = command.spawn()?;
        let group = Pid::from_child(&child);
        let pipes = (child.stdout.take(), child.stderr.take());
        self.pump.add(process.rank, pipes, log);
        let pid = child.id();
        let entry = LocalChild {
            child,
            group,
            pidfd: pidfd(group),
            ended: false,
            gone: false,
        };
        self.children.insert(process.rank, entry);
        Ok(StartedProcess {
            pid,
            host: self.host.clone(),
        })
    }

    fn poll(&mut self, timeout: Duration) -> Vec<(Rank, ProcessExit)> {
        self.wait(timeout);
        let mut ends = Vec::new();
        for (rank, child) in self.children.iter_mut().filter(|(_, c)| !c.ended) {
            match child.child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => {
                    child.ended = true;
                    ends.push((*rank, end(status)));
                }
                // The exit status was taken by other code: the process has ended, but how is
                // unknown.
                Err(_) => {
                    child.ended = true;
                    ends.push((*rank, ProcessExit::Code(-1)));
                }
            }
        }
        ends
    }

    fn signal(&mut self, rank: Rank, signal: StopSignal) {
        if let Some(child) = self.children.get(&rank).filter(|c| !c.gone) {
            groups::signal(child.group, signal);
        }
    }

    fn alive(&mut self, rank: Rank) -> bool {
        let Some(child) = self.children.get_mut(&rank) else {
            return false;
        };
        if child.ended && !child.gone {
            groups::reap(child.group);
            // Once the group is gone, its number may be reused, so it is never checked again.
            child.gone = !groups::alive(child.group);
        }
        !child.gone
    }

    fn logs(&mut self, rank: Rank) -> Vec<String> {
        self.pump.last_lines(rank)
    }

    fn close(&mut self, timeout: Duration) {
        self.pump.finish(timeout);
    }
}

impl Drop for LocalLauncher {
    /// Kills and reaps remaining processes, which exist only after a panic.
    fn drop(&mut self) {
        for child in self.children.values_mut().filter(|c| !c.gone) {
            groups::signal(child.group, StopSignal::Kill);
            if !child.ended {
                let _ = child.child.wait();
            }
        }
        self.pump.finish(Duration::ZERO);
    }
}

fn end(status: ExitStatus) -> ProcessExit {
    match (status.code(), status.signal()) {
        (Some(code), _) => ProcessExit::Code(code),
        (None, Some(signal)) => ProcessExit::Signal(signal),
        (None, None) => ProcessExit::Code(-1),
    }
}

#[cfg(target_os = "linux")]
fn pidfd(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(not(target_os = "linux"))]
fn pidfd(_pid: Pid) -> Option<OwnedFd> {
    None
}
