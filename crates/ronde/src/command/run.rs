//! `ronde run`: any program as several ranks that can find each other.

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ronde::environment;
use ronde_cluster::{
    ElasticSettings, Exit, JobSpec, LaunchSpec, LocalLauncher, LogSink, Outcome, OutputStream,
    RestartLimits, StopFlag, supervise,
};
use ronde_core::{Rank, WorldSize};
use ronde_monitor::Terminal;
use signal_hook::consts::SIGPIPE;

use super::open::{self, OpenArguments};
use super::{exit, flight, join};

/// Workers of a program at most.
const WORKERS_MAX: u32 = 4_096;

/// Arguments of `ronde run`.
#[derive(Args)]
pub(crate) struct RunArguments {
    /// Processes to start.
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    workers: u32,
    /// The others go on when a rank dies, and one that died is started again; for programs that ask
    /// for a place (`Worker::place`, `Worker::train`).
    #[arg(long)]
    elastic: bool,
    /// With `--elastic`: how often a rank that died is started again within ten minutes; 0: the
    /// others go on without it.
    #[arg(long, value_name = "N", default_value_t = 5, requires = "elastic")]
    max_restarts: u32,
    /// Folder where the ranks write what they were doing when their group fails; `ronde flight` reads
    /// it.
    #[arg(long, value_name = "FOLDER")]
    flight: Option<PathBuf>,
    /// When SIGTERM asks for the end of the job, how long its program may take to end by itself, after a
    /// last checkpoint for instance.
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = finish_limit)]
    finish_limit: f64,
    #[command(flatten)]
    open: OpenArguments,
    /// The job's folder, for `--listen`; `ronde-job` without it.
    #[arg(
        long,
        value_name = "FOLDER",
        requires = "listen",
        default_value = "ronde-job"
    )]
    job: PathBuf,
    /// The program and its arguments, best after `--`.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Seconds, up to a day.
fn finish_limit(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok();
    let seconds = seconds.filter(|seconds| (0.0..=86_400.0).contains(seconds));
    seconds.ok_or_else(|| "a number of seconds from 0 to 86400".to_owned())
}

/// Starts the ranks and stays with them; the exit code is that of the first rank that failed.
pub(crate) fn run(arguments: RunArguments, stop: &StopFlag) -> i32 {
    if let Some(listen) = arguments.open.listen {
        return run_open(&arguments, listen, stop);
    }
    let mut command = arguments.command.into_iter();
    let (Some(program), Some(world_size)) = (command.next(), WorldSize::new(arguments.workers))
    else {
        return exit::USER_ERROR;
    };
    let mut spec = LaunchSpec::new(program, command.collect(), world_size);
    spec.job = format!("run-{}", std::process::id());
    spec.finish_limit = Some(Duration::from_secs_f64(arguments.finish_limit));
    spec.environment = environment::thread_limits();
    match flight_variable(&arguments.flight) {
        Ok(variable) => spec.environment.extend(variable),
        Err(code) => return code,
    }
    let (elastic, workers) = (arguments.elastic, arguments.workers);
    spec.elastic = elastic.then(|| settings(workers, arguments.max_restarts));
    spec.watchdog = std::env::current_exe()
        .ok()
        .map(|ronde| (ronde.into_os_string(), vec!["__watchdog".into()]));
    // Lines of ranks go to two streams: a bar that is redrawn would be in their way.
    let terminal = Terminal::plain(Box::new(std::io::stderr()));
    let log: Arc<dyn LogSink> = Arc::new(Labelled { stop: stop.clone() });
    let outcome = supervise(&spec, &mut LocalLauncher::new(), &terminal, &log, stop);
    terminal.finish();
    if matches!(outcome.exit, Exit::Stopped { .. }) {
        eprintln!("stopped: all ranks have ended");
    }
    report_failure(&outcome);
    if let (Exit::Failed(_), Some(folder)) = (&outcome.exit, &arguments.flight) {
        flight::show(folder);
    }
    outcome.exit_code()
}

