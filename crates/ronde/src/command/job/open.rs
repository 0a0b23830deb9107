//! Open jobs: the coordinator is a separate process that is restarted when it dies, and other hosts can join.
//! The launcher is the agent of its host and restarts the coordinator.

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use clap::Args;
use ronde::environment;
use ronde_cluster::{
    Agent, ClusterError, Invitation, JobCredentials, JobFolder, JobSpec, WaitSettings,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::command::console::{info, message};
use crate::command::exit;
use crate::command::job::coordinator::listen_address;
use crate::command::job::launched;
use crate::command::pasted::path_word;

/// Time limit for the coordinator's start.
const LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of restarts in a row of a coordinator that dies immediately.
const RESTARTS_MAX: u32 = 20;
/// Polling interval of the coordinator's supervisor.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A coordinator died immediately if it ended within this number of polling intervals.
const LIVES_MIN: u32 = 50;
/// Longest pause before a restart. The pause doubles with every immediate death.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Time limit for the coordinator's end after the job.
const END_MAX: Duration = Duration::from_secs(5);

/// Arguments of a job that other hosts can join.
#[derive(Args)]
pub(crate) struct OpenArguments {
    /// Run a separate, restartable coordinator that other hosts can join with `ronde join`; it listens at this
    /// address only [default: 127.0.0.1].
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true,
          default_missing_value = "127.0.0.1", value_parser = listen_address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Maximum workers on this host [default: --workers].
    #[arg(long, value_name = "N", requires = "listen",
          value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) here: Option<u32>,
    /// Store for the job's record: a folder, s3://bucket/prefix or az://container/prefix [default: the job's folder].
    #[arg(long, value_name = "STORE", requires = "listen")]
    pub(crate) record: Option<String>,
    /// Folder with the authority and the token of the job [default: new ones].
    #[arg(long, value_name = "FOLDER", requires = "listen", hide = true)]
    pub(crate) credentials: Option<PathBuf>,
}

/// An open job whose coordinator is running.
pub(crate) struct OpenJob {
    pub(crate) agent: Agent,
    pub(crate) coordinator: CoordinatorSupervisor,
    /// Instructions for joining, to be printed.
    pub(crate) notice: String,
}

/// Creates the job's folder at `path`, starts its coordinator and joins it.
///
/// # Errors
/// The exit code; the error has been printed.
pub(crate) fn open(
    path: &Path,
    spec: &JobSpec,
    arguments: &OpenArguments,
    listen: SocketAddr,
    notify: impl Fn(&str) + Send + 'static,
) -> Result<OpenJob, i32> {
    let failed = |error: ClusterError| crate::command::failure::job_failure(&error);
    let remote = environment::store_settings();
    refuse_running(path)?;
    // Remove the job folder of an earlier run.
    if path.exists()
        && let Err(error) = std::fs::remove_dir_all(path)
    {
        message!("error: cannot remove {}: {error}", path.display());
        return Err(exit::USER_ERROR);
    }
    let credentials = arguments.credentials.as_deref().map(JobCredentials::read);
    let credentials = credentials.transpose().map_err(failed)?;
    let spec = JobSpec {
        record: arguments.record.clone(),
        job: match &credentials {
            Some(credentials) => credentials.job().to_owned(),
            None => spec.job.clone(),
        },
        ..spec.clone()
    };
    let created = JobFolder::create_with(path, &spec, &remote, credentials.as_ref());
    let folder = created.map_err(failed)?;
    let coordinator = CoordinatorSupervisor::start(path.to_owned(), listen, notify);
    coordinator.wait_until_listening(&folder)?;
    let slots = arguments.here.unwrap_or(spec.settings.workers);
    let invitation = Invitation::of(&folder).map_err(failed)?;
    let wait = WaitSettings {
        timeout: LIMIT,
        notify: &mut |message| info!("{message}"),
    };
    let agent = Agent::join(invitation, &host_name(), slots, true, wait).map_err(failed)?;
    let at = folder.coordinators().unwrap_or_default();
    let at = at.first().map_or_else(String::new, ToString::to_string);
    let notice = format!(
        "the coordinator listens at {at}; other hosts join with\n  ronde join {at} --token-file {}",
        path_word(&folder.path().join("token"))
    );
    Ok(OpenJob {
        agent,
        coordinator,
        notice,
    })
}

