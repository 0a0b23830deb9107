//! `ronde run`: starts any program as several ranks with rendezvous variables set.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ronde::environment;
use ronde_cluster::{
    ElasticSettings, JobExit, JobSpec, LaunchSpec, LocalLauncher, LogSink, RestartLimits, StopFlag,
    supervise,
};
use ronde_core::WorldSize;
use ronde_tracking::Terminal;

use crate::command::console::{console, message};
use crate::command::exit;
use crate::command::job::join;
use crate::command::job::open;
use crate::command::job::open::OpenArguments;
use crate::command::run::flight;
use crate::command::run::rank_output::{RankPrefixLog, report_failure};

/// Maximum number of workers of a program.
const WORKERS_MAX: u32 = 4_096;

/// Arguments of `ronde run`.
#[derive(Args)]
pub(crate) struct RunArguments {
    /// Number of processes to start; default: that of all roles, or 1.
    #[arg(short = 'n', long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: Option<u32>,
    /// A role and the number of processes that have it, such as `server=2`, for each role; the processes of the first role are the first
    /// ranks. A process finds its role in `RONDE_ROLE`.
    #[arg(
        long,
        value_name = "NAME=COUNT",
        value_parser = role,
        conflicts_with = "listen"
    )]
    role: Vec<(String, u32)>,
    /// Continue with the remaining ranks when a rank dies, and restart it; for programs that use `Worker::join`,
    /// `Worker::step_loop` or `Worker::trainer`.
    #[arg(long)]
    elastic: bool,
    /// With `--elastic`: maximum restarts of a rank within ten minutes; 0 continues without it.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "elastic")]
    max_restarts: u32,
    /// Folder for the flight records that the ranks write when their group fails; see `ronde flight`.
    #[arg(long, value_name = "FOLDER")]
    flight: Option<PathBuf>,
    /// Time limit for the program to end after Ctrl-C, SIGTERM or SIGHUP, for example to save a last checkpoint.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = finish_limit)]
    finish_limit: f64,
    #[command(flatten)]
    open: OpenArguments,
    /// Folder of the job, for `--listen`.
    #[arg(
        long,
        value_name = "FOLDER",
        requires = "listen",
        default_value = "ronde-job"
    )]
    job: PathBuf,
    /// Program and arguments, preferably after `--`.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Parses a role and the number of its processes.
fn role(text: &str) -> Result<(String, u32), String> {
    let parsed = text.split_once('=').and_then(|(name, count)| {
        let count = count
            .parse()
            .ok()
            .filter(|count| (1..=WORKERS_MAX).contains(count));
        (!name.is_empty()).then_some(())?;
        Some((name.to_owned(), count?))
    });
    parsed.ok_or_else(|| {
        format!("expected a name and a number from 1 to {WORKERS_MAX}, such as server=2")
    })
}

/// Returns the number of processes.
fn processes(arguments: &RunArguments) -> Result<u32, String> {
    let roles = &arguments.role;
    let sum: u64 = roles.iter().map(|(_, count)| u64::from(*count)).sum();
    let repeated = (1..roles.len()).find(|&at| roles[..at].iter().any(|of| of.0 == roles[at].0));
    if let Some(at) = repeated {
        return Err(format!(
            "error: role `{}` is given twice\n  help: give each role once, with the number of all its processes",
            roles[at].0
        ));
    }
    match arguments.workers {
        _ if sum > u64::from(WORKERS_MAX) => Err(format!(
            "error: the roles have {sum} processes, limit {WORKERS_MAX}\n  help: lower the numbers of --role"
        )),
        None if roles.is_empty() => Ok(1),
        None => Ok(sum as u32),
        Some(workers) if roles.is_empty() || sum == u64::from(workers) => Ok(workers),
        Some(workers) => Err(format!(
            "error: the roles have {sum} processes, but --workers is {workers}\n  help: leave --workers out, or change the numbers of --role"
        )),
    }
}

/// Parses a number of seconds, up to a day.
fn finish_limit(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "expected a number of seconds from 0 to 86400".to_owned())
}