/// The same, with a coordinator of its own and other hosts that may join.
fn run_open(arguments: &RunArguments, listen: SocketAddr, stop: &StopFlag) -> i32 {
    let words: Option<Vec<String>> = arguments
        .command
        .iter()
        .map(|word| word.to_str().map(str::to_owned))
        .collect();
    let Some(command) = words.filter(|_| arguments.elastic) else {
        eprintln!("error: --listen needs --elastic, and a program whose arguments are Unicode");
        return exit::USER_ERROR;
    };
    let spec = JobSpec {
        job: format!("run-{}", std::process::id()),
        task: String::new(),
        settings: ElasticSettings {
            workers_max: WORKERS_MAX,
            ..settings(arguments.workers, arguments.max_restarts)
        },
        command,
        record: None,
        events: None,
    };
    let terminal = Arc::new(Terminal::plain(Box::new(std::io::stderr())));
    let says = Arc::clone(&terminal);
    let say = move |message: &str| says.line(message);
    let opened = match open::open(&arguments.job, &spec, &arguments.open, listen, say) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    terminal.line(&opened.notice);
    let places = arguments.open.here.unwrap_or(arguments.workers);
    let Some(places) = WorldSize::new(places) else {
        return exit::USER_ERROR;
    };
    let log: Arc<dyn LogSink> = Arc::new(Labelled { stop: stop.clone() });
    let mut launch = join::agent_spec(&opened.agent, places);
    match flight_variable(&arguments.flight) {
        Ok(variable) => launch.environment.extend(variable),
        Err(code) => return code,
    }
    launch.finish_limit = Some(Duration::from_secs_f64(arguments.finish_limit));
    let launcher = &mut LocalLauncher::new();
    let outcome = opened
        .agent
        .supervise(&launch, launcher, &*terminal, &log, stop);
    drop(opened.keeper);
    terminal.finish();
    if matches!(outcome.exit, Exit::Stopped { .. }) {
        eprintln!("stopped: all ranks have ended");
    }
    report_failure(&outcome);
    if let (Exit::Failed(_), Some(folder)) = (&outcome.exit, &arguments.flight) {
        flight::show(folder);
    }
    outcome.exit_code()
}

/// How the ranks are kept alive.
fn settings(workers: u32, restarts_max: u32) -> ElasticSettings {
    ElasticSettings {
        restart: RestartLimits {
            restarts_max,
            ..RestartLimits::default()
        },
        ..ElasticSettings::new(workers)
    }
}

/// Tells the ranks where to write their flight records. The error is the exit code; the user has been told.
fn flight_variable(folder: &Option<PathBuf>) -> Result<Option<(OsString, OsString)>, i32> {
    let started = folder
        .as_ref()
        .map(|folder| flight::start(folder))
        .transpose();
    match started {
        Ok(folder) => Ok(folder.map(|folder| (environment::RONDE_FLIGHT.into(), folder.into()))),
        Err(message) => {
            eprintln!("error: {message}");
            Err(exit::USER_ERROR)
        }
    }
}

/// Shows the first failure in full, if there is one.
pub(crate) fn report_failure(outcome: &Outcome) {
    if let Some(report) = outcome.report() {
        eprintln!("{report}");
    }
}

/// Output of the ranks on the streams that it came from, each line with its rank.
pub(crate) struct Labelled {
    pub(crate) stop: StopFlag,
}

impl LogSink for Labelled {
    fn line(&self, rank: Rank, stream: OutputStream, line: &str) {
        let text = format!("[rank {rank}] {line}\n");
        match stream {
            OutputStream::Stdout => {
                let written = std::io::stdout().write_all(text.as_bytes());
                // Nobody reads any more, as behind `head`: what SIGPIPE is for.
                if written.is_err() && self.stop.signal() == 0 {
                    self.stop.request(SIGPIPE);
                }
            }
            // A lost standard error leaves nobody to tell.
            OutputStream::Stderr => drop(std::io::stderr().write_all(text.as_bytes())),
        }
    }
}