/// Refuses a folder whose job has a running coordinator.
fn refuse_running(path: &Path) -> Result<(), i32> {
    let folder = JobFolder::open(path, &environment::store_settings());
    let invitation = folder.ok().and_then(|folder| Invitation::of(&folder).ok());
    let Some(invitation) = invitation else {
        return Ok(());
    };
    match ronde_cluster::status(&invitation, Duration::from_millis(500)) {
        Ok(status) => {
            message!(
                "error: cannot use {}: the coordinator of job {} is still running\n  \
                 help: see `ronde status {}`; end that coordinator, or choose another folder",
                path.display(),
                status.job,
                path_word(path)
            );
            Err(exit::USER_ERROR)
        }
        Err(_) => Ok(()),
    }
}

/// The process of a coordinator.
struct RunningCoordinator {
    pid: u32,
    /// The pipe through which it learns that the job is over.
    input: Option<ChildStdin>,
}

/// Restarts the coordinator whenever it dies, until the job is over.
pub(crate) struct CoordinatorSupervisor {
    running: Arc<Mutex<Option<RunningCoordinator>>>,
    /// Dropped when the job is over.
    over: Option<Sender<()>>,
    /// Receives the exit code of a coordinator that is not restarted; closed when the thread ends.
    done: Receiver<i32>,
    thread: Option<JoinHandle<()>>,
}

impl CoordinatorSupervisor {
    fn start(job: PathBuf, listen: SocketAddr, notify: impl Fn(&str) + Send + 'static) -> Self {
        let running = Arc::<Mutex<Option<RunningCoordinator>>>::default();
        let (over, receiver) = channel::<()>();
        let (ended, done) = channel::<i32>();
        let pid = Arc::clone(&running);
        let thread = thread::spawn(move || {
            let code = supervise(&job, listen, &pid, &receiver, &notify);
            // The job may be over, so that the code is not needed.
            let _ = ended.send(code);
        });
        Self {
            running,
            over: Some(over),
            done,
            thread: Some(thread),
        }
    }
}

impl CoordinatorSupervisor {
    /// Waits until a coordinator is listed in the job's folder, at most [`LIMIT`]. The error is the exit code of a
    /// coordinator that has ended before; it has printed the reason.
    fn wait_until_listening(&self, folder: &JobFolder) -> Result<(), i32> {
        let mut left = LIMIT;
        while folder.coordinators().is_ok_and(|listed| listed.is_empty()) && !left.is_zero() {
            match self.done.recv_timeout(POLL_INTERVAL) {
                Ok(code) => return Err(code),
                Err(RecvTimeoutError::Disconnected) => return Err(exit::GAVE_UP),
                Err(RecvTimeoutError::Timeout) => left = left.saturating_sub(POLL_INTERVAL),
            }
        }
        Ok(())
    }

