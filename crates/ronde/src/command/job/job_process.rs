//! `ronde __job`: runs the process of a submitted job on the host where it is, in the folder of the process.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use ronde_submit::{
    HostFacts, JobPaths, LogPosition, LogRequest, ProcessFolder, ProcessGuard, StartOrder,
    SubmitError,
};

use crate::command::console::print;
use crate::command::exit;
use crate::command::job::{kubernetes_pod, open, ray_job, slurm_job};

/// The maximum size of an order.
const ORDER_BYTES_MAX: u64 = 1 << 20;

/// Arguments of `ronde __job`.
#[derive(Args)]
pub(crate) struct JobProcessArguments {
    #[command(subcommand)]
    action: JobProcessAction,
}

#[derive(Subcommand)]
enum JobProcessAction {
    /// Run the command of a folder in this process, in a session of its own.
    Run { folder: PathBuf },
    /// Start a detached process by an order on standard input, and print a report.
    Start,
    /// Print a line for the process of each folder: its state, or `null` for one of several whose record is damaged.
    State {
        #[arg(required = true)]
        folders: Vec<PathBuf>,
    },
    /// End the process of a folder, and every process of its session.
    Stop {
        /// Time for a graceful end in seconds.
        #[arg(long)]
        grace: u64,
        folder: PathBuf,
    },
    /// Print the output of a process in the folder of a job, or that of a rank.
    Logs {
        folder: PathBuf,
        /// The number of the host of the process.
        #[arg(long)]
        host: usize,
        #[arg(long)]
        rank: Option<u32>,
        #[arg(long)]
        follow: bool,
        /// Print a line with its position before each part.
        #[arg(long, requires = "follow")]
        frames: bool,
        /// Begin after this position.
        #[arg(long, requires = "frames")]
        after: Option<LogPosition>,
    },
    /// Lead the job of a folder in an allocation of Slurm.
    Slurm {
        /// The maximum number of workers on a node.
        #[arg(long)]
        slots: u32,
        folder: PathBuf,
    },
    /// Join the job of a folder on a further node of an allocation.
    SlurmAgent {
        #[arg(long)]
        slots: u32,
        folder: PathBuf,
        /// When the launcher started, in milliseconds since 1970 on its node.
        since: u64,
    },
    /// Lead the job of a folder in a job of Ray.
    Ray(ray_job::RayArguments),
    /// Lead the job of this pod, or join it.
    Pod(kubernetes_pod::PodArguments),
    /// Report whether the process of this pod works, by the exit code.
    PodProbe {
        /// Whether the run has begun.
        #[arg(long)]
        ready: bool,
        /// The folder of the job.
        folder: PathBuf,
    },
    /// Report whether this pod leads its job, by the exit code.
    PodLeads {
        /// The folder of this pod.
        folder: PathBuf,
    },
    /// End the process of this pod after a last checkpoint, so that no pod replaces it.
    PodCancel {
        #[arg(long)]
        grace: u64,
        /// The folder of this pod.
        folder: PathBuf,
    },
    /// Keep this pod for a time, for commands that read its volumes.
    Hold {
        #[arg(long)]
        seconds: u64,
    },
    /// Print the output of a rank in the folder of a job.
    RankLog {
        #[arg(long)]
        rank: u32,
        #[arg(long)]
        follow: bool,
        folder: PathBuf,
    },
    /// Write the results in a folder to standard output, as an archive.
    Send {
        /// Write the archive as lines of text.
        #[arg(long)]
        text: bool,
        folder: PathBuf,
    },
    /// Print what is needed to know whether this host can train together with others.
    Facts,
}

