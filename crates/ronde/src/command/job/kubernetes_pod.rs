//! The processes in a pod of a job on Kubernetes: the launcher in the pod that leads, an agent in each other one, and the
//! commands that Kubernetes and users run beside them.

use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use ronde::environment;
use ronde::output_folder::OutputFolder;
use ronde_cluster::{ClusterError, Invitation, PeerAddress};
use ronde_submit::{
    JobPaths, KubernetesPod, LeaderState, LeaderWatch, LogRequest, PodFolders, PodRole,
    ProcessFolder, RENEW_EVERY, SubmitError,
};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command::console::message;
use crate::command::exit;
use crate::command::job::job_process::{enter_directory, finish};
use crate::command::job::pod_leader::{FoundRecord, HeldLead, LeaderFile};
use crate::command::job::{find, open, stored_results};

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
    /// The number of pods at the start.
    #[arg(long)]
    pods: u32,
    /// The port of the coordinator; without it, this pod is the only one.
    #[arg(long)]
    port: Option<u16>,
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

/// Leads the job, or joins the pod that leads it.
pub(crate) fn run(
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
    let code = match arguments.port {
        None => lead(&pod, arguments, execute)?,
        Some(port) => JobPod::new(&pod, arguments, port)?.run(execute)?,
    };
    Ok(finish(guard, code))
}

/// Runs the launcher in this pod. Returns the exit code of the pod.
fn lead(
    pod: &KubernetesPod,
    arguments: &PodArguments,
    execute: fn(Vec<String>) -> i32,
) -> Result<i32, SubmitError> {
    let stored = arguments.store.as_deref().map(has_checkpoint).transpose()?;
    let command = pod.launcher(stored.unwrap_or(false))?;
    enter_directory(&command.directory)?;
    pod.mark_leading()?;
    Ok(pod.exit_code(execute(command.arguments)))
}

/// Returns whether an earlier pod has saved a checkpoint at an address.
fn has_checkpoint(address: &str) -> Result<bool, SubmitError> {
    let found = stored_results::open(address)?.has_checkpoint();
    found.map_err(|error| stored_results::failed(address, &error))
}

/// This pod as one of those of a job.
struct JobPod<'a> {
    pod: &'a KubernetesPod,
    arguments: &'a PodArguments,
    file: LeaderFile,
    agent: Arc<AgentProcess>,
    watch: LeaderWatch,
    started: Instant,
    /// The last reported reason for which this pod waits.
    reported: String,
}

impl<'a> JobPod<'a> {
    fn new(
        pod: &'a KubernetesPod,
        arguments: &'a PodArguments,
        port: u16,
    ) -> Result<Self, SubmitError> {
        let place = arguments.store.as_deref();
        let file = LeaderFile::open(pod.paths.folder(), place).map_err(|error| {
            stored_results::failed(place.unwrap_or("the folder of the job"), &error)
        })?;
        let address = pod.coordinator(port);
        Ok(Self {
            pod,
            arguments,
            file,
            agent: Arc::default(),
            watch: LeaderWatch::new(pod.index, &pod.name, &address, Duration::ZERO),
            started: ronde_clock::now(),
            reported: String::new(),
        })
    }

    /// Leads the job or joins it, and again when it continues under another launcher, until this pod is ended: by a drain, or
    /// because the run has ended. Returns the exit code.
    fn run(mut self, execute: fn(Vec<String>) -> i32) -> Result<i32, SubmitError> {
        let failed = |cause| SubmitError::File {
            action: "install",
            path: PathBuf::from("a signal handler"),
            cause,
        };
        let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(failed)?;
        let signalled = Arc::clone(&self.agent);
        std::thread::spawn(move || {
            for _signal in signals.forever() {
                signalled.drain();
            }
        });
        while !self.agent.is_drained.load(Ordering::SeqCst) {
            let version = match self.file.read() {
                Ok(found) => {
                    let (record, version) = found.unzip();
                    self.watch.see(record, self.started.elapsed());
                    version
                }
                Err(error) => {
                    self.report(&format!("cannot read which pod leads the job: {error}"));
                    ronde_clock::pause(JOIN_EVERY);
                    continue;
                }
            };
            match self.watch.role(self.started.elapsed()) {
                PodRole::End(code) => return Ok(code),
                PodRole::Wait => self.report("waiting for the first pod of the job"),
                PodRole::Lead(record) => match self.file.replace(&record, version) {
                    Ok(version) => return self.lead((record, version), execute),
                    // Another pod was faster.
                    Err(error) if error.is_conflict() => continue,
                    Err(error) => self.report(&format!("cannot lead the job: {error}")),
                },
                PodRole::Join { address, term } => {
                    if let Some(code) = self.join(&address, term)? {
                        return Ok(code);
                    }
                }
            }
            ronde_clock::pause(JOIN_EVERY);
        }
        Ok(128 + SIGTERM)
    }

