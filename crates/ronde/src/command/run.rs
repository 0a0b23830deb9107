//! `ronde run`: any program as several ranks that can find each other.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use ronde::environment;
use ronde_cluster::{
    ElasticSettings, Exit, LaunchSpec, LocalLauncher, LogSink, Outcome, OutputStream,
    RestartLimits, StopFlag, supervise,
};
use ronde_core::{Rank, WorldSize};
use ronde_monitor::Terminal;
use signal_hook::consts::SIGPIPE;

use super::{exit, flight};

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
    /// The program and its arguments, best after `--`.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Starts the ranks and stays with them; the exit code is that of the first rank that failed.
pub(crate) fn run(arguments: RunArguments, stop: &StopFlag) -> i32 {
    let mut command = arguments.command.into_iter();
    let (Some(program), Some(world_size)) = (command.next(), WorldSize::new(arguments.workers))
    else {
        return exit::USER_ERROR;
    };
    let mut spec = LaunchSpec::new(program, command.collect(), world_size);
    spec.job = format!("run-{}", std::process::id());
    spec.environment = environment::thread_limits();
    if let Some(folder) = &arguments.flight {
        match flight::start(folder) {
            Ok(folder) => spec
                .environment
                .push((environment::RONDE_FLIGHT.into(), folder.into())),
            Err(message) => {
                eprintln!("error: {message}");
                return exit::USER_ERROR;
            }
        }
    }
    spec.elastic = arguments.elastic.then(|| ElasticSettings {
        restart: RestartLimits {
            restarts_max: arguments.max_restarts,
            ..RestartLimits::default()
        },
        ..ElasticSettings::new(arguments.workers)
    });
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

/// Shows the first failure in full, if there is one.
pub(crate) fn report_failure(outcome: &Outcome) {
    if let Some(report) = outcome.report() {
        eprintln!("{report}");
    }
}

/// Output of the ranks on the streams that it came from, each line with its rank.
struct Labelled {
    stop: StopFlag,
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