/// Runs an action; `execute` runs a command line of `ronde` in this process.
pub(crate) fn run(arguments: &JobProcessArguments, execute: fn(Vec<String>) -> i32) -> i32 {
    let result = match &arguments.action {
        JobProcessAction::Run { folder } => run_command(&ProcessFolder::new(folder), execute),
        JobProcessAction::Start => start(),
        JobProcessAction::State { folders } => {
            let states = folders
                .iter()
                .map(|folder| ProcessFolder::new(folder).state());
            let states: Result<Vec<_>, _> = match folders.len() {
                1 => states.map(|state| state.map(Some)).collect(),
                _ => Ok(states.map(Result::ok).collect()),
            };
            let lines = |states: Vec<_>| -> serde_json::Result<Vec<String>> {
                states.iter().map(serde_json::to_string).collect()
            };
            states.map(|states| answer(lines(states).map(|lines| lines.join("\n"))))
        }
        JobProcessAction::Stop { grace, folder } => {
            let stopped = ProcessFolder::new(folder).stop(Duration::from_secs(*grace));
            stopped.map(|is_empty| if is_empty { exit::DONE } else { exit::GAVE_UP })
        }
        JobProcessAction::Logs {
            folder,
            host,
            rank,
            follow,
            frames,
            after,
        } => {
            let request = LogRequest {
                rank: *rank,
                follow: *follow,
                interrupted: |_| {},
            };
            logs(folder, *host, request, (*frames, *after))
        }
        JobProcessAction::Slurm { slots, folder } => {
            slurm_job::lead(&JobPaths::new(folder), *slots, execute)
        }
        JobProcessAction::SlurmAgent {
            slots,
            folder,
            since,
        } => slurm_job::join(&JobPaths::new(folder), *slots, *since, execute),
        JobProcessAction::Ray(arguments) => ray_job::lead(arguments, execute),
        JobProcessAction::Pod(arguments) => kubernetes_pod::run(arguments, execute),
        JobProcessAction::PodProbe { ready, folder } => Ok(kubernetes_pod::probe(folder, *ready)),
        JobProcessAction::PodLeads { folder } => Ok(kubernetes_pod::leads(folder)),
        JobProcessAction::PodCancel { grace, folder } => kubernetes_pod::cancel(folder, *grace),
        JobProcessAction::Hold { seconds } => Ok(kubernetes_pod::hold(*seconds)),
        JobProcessAction::RankLog {
            rank,
            follow,
            folder,
        } => kubernetes_pod::rank_log(folder, *rank, *follow),
        JobProcessAction::Send { text, folder } => {
            let send = match text {
                true => ronde_submit::send_results_as_text,
                false => ronde_submit::send_results,
            };
            send(folder, &mut std::io::stdout()).map(|()| exit::DONE)
        }
        JobProcessAction::Facts => Ok(answer(serde_json::to_string(&HostFacts {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            cpu_features: ronde_engine::cpu_features(),
        }))),
    };
    result.unwrap_or_else(|error| crate::command::failure::submit_failure(&error))
}

/// Prints the output of a process or a rank, as frames after a position if that is requested.
fn logs(
    folder: &Path,
    host: usize,
    request: LogRequest,
    (has_frames, after): (bool, Option<LogPosition>),
) -> Result<i32, SubmitError> {
    let paths = JobPaths::new(folder);
    let process = paths.process(host);
    let mut is_over = || process.is_over();
    let out = &mut std::io::stdout();
    let shown = match has_frames {
        true => paths.send_logs(host, request.rank, after, out, &mut is_over),
        false => paths.write_logs(host, request, out, &mut is_over),
    };
    shown.map(|()| exit::DONE)
}

/// Starts a process by an order on standard input.
fn start() -> Result<i32, SubmitError> {
    let read = |cause| SubmitError::File {
        action: "read",
        path: PathBuf::from("the standard input"),
        cause,
    };
    let mut text = Vec::new();
    let mut input = std::io::stdin().take(ORDER_BYTES_MAX);
    input.read_to_end(&mut text).map_err(read)?;
    let order: StartOrder = serde_json::from_slice(&text).map_err(|error| read(error.into()))?;
    let report = order.execute(Path::new(&open::this_program()))?;
    Ok(answer(serde_json::to_string(&report)))
}

/// Prints an answer for the program that has called this one.
fn answer(text: serde_json::Result<String>) -> i32 {
    // Numbers and texts can always be written.
    let text = text.unwrap_or_default();
    print(text)
}

fn run_command(
    folder: &ProcessFolder,
    execute: fn(Vec<String>) -> i32,
) -> Result<i32, SubmitError> {
    // Signals of the terminal and of its group no longer reach this process. It fails for the leader of a process
    // group, which a program that starts the command in the foreground makes it.
    let _ = rustix::process::setsid();
    let guard = folder.enter()?;
    let command = folder.command()?;
    enter_directory(&command.directory)?;
    let watched = folder.clone();
    std::thread::spawn(move || watched.end_when_deleted());
    let code = execute(command.arguments);
    Ok(finish(guard, code))
}

/// Makes the folder of a command the current one.
pub(crate) fn enter_directory(folder: &Path) -> Result<(), SubmitError> {
    std::env::set_current_dir(folder).map_err(|cause| SubmitError::File {
        action: "use",
        path: folder.to_owned(),
        cause,
    })
}

/// Writes the exit code of the process with the error that has ended it, and returns the exit code of the command.
pub(crate) fn finish(guard: ProcessGuard, code: i32) -> i32 {
    let cause = crate::command::console::final_error().filter(|_| code != exit::DONE);
    match guard.finish(code, cause) {
        Ok(()) => code,
        Err(error) => {
            crate::command::failure::submit_failure(&error);
            if code == exit::DONE {
                exit::GAVE_UP
            } else {
                code
            }
        }
    }
}