    fn report(&mut self, reason: &str) {
        if self.reported != reason {
            message!("{reason}");
            reason.clone_into(&mut self.reported);
        }
    }

    /// Leads the job until the run has ended or this pod leaves.
    fn lead(self, held: FoundRecord, execute: fn(Vec<String>) -> i32) -> Result<i32, SubmitError> {
        if held.0.term > 1 {
            message!(
                "this pod leads the job now, after {} others",
                held.0.term - 1
            );
        }
        let (pods, results) = (self.arguments.pods, self.pod.paths.results());
        let has_others = move || pods > 1 || connected_hosts(&results) > 1;
        let held = HeldLead::start(self.file, held, self.pod, has_others);
        let led = match wait_for_earlier(self.pod, &self.agent.is_drained) {
            true => lead(self.pod, self.arguments, execute),
            false => Ok(128 + SIGTERM),
        };
        held.give_up(match &led {
            Ok(code) if *code == 128 + SIGTERM => LeaderState::Left,
            Ok(code) => LeaderState::Ended(*code),
            Err(_) => LeaderState::Left,
        });
        led
    }

    /// Joins the coordinator of a leader, until this pod is drained, its contact is lost or another pod leads. Returns the exit
    /// code of a pod that is drained.
    fn join(&mut self, leader: &str, term: u64) -> Result<Option<i32>, SubmitError> {
        let parsed: PeerAddress =
            leader
                .parse()
                .map_err(|error: ClusterError| SubmitError::Invalid {
                    problem: error.to_string(),
                    help: "`ronde submit --on TARGET` starts this command in a pod".to_owned(),
                })?;
        if let Err(why) = reach(&parsed) {
            self.report(&format!(
                "waiting for the launcher at {leader}, until this pod is ended: {why}"
            ));
            return Ok(None);
        }
        self.reported.clear();
        let (slots, drain_on) = (self.arguments.slots, &self.arguments.drain_on);
        let words = self.pod.agent(leader, slots, drain_on);
        let agent = Arc::clone(&self.agent);
        let mut is_replaced = false;
        let code = agent.run(words, &mut || {
            is_replaced = is_replaced || self.look(&parsed, term);
            is_replaced
        })?;
        let is_drained = self.agent.is_drained.load(Ordering::SeqCst);
        if is_drained || code == 128 + SIGTERM && !is_replaced {
            // After a notice, too: a pod on another node replaces this one.
            return Ok(Some(128 + SIGTERM));
        }
        message!("the agent ended with exit code {code}; joining again if the run continues");
        Ok(None)
    }

    /// Looks at the record while this pod is connected to a leader. Returns whether another pod leads, or this one may lead
    /// because the leader neither renews its record nor answers.
    fn look(&mut self, leader: &PeerAddress, term: u64) -> bool {
        if let Ok(found) = self.file.read() {
            let record = found.map(|(record, _)| record);
            self.watch.see(record, self.started.elapsed());
        }
        let is_silent = self.watch.silence(self.started.elapsed()) > RENEW_EVERY * 3;
        if is_silent && self.answers(leader) {
            self.watch.contact(self.started.elapsed());
        }
        match self.watch.role(self.started.elapsed()) {
            PodRole::Join { term: now, .. } => now > term,
            PodRole::Lead(_) => true,
            PodRole::Wait | PodRole::End(_) => false,
        }
    }

    /// Returns whether the coordinator of a leader answers.
    fn answers(&self, leader: &PeerAddress) -> bool {
        let token = find::read_token(&self.pod.folders.credentials.join("token"));
        token.is_ok_and(|token| {
            let invitation = Invitation {
                addresses: vec![leader.clone()],
                token,
                folder: None,
            };
            ronde_cluster::status(&invitation, PROBE_MAX).is_ok()
        })
    }
}

