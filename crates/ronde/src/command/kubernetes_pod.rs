//! The processes in a pod of a job on Kubernetes: the launcher in the first pod, an agent in each other one, and the commands
//! that Kubernetes and users run beside them.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clap::Args;
use ronde::environment;
use ronde_cluster::{ClusterError, Invitation, PeerAddress};
use ronde_submit::{JobPaths, KubernetesPod, LogRequest, PodFolders, ProcessFolder, SubmitError};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::job_process::{enter_directory, finish};
use super::{exit, job, open, stored_results};
use crate::command::console::message;

/// Interval at which an agent looks for the launcher, and joins again.
const JOIN_EVERY: Duration = Duration::from_secs(1);
/// Interval at which the process of an agent is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Time limit for one attempt to resolve the name of the launcher.
const RESOLVE_MAX: Duration = Duration::from_secs(2);
/// Time limit for the coordinator's answer to a probe.
const PROBE_MAX: Duration = Duration::from_secs(5);

/// Arguments of the process of a pod.
#[derive(Args)]
pub(crate) struct PodArguments {
    /// The maximum number of workers in a pod.
    #[arg(long)]
    slots: u32,
    /// The address of the coordinator.
    #[arg(long)]
    leader: String,
    /// The folder of the job.
    #[arg(long)]
    results: PathBuf,
    /// The address to which the results are sent.
    #[arg(long)]
    store: Option<String>,
    /// Where the end of the node is announced.
    #[arg(long)]
    drain_on: Vec<String>,
}

/// Leads the job in the pod with index 0, and joins it in each other one.
pub(super) fn run(
    arguments: &PodArguments,
    execute: fn(Vec<String>) -> i32,
) -> Result<i32, SubmitError> {
    let pod = environment::kubernetes_pod(&arguments.results).map_err(|problem| {
        SubmitError::Invalid {
            problem,
            help: "`ronde submit --on TARGET` starts this command in a pod".to_owned(),
        }
    })?;
    let guard = pod.process().enter()?;
    let code = match pod.index {
        0 => {
            let stored = arguments.store.as_deref().map(has_checkpoint).transpose()?;
            let command = pod.launcher(stored.unwrap_or(false))?;
            enter_directory(&command.directory)?;
            pod.exit_code(execute(command.arguments))
        }
        _ => follow(&pod, arguments)?,
    };
    Ok(finish(guard, code))
}

/// Returns whether an earlier pod has saved a checkpoint at an address.
fn has_checkpoint(address: &str) -> Result<bool, SubmitError> {
    let found = stored_results::open(address)?.has_checkpoint();
    found.map_err(|error| stored_results::failed(address, &error))
}

/// Joins the job, and again when it continues under another launcher, until this pod is ended: by a drain, or because the
/// launcher has ended the Job. An index that succeeds would not get another pod. Returns the exit code.
fn follow(pod: &KubernetesPod, arguments: &PodArguments) -> Result<i32, SubmitError> {
    let agent = Arc::new(AgentProcess::default());
    let failed = |cause| SubmitError::File {
        action: "install",
        path: PathBuf::from("a signal handler"),
        cause,
    };
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
    let signalled = Arc::clone(&agent);
    std::thread::spawn(move || {
        for _signal in signals.forever() {
            signalled.drain();
        }
    });
    let leader: PeerAddress =
        arguments
            .leader
            .parse()
            .map_err(|error: ClusterError| SubmitError::Invalid {
                problem: error.to_string(),
                help: "`ronde submit --on TARGET` starts this command in a pod".to_owned(),
            })?;
    let mut reported = None;
    loop {
        if agent.is_drained.load(Ordering::SeqCst) {
            return Ok(128 + SIGTERM);
        }
        let problem = reach(&leader).err();
        if problem.is_none() {
            reported = None;
            let words = pod.agent(&arguments.leader, arguments.slots, &arguments.drain_on);
            let code = agent.run(words)?;
            if code == 128 + SIGTERM {
                // After a notice, too: a pod on another node replaces this one.
                return Ok(code);
            }
            if !agent.is_drained.load(Ordering::SeqCst) {
                message!(
                    "the agent ended with exit code {code}; joining again if the run continues"
                );
            }
        } else if problem != reported {
            let why = problem.as_deref().unwrap_or_default();
            message!("waiting for the launcher at {leader}, until this pod is ended: {why}");
            reported = problem;
        }
        pause(JOIN_EVERY);
    }
}

