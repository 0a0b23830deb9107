//! An open job: its coordinator is a process of its own, which may die and come back, and other hosts
//! may join. The launcher is the agent of its host, and looks after the coordinator.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::Args;
use ronde::environment;
use ronde_cluster::{Agent, ClusterError, Invitation, JobFolder, JobSpec};
use rustix::process::{Pid, Signal, kill_process};

use super::coordinator::listen_address;
use super::exit;

/// How long the coordinator may take to begin.
const LIMIT: Duration = Duration::from_secs(30);
/// How often in a row a coordinator that died at once is started again.
const RESTARTS_MAX: u32 = 20;
/// How often the keeper looks after it.
const TURN: Duration = Duration::from_millis(20);
/// It died at once when it did not live for so many turns.
const LIVES_MIN: u32 = 50;
/// Longest pause before it is started again: as many turns as it has died at once, doubled each time.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How long a coordinator may take to end after the job.
const END_MAX: Duration = Duration::from_secs(5);

/// Arguments of a job that other hosts may join.
#[derive(Args)]
pub(crate) struct OpenArguments {
    /// Give the job a coordinator of its own, which the job outlives and other hosts may join: `ronde
    /// join`. It listens at this address only; 127.0.0.1 without one.
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true,
          default_missing_value = "127.0.0.1", value_parser = listen_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Places for workers on this host; as many as the workers of the job without it.
    #[arg(long, value_name = "N", requires = "listen",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) here: Option<u32>,
    /// Where the job's record is kept: a folder, s3://bucket/prefix or az://container/prefix; in the
    /// job's folder without it.
    #[arg(long, value_name = "STORE", requires = "listen")]
    pub(crate) record: Option<String>,
}

/// A job whose coordinator runs.
pub(crate) struct Opened {
    pub(crate) agent: Agent,
    pub(crate) keeper: CoordinatorKeeper,
    /// What people should know.
    pub(crate) notice: String,
}

/// Makes the job's folder at `path`, starts its coordinator and joins it.
///
/// # Errors
/// The exit code; the user has been told.
pub(crate) fn open(
    path: &Path,
    spec: &JobSpec,
    arguments: &OpenArguments,
    listen: SocketAddr,
    say: impl Fn(&str) + Send + 'static,
) -> Result<Opened, i32> {
    let failed = |error: ClusterError| super::job_failure(&error);
    let remote = environment::store_settings();
    refuse_running(path)?;
    // What an earlier run has left, its events too.
    let events = spec
        .events
        .clone()
        .unwrap_or_else(|| path.join("events.jsonl"));
    let _ = std::fs::remove_file(events);
    if path.exists()
        && let Err(error) = std::fs::remove_dir_all(path)
    {
        eprintln!("error: {}: {error}", path.display());
        return Err(exit::USER_ERROR);
    }
    let spec = JobSpec {
        record: arguments.record.clone(),
        ..spec.clone()
    };
    let folder = JobFolder::create(path, &spec, &remote).map_err(failed)?;
    let keeper = CoordinatorKeeper::start(path.to_owned(), listen, say);
    let places = arguments.here.unwrap_or(spec.settings.workers);
    let invitation = Invitation::of(&folder).map_err(failed)?;
    let agent = Agent::join(invitation, &host_name(), places, true, LIMIT).map_err(failed)?;
    let at = folder.coordinators().unwrap_or_default();
    let at = at.first().map_or_else(String::new, ToString::to_string);
    let notice = format!(
        "the coordinator listens at {at}; another host joins with\n  ronde join {at} --token-file {}/token",
        folder.path().display()
    );
    Ok(Opened {
        agent,
        keeper,
        notice,
    })
}

/// A folder whose job has a coordinator is not taken away from it.
fn refuse_running(path: &Path) -> Result<(), i32> {
    let folder = JobFolder::open(path, &environment::store_settings());
    let invitation = folder.ok().and_then(|folder| Invitation::of(&folder).ok());
    let Some(invitation) = invitation else {
        return Ok(());
    };
    match ronde_cluster::status(&invitation, Duration::from_millis(500)) {
        Ok(status) => {
            eprintln!(
                "error: {} has a coordinator: job {} still runs or waits for workers\n  \
                 hint: `ronde status {}`; end its coordinator, or choose another folder",
                path.display(),
                status.job,
                path.display()
            );
            Err(exit::USER_ERROR)
        }
        Err(_) => Ok(()),
    }
}