/// Starts and supervises the ranks. Returns the exit code of the first rank that failed.
pub(crate) fn run(arguments: RunArguments, stop: &StopFlag) -> i32 {
    let workers = match processes(&arguments) {
        Ok(workers) => workers,
        Err(problem) => {
            message!("{problem}");
            return exit::USER_ERROR;
        }
    };
    if let Some(listen) = arguments.open.listen {
        return run_open(&arguments, workers, listen, stop);
    }
    let mut command = arguments.command.into_iter();
    let (Some(program), Some(world_size)) = (command.next(), WorldSize::new(workers)) else {
        return exit::USER_ERROR;
    };
    let mut spec = LaunchSpec::new(program, command.collect(), world_size);
    spec.job = format!("run-{}", std::process::id());
    spec.finish_limit = Some(Duration::from_secs_f64(arguments.finish_limit));
    spec.environment = environment::thread_limits();
    spec.roles = arguments.role;
    match flight_variable(&arguments.flight) {
        Ok(variable) => spec.environment.extend(variable),
        Err(code) => return code,
    }
    if arguments.elastic {
        spec.settings = settings(workers, arguments.max_restarts);
    }
    spec.watchdog = std::env::current_exe()
        .ok()
        .map(|ronde| (ronde.into_os_string(), vec!["__watchdog".into()]));
    // The ranks write to two streams, which a redrawn progress bar would overwrite.
    let terminal = Terminal::stderr(false, console().verbosity);
    let log: Arc<dyn LogSink> = Arc::new(RankPrefixLog { stop: stop.clone() });
    let outcome = supervise(&spec, &mut LocalLauncher::new(), &terminal, &log, stop);
    terminal.finish();
    if matches!(outcome.exit, JobExit::Stopped { .. }) {
        message!("interrupted: all ranks have ended");
    }
    report_failure(&outcome);
    if let (JobExit::Failed(_), Some(folder)) = (&outcome.exit, &arguments.flight) {
        flight::show(folder);
    }
    outcome.exit_code()
}

/// Runs an open job: with a separate coordinator, and other hosts that can join.
fn run_open(arguments: &RunArguments, workers: u32, listen: SocketAddr, stop: &StopFlag) -> i32 {
    let words: Option<Vec<String>> = arguments
        .command
        .iter()
        .map(|word| word.to_str().map(str::to_owned))
        .collect();
    let Some(command) = words.filter(|_| arguments.elastic) else {
        message!(
            "error: --listen requires --elastic and a program whose arguments are valid UTF-8"
        );
        return exit::USER_ERROR;
    };
    let spec = JobSpec {
        job: format!("run-{}", std::process::id()),
        task: String::new(),
        settings: ElasticSettings {
            workers_max: WORKERS_MAX,
            ..settings(workers, arguments.max_restarts)
        },
        command,
        record: None,
        events: None,
    };
    let terminal = Arc::new(Terminal::stderr(false, console().verbosity));
    let printer = Arc::clone(&terminal);
    let notify = move |message: &str| printer.line(message);
    let opened = match open::open(&arguments.job, &spec, &arguments.open, listen, notify) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    terminal.line(&opened.notice);
    let slots = arguments.open.here.unwrap_or(workers);
    let Some(slots) = WorldSize::new(slots) else {
        return exit::USER_ERROR;
    };
    let log: Arc<dyn LogSink> = Arc::new(RankPrefixLog { stop: stop.clone() });
    let mut launch = join::agent_spec(&opened.agent, slots);
    match flight_variable(&arguments.flight) {
        Ok(variable) => launch.environment.extend(variable),
        Err(code) => return code,
    }
    launch.finish_limit = Some(Duration::from_secs_f64(arguments.finish_limit));
    let launcher = &mut LocalLauncher::new();
    let outcome = opened
        .agent
        .supervise(&launch, launcher, &*terminal, &log, stop);
    drop(opened.coordinator);
    terminal.finish();
    if matches!(outcome.exit, JobExit::Stopped { .. }) {
        message!("interrupted: all ranks have ended");
    }
    report_failure(&outcome);
    if let (JobExit::Failed(_), Some(folder)) = (&outcome.exit, &arguments.flight) {
        flight::show(folder);
    }
    outcome.exit_code()
}

/// Returns the settings of an elastic job.
fn settings(workers: u32, restarts_max: u32) -> ElasticSettings {
    ElasticSettings {
        restart: RestartLimits {
            restarts_max,
            ..RestartLimits::default()
        },
        ..ElasticSettings::new(workers)
    }
}

/// Returns the variable with the folder for flight records. The error is the exit code; a message has been printed.
fn flight_variable(folder: &Option<PathBuf>) -> Result<Option<(OsString, OsString)>, i32> {
    let started = folder
        .as_ref()
        .map(|folder| flight::start(folder))
        .transpose();
    match started {
        Ok(folder) => Ok(folder.map(|folder| (environment::RONDE_FLIGHT.into(), folder.into()))),
        Err(message) => {
            message!("error: {message}");
            Err(exit::USER_ERROR)
        }
    }
}