/// Connects to the launcher. The error is a sentence.
fn reach(leader: &PeerAddress) -> Result<(), String> {
    let mut problem = String::new();
    for address in leader.resolve(RESOLVE_MAX)? {
        match TcpStream::connect_timeout(&address, JOIN_EVERY) {
            Ok(_) => return Ok(()),
            Err(error) => problem = format!("cannot connect to {address}: {error}"),
        }
    }
    Err(problem)
}

/// The agent of this pod.
#[derive(Default)]
struct AgentProcess {
    running: Mutex<Option<u32>>,
    is_drained: AtomicBool,
}

impl AgentProcess {
    /// Makes the workers of the agent finish their step and leave.
    fn drain(&self) {
        self.is_drained.store(true, Ordering::SeqCst);
        let running = *self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = running.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Starts an agent and waits for its end. Returns its exit code.
    fn run(&self, words: Vec<String>) -> Result<i32, SubmitError> {
        let failed = |problem: std::io::Error| SubmitError::Program {
            program: "ronde".to_owned(),
            problem: problem.to_string(),
        };
        let mut child = self.start(words).map_err(failed)?;
        let status = loop {
            // The process number is not used again before the process has been waited for here.
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(status) = child.try_wait().map_err(failed)? {
                *running = None;
                break status;
            }
            drop(running);
            pause(LOOK_EVERY);
        };
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        Ok(status.code().unwrap_or(128 + signal.unwrap_or_default()))
    }

    fn start(&self, words: Vec<String>) -> std::io::Result<Child> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let child = Command::new(open::this_program()).args(words).spawn()?;
        *running = Some(child.id());
        Ok(child)
    }
}

/// Reports whether the process of this pod works: in the first pod its coordinator answers, if it has begun to listen.
pub(super) fn probe(folder: &Path, is_ready: bool) -> i32 {
    let pod = match environment::kubernetes_pod(folder) {
        Ok(pod) => pod,
        Err(problem) => {
            message!("error: {problem}");
            return exit::USER_ERROR;
        }
    };
    let has_process = !pod.process().is_over();
    let has_begun = pod.paths.has_begun(true);
    if pod.index != 0 || !has_begun {
        let works = has_process && (!is_ready || pod.index != 0);
        return if works { exit::DONE } else { exit::GAVE_UP };
    }
    let folder = job::folder(&pod.paths.results());
    let invitation = folder.ok().and_then(|folder| Invitation::of(&folder).ok());
    let answered = invitation.map(|invitation| ronde_cluster::status(&invitation, PROBE_MAX));
    match answered {
        Some(Err(error)) => super::job_failure(&error),
        _ => exit::DONE,
    }
}

/// Ends the process of a pod after a last checkpoint, so that no pod replaces it.
pub(super) fn cancel(folder: &Path, grace_s: u64) -> Result<i32, SubmitError> {
    KubernetesPod::mark_cancelled(folder)?;
    let stopped = ProcessFolder::new(folder).stop(Duration::from_secs(grace_s));
    stopped.map(|is_empty| if is_empty { exit::DONE } else { exit::GAVE_UP })
}

/// Waits, so that other commands can read the volumes of this pod.
pub(super) fn hold(seconds: u64) -> i32 {
    let stop = Arc::<AtomicBool>::default();
    if signal_hook::flag::register(SIGTERM, Arc::clone(&stop)).is_err() {
        return exit::BUG;
    }
    for _ in 0..seconds.saturating_mul(10) {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        pause(Duration::from_millis(100));
    }
    exit::DONE
}

/// Prints the output of a rank in the folder of a job.
pub(super) fn rank_log(folder: &Path, rank: u32, follow: bool) -> Result<i32, SubmitError> {
    let paths = JobPaths::new(folder);
    let request = LogRequest {
        rank: Some(rank),
        follow,
        interrupted: |_| {},
    };
    let process = ProcessFolder::new(PodFolders::default().pod);
    let mut is_over = || process.is_over();
    let host = paths.host_of_rank(&[0, 1], request, &mut is_over);
    let shown = paths.write_logs(host, request, &mut std::io::stdout(), &mut is_over);
    shown.map(|()| exit::DONE)
}

#[expect(
    clippy::disallowed_methods,
    reason = "a bounded pause between two looks; the pod is ended by a signal"
)]
fn pause(duration: Duration) {
    std::thread::sleep(duration);
}