/// Starts the coordinator, and again when it dies, until the job is over.
pub(crate) struct CoordinatorKeeper {
    running: Arc<Mutex<Option<u32>>>,
    over: Option<Sender<()>>,
    /// Closed when the thread ends.
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl CoordinatorKeeper {
    fn start(job: PathBuf, listen: SocketAddr, say: impl Fn(&str) + Send + 'static) -> Self {
        let running = Arc::<Mutex<Option<u32>>>::default();
        let (over, hears) = channel::<()>();
        let (alive, done) = channel::<()>();
        let pid = Arc::clone(&running);
        let thread = thread::spawn(move || {
            let _alive = alive;
            keep(&job, listen, &pid, &hears, &say);
        });
        Self {
            running,
            over: Some(over),
            done,
            thread: Some(thread),
        }
    }
}

impl CoordinatorKeeper {
    fn signal(&self, signal: Signal) {
        let running = *self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pid) = running.and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // It may have ended just now.
            let _ = kill_process(pid, signal);
        }
    }
}

impl Drop for CoordinatorKeeper {
    /// The job is over here: its coordinator ends by itself, or is told to.
    fn drop(&mut self) {
        self.over = None;
        self.signal(Signal::TERM);
        if self.done.recv_timeout(END_MAX) == Err(RecvTimeoutError::Timeout) {
            // Stopped or hung: nothing that it does still counts.
            self.signal(Signal::KILL);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts a coordinator and another one whenever it dies, until the job is over.
fn keep(
    job: &Path,
    listen: SocketAddr,
    running: &Mutex<Option<u32>>,
    over: &Receiver<()>,
    say: &dyn Fn(&str),
) {
    let mut listen = Some(listen);
    let mut at_once = 0;
    while at_once < RESTARTS_MAX {
        // Again at the same place: those who know it find the new one there.
        let mut child = match spawn(job, listen.take()) {
            Ok(child) => child,
            Err(error) => return say(&format!("no coordinator can be started: {error}")),
        };
        *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(child.id());
        let (ended, turns) = wait(&mut child, over);
        *running.lock().unwrap_or_else(PoisonError::into_inner) = None;
        at_once = if turns < LIVES_MIN { at_once + 1 } else { 0 };
        let pause = TURN.saturating_mul(1 << at_once).min(PAUSE_MAX);
        if over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        match ended {
            Ok(status) if status.code().is_some_and(|code| code < 128) => return,
            Ok(status) => say(&format!(
                "the coordinator ended ({status}); another one is started"
            )),
            Err(error) => return say(&format!("the coordinator is lost: {error}")),
        }
    }
    say("the coordinator died again and again; `ronde coordinator` starts another one");
}

/// Waits for the end of a coordinator; how many turns that took, for as long as the job was not over.
fn wait(child: &mut Child, over: &Receiver<()>) -> (std::io::Result<ExitStatus>, u32) {
    let mut turns = 0_u32;
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return (Ok(status), turns),
            Err(error) => return (Err(error), turns),
        }
        turns = turns.saturating_add(1);
        if over.recv_timeout(TURN) != Err(RecvTimeoutError::Timeout) {
            // It ends by itself, or is told to.
            return (child.wait(), turns);
        }
    }
}

fn spawn(job: &Path, listen: Option<SocketAddr>) -> std::io::Result<Child> {
    let mut command = Command::new(this_program());
    command
        .arg("coordinator")
        .arg("--quiet")
        .arg("--job")
        .arg(job);
    if let Some(listen) = listen {
        command.arg("--listen").arg(listen.to_string());
    }
    // In a group of its own, so that Ctrl-C reaches the launcher only.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
}

/// The command itself, for processes of its own.
pub(crate) fn this_program() -> OsString {
    std::env::current_exe().map_or_else(|_| OsString::from("ronde"), PathBuf::into_os_string)
}

/// The name of this host.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// The variables of a worker of ronde's own. The engine's sums depend on its thread count: one thread a
/// worker, whatever it was built with.
pub(crate) fn own_worker() -> Vec<(OsString, OsString)> {
    let threads = [environment::RAYON_NUM_THREADS, environment::OMP_NUM_THREADS];
    let mut variables: Vec<_> = threads.map(|name| (name.into(), "1".into())).to_vec();
    variables.extend(environment::allocator_settings());
    variables
}