/// Waits until no earlier launcher has the folder of the results. Returns false if this pod is drained first.
fn wait_for_earlier(pod: &KubernetesPod, is_drained: &AtomicBool) -> bool {
    let results = pod.paths.results();
    let mut is_first = true;
    while OutputFolder::is_locked(&results) {
        if is_drained.load(Ordering::SeqCst) {
            return false;
        }
        if is_first {
            message!(
                "the launcher of an earlier pod still has the folder of the results; waiting, until this pod is ended: it ends \
                 itself when its node works again"
            );
        }
        is_first = false;
        ronde_clock::pause(JOIN_EVERY);
    }
    true
}

/// Returns how many hosts are connected to the coordinator of this pod.
fn connected_hosts(results: &Path) -> usize {
    let invitation = find::folder(results).ok();
    let invitation = invitation.and_then(|folder| Invitation::of(&folder).ok());
    let status = invitation.and_then(|found| ronde_cluster::status(&found, PROBE_MAX).ok());
    status.map_or(0, |status| status.hosts.len())
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
        self.terminate();
    }

    /// Sends SIGTERM to the agent.
    fn terminate(&self) {
        let running = *self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = running.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // It may have ended just now.
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Starts an agent and waits for its end. Ends it when `is_replaced` returns true. Returns its exit code.
    fn run(
        &self,
        words: Vec<String>,
        is_replaced: &mut dyn FnMut() -> bool,
    ) -> Result<i32, SubmitError> {
        let failed = |problem: std::io::Error| SubmitError::Program {
            program: "ronde".to_owned(),
            problem: problem.to_string(),
        };
        let mut child = self.start(words).map_err(failed)?;
        let mut looked = ronde_clock::now();
        let status = loop {
            // The process number is not used again before the process has been waited for here.
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(status) = child.try_wait().map_err(failed)? {
                *running = None;
                break status;
            }
            drop(running);
            if looked.elapsed() >= RENEW_EVERY {
                if is_replaced() {
                    self.terminate();
                }
                looked = ronde_clock::now();
            }
            ronde_clock::pause(LOOK_EVERY);
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

/// Reports whether the process of this pod works: in the pod that leads its coordinator answers, if it has begun to listen.
pub(crate) fn probe(folder: &Path, is_ready: bool) -> i32 {
    let pod = match environment::kubernetes_pod(folder) {
        Ok(pod) => pod,
        Err(problem) => {
            message!("error: {problem}");
            return exit::USER_ERROR;
        }
    };
    let has_process = !pod.process().is_over();
    let has_begun = pod.paths.has_begun(true);
    let leads = KubernetesPod::leads(&pod.folders.pod);
    if !leads || !has_begun {
        let works = has_process && (!is_ready || !leads);
        return if works { exit::DONE } else { exit::GAVE_UP };
    }
    let folder = find::folder(&pod.paths.results());
    let invitation = folder.ok().and_then(|folder| Invitation::of(&folder).ok());
    let answered = invitation.map(|invitation| ronde_cluster::status(&invitation, PROBE_MAX));
    match answered {
        Some(Err(error)) => crate::command::failure::job_failure(&error),
        _ => exit::DONE,
    }
}

/// Reports whether a pod leads its job.
pub(crate) fn leads(folder: &Path) -> i32 {
    match KubernetesPod::leads(folder) {
        true => exit::DONE,
        false => exit::GAVE_UP,
    }
}

/// Ends the process of a pod after a last checkpoint, so that no pod replaces it.
pub(crate) fn cancel(folder: &Path, grace_s: u64) -> Result<i32, SubmitError> {
    KubernetesPod::mark_cancelled(folder)?;
    let stopped = ProcessFolder::new(folder).stop(Duration::from_secs(grace_s));
    stopped.map(|is_empty| if is_empty { exit::DONE } else { exit::GAVE_UP })
}

/// Waits, so that other commands can read the volumes of this pod.
pub(crate) fn hold(seconds: u64) -> i32 {
    let stop = Arc::<AtomicBool>::default();
    if signal_hook::flag::register(SIGTERM, Arc::clone(&stop)).is_err() {
        return exit::BUG;
    }
    for _ in 0..seconds.saturating_mul(10) {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        ronde_clock::pause(Duration::from_millis(100));
    }
    exit::DONE
}

/// Prints the output of a rank in the folder of a job.
pub(crate) fn rank_log(folder: &Path, rank: u32, follow: bool) -> Result<i32, SubmitError> {
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