    /// Lets the coordinator end.
    fn release(&self) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut input) = running.as_mut().and_then(|running| running.input.take()) {
            // It may have ended just now.
            let _ = input.write_all(format!("{}\n", launched::DONE).as_bytes());
        }
    }

    fn kill(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let pid = running.as_ref().map(|running| running.pid.cast_signed());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // As above.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

impl Drop for CoordinatorSupervisor {
    /// Ends the coordinator of a job that is over on this host.
    fn drop(&mut self) {
        self.over = None;
        self.release();
        if self.done.recv_timeout(END_MAX) == Err(RecvTimeoutError::Timeout) {
            // It is stopped or hangs.
            self.kill();
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Starts a coordinator, and another one whenever it dies, until the job is over. Returns the exit code of the last one.
fn supervise(
    job: &Path,
    listen: SocketAddr,
    running: &Mutex<Option<RunningCoordinator>>,
    over: &Receiver<()>,
    notify: &dyn Fn(&str),
) -> i32 {
    let mut listen = Some(listen);
    let mut immediate_deaths = 0;
    while immediate_deaths < RESTARTS_MAX {
        // A restarted coordinator listens at the same address, where agents look for it.
        let mut child = match spawn(job, listen.take()) {
            Ok(child) => child,
            Err(error) => {
                notify(&format!("cannot start a coordinator: {error}"));
                return exit::GAVE_UP;
            }
        };
        *running.lock().unwrap_or_else(PoisonError::into_inner) = Some(RunningCoordinator {
            pid: child.id(),
            input: child.stdin.take(),
        });
        let (ended, intervals) = wait(&mut child, over);
        *running.lock().unwrap_or_else(PoisonError::into_inner) = None;
        immediate_deaths = if intervals < LIVES_MIN {
            immediate_deaths + 1
        } else {
            0
        };
        let pause = POLL_INTERVAL
            .saturating_mul(1 << immediate_deaths)
            .min(PAUSE_MAX);
        if let Some(code) = code_of(&ended).filter(|code| *code < 128) {
            return code;
        }
        if over.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return exit::DONE;
        }
        match ended {
            Ok(status) => notify(&format!(
                "the coordinator ended ({status}); starting another one"
            )),
            Err(error) => {
                notify(&format!("cannot wait for the coordinator: {error}"));
                return exit::GAVE_UP;
            }
        }
    }
    notify("the coordinator died repeatedly; start another one with `ronde coordinator`");
    exit::GAVE_UP
}

fn code_of(ended: &std::io::Result<ExitStatus>) -> Option<i32> {
    ended.as_ref().ok().and_then(ExitStatus::code)
}

/// Waits for the end of a coordinator. Also returns the number of polling intervals that it ran while the job was not
/// over.
fn wait(child: &mut Child, over: &Receiver<()>) -> (std::io::Result<ExitStatus>, u32) {
    let mut intervals = 0_u32;
    loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => return (Ok(status), intervals),
            Err(error) => return (Err(error), intervals),
        }
        intervals = intervals.saturating_add(1);
        if over.recv_timeout(POLL_INTERVAL) != Err(RecvTimeoutError::Timeout) {
            // It ends by itself, or is released or killed by `drop`.
            return (child.wait(), intervals);
        }
    }
}

fn spawn(job: &Path, listen: Option<SocketAddr>) -> std::io::Result<Child> {
    let mut command = Command::new(this_program());
    command
        .arg("coordinator")
        .arg("--quiet")
        .arg("--launched")
        .arg("--job")
        .arg(job);
    if let Some(listen) = listen {
        command.arg("--listen").arg(listen.to_string());
    }
    // A separate process group, so that Ctrl-C only reaches the launcher.
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
}

/// What Linux adds to the path of a program whose file has been removed or replaced.
const REMOVED: &str = " (deleted)";

/// Returns the path of this program, for starting its own subcommands.
pub(crate) fn this_program() -> OsString {
    std::env::current_exe().map_or_else(|_| OsString::from("ronde"), PathBuf::into_os_string)
}

/// Returns the path from which this program was started, also if its file has been removed there meanwhile. Other hosts may have the
/// file.
pub(crate) fn path_of_this_program() -> OsString {
    let path = PathBuf::from(this_program());
    match path.to_str().and_then(|path| path.strip_suffix(REMOVED)) {
        Some(path) => OsString::from(path),
        None => path.into_os_string(),
    }
}

/// Returns the name of this host.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// Returns the variables of a worker of `ronde train`. The engine's sums depend on its number of threads, so a
/// worker always has one thread.
pub(crate) fn own_worker() -> Vec<(OsString, OsString)> {
    let threads = [environment::RAYON_NUM_THREADS, environment::OMP_NUM_THREADS];
    let mut variables: Vec<_> = threads.map(|name| (name.into(), "1".into())).to_vec();
    variables.extend(environment::allocator_settings());
    variables
}
