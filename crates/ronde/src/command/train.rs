//! `ronde train`: from a run file to supervised workers and a model.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ronde::host;
use ronde_cluster::{
    Cause, Exit, LaunchSpec, LocalLauncher, LogSink, Outcome, OutputStream, StopFlag, supervise,
};
use ronde_core::{Event, Rank, Tracker, WorldSize};
use ronde_monitor::{Fanout, JsonLines, Terminal};
use ronde_train::config::{DEFAULT_RUN_FILE, Document, Override, check};
use ronde_train::memory::MemoryEstimate;
use ronde_train::{Plan, RunConfig, Task, TrainError};

use super::exit;
use super::output::OutputFolder;
use super::run::report_failure;

/// Arguments of `ronde train`.
#[derive(Args)]
pub(crate) struct TrainArguments {
    /// Run file; without one the embedded example is trained.
    file: Option<PathBuf>,
    /// Worker processes; the trained bits do not depend on it.
    #[arg(short = 'n', long, value_name = "N")]
    workers: Option<u32>,
    /// Change a value of the run file, as in `--set train.epochs=3`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Write events to standard output, one JSON object a line, instead of progress.
    #[arg(long)]
    json: bool,
}

/// How long workers may take to meet; the engine and the data are opened after that.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a worker may take to end when it is told to.
const STOP_GRACE: Duration = Duration::from_millis(1200);
/// Output of a worker's last lines that is shown when it failed.
const EVENT_FILE: &str = "events.jsonl";

/// A run that is ready to start.
struct Prepared {
    config: RunConfig,
    world_size: WorldSize,
    output: OutputFolder,
    task: String,
    notices: Vec<String>,
}

pub(crate) fn train(arguments: TrainArguments, stop: &StopFlag) -> i32 {
    let prepared = match prepare(&arguments) {
        Ok(prepared) => prepared,
        Err(message) => {
            eprintln!("{message}");
            return exit::USER_ERROR;
        }
    };
    let code = supervise_run(&prepared, arguments.json, stop);
    prepared.output.remove_temporary_files();
    code
}

/// Everything that can be wrong before anything is started. The error is a complete message.
fn prepare(arguments: &TrainArguments) -> Result<Prepared, String> {
    let (text, name, base) = read_run_file(arguments.file.as_deref())?;
    let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let (config, document) = Document::load(
        &text,
        &name,
        &ronde::environment::all(),
        &overrides(arguments),
    )
    .map_err(|error| error.render(colour))?;
    if let Some(error) = document.refuse(check::files(&config.data, &base, &|path| path.is_file()))
    {
        return Err(error.render(colour));
    }
    if !arguments.json {
        show_run_file(&text, &name, arguments.file.is_none());
    }
    let mut notices = Vec::new();
    if !document.notices().is_empty() {
        notices.push(document.render_notices(colour));
    }
    let failed = |error: TrainError| format!("error: {error}");
    let split =
        ronde_data::open(&config.data, &base, config.run.seed).map_err(|e| failed(e.into()))?;
    let world_size = WorldSize::new(config.workers.count).ok_or("error: a run needs a worker")?;
    let plan = Plan::resolve(&config, world_size, &*split.train).map_err(failed)?;
    check_memory(
        &plan,
        world_size,
        split.train.sample_shape(),
        split.train.classes(),
    )
    .map_err(failed)?;
    notices.extend(plan.notices());
    let output = OutputFolder::take(&config.run.output_folder())
        .map_err(|message| format!("error: {message}"))?;
    let base = base.canonicalize().unwrap_or(base);
    let task = Task::new(&config, base, output.path().to_owned())
        .map_err(failed)?
        .encode();
    Ok(Prepared {
        config,
        world_size,
        output,
        task,
        notices,
    })
}

/// Text, name and folder of the run file.
fn read_run_file(file: Option<&Path>) -> Result<(String, String, PathBuf), String> {
    let Some(path) = file else {
        return Ok((
            DEFAULT_RUN_FILE.to_owned(),
            "embedded example".to_owned(),
            PathBuf::from("."),
        ));
    };
    let text = std::fs::read_to_string(path).map_err(|error| {
        format!(
            "error: cannot read the run file {}: {error}\n  hint: `ronde init {}` writes one to start from",
            path.display(),
            path.display()
        )
    })?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).to_owned();
    Ok((text, path.display().to_string(), folder))
}

fn overrides(arguments: &TrainArguments) -> Vec<Override> {
    let sets = arguments
        .sets
        .iter()
        .map(|text| Override::Set(text.clone()));
    let workers = arguments.workers.map(|workers| Override::Flag {
        name: "--workers".to_owned(),
        path: "workers.count".to_owned(),
        value: workers.to_string(),
    });
    sets.chain(workers).collect()
}

fn show_run_file(text: &str, name: &str, embedded: bool) {
    if embedded {
        eprintln!(
            "no run file given: training the embedded example (`ronde init` writes it to a file)"
        );
        for line in text.lines() {
            eprintln!("  | {line}");
        }
    } else {
        eprintln!("run file: {name}");
    }
}

/// Refuses a model that does not fit, before anything is allocated.
fn check_memory(
    plan: &Plan,
    world_size: WorldSize,
    input_shape: &[usize],
    classes: u32,
) -> Result<(), TrainError> {
    let Some(available_bytes) = host::available_memory_bytes() else {
        return Ok(());
    };
    let config = &plan.config;
    let size = config
        .model
        .size(input_shape, classes)
        .map_err(TrainError::Model)?;
    let estimate = MemoryEstimate::data_parallel(
        size.parameters,
        size.kept_floats_per_sample,
        &config.optimizer,
        config.train.global_batch_size,
        &plan.shards,
    );
    let local_workers = world_size.get();
    if estimate.total().saturating_mul(local_workers.into()) > available_bytes {
        return Err(TrainError::DoesNotFit {
            estimate,
            available_bytes,
            local_workers,
        });
    }
    Ok(())
}

/// Where events go besides the event file.
enum Front {
    Person(Arc<Terminal>),
    Program(Arc<JsonLines>),
}

impl Front {
    fn new(json: bool) -> Self {
        if json {
            Self::Program(Arc::new(JsonLines::new(Box::new(std::io::stdout()))))
        } else {
            Self::Person(Arc::new(Terminal::stderr()))
        }
    }

    fn tracker(&self) -> Arc<dyn Tracker> {
        match self {
            Self::Person(terminal) => terminal.clone(),
            Self::Program(lines) => lines.clone(),
        }
    }

    fn notice(&self, message: &str) {
        match self {
            Self::Person(terminal) => terminal.line(message),
            Self::Program(lines) => lines.record(Event::Notice {
                rank: None,
                message: message.to_owned(),
            }),
        }
    }

    fn finish(&self) {
        match self {
            Self::Person(terminal) => terminal.finish(),
            Self::Program(lines) => {
                lines.finish();
            }
        }
    }
}

impl LogSink for Front {
    fn line(&self, rank: Rank, _stream: OutputStream, line: &str) {
        match self {
            Self::Person(terminal) => terminal.rank_line(rank, line),
            Self::Program(_) => eprintln!("[rank {rank}] {line}"),
        }
    }
}

fn supervise_run(prepared: &Prepared, json: bool, stop: &StopFlag) -> i32 {
    let front = Arc::new(Front::new(json));
    let events = match JsonLines::create(&prepared.output.path().join(EVENT_FILE)) {
        Ok(events) => Some(Arc::new(events)),
        Err(error) => {
            eprintln!("error: {error}\n  hint: choose another folder: --set run.output=FOLDER");
            return exit::USER_ERROR;
        }
    };
    let mut sinks = vec![front.tracker()];
    sinks.extend(events.clone().map(|events| events as Arc<dyn Tracker>));
    for notice in &prepared.notices {
        front.notice(notice);
    }
    let log: Arc<dyn LogSink> = front.clone();
    let outcome = supervise(
        &launch_spec(prepared),
        &mut LocalLauncher::new(),
        &Fanout(sinks),
        &log,
        stop,
    );
    front.finish();
    if let Some(events) = events {
        events.finish();
        if let Some(problem) = events.problem() {
            eprintln!("warning: {problem}");
        }
    }
    exit_code(&outcome)
}

fn launch_spec(prepared: &Prepared) -> LaunchSpec {
    let program =
        std::env::current_exe().map_or_else(|_| OsString::from("ronde"), PathBuf::into_os_string);
    let mut spec = LaunchSpec::new(
        program.clone(),
        vec!["__worker".into()],
        prepared.world_size,
    );
    spec.job = format!("{}-{}", prepared.config.run.name, std::process::id());
    spec.task.clone_from(&prepared.task);
    // The engine's sums depend on its thread count: one thread a worker, whatever it was built with.
    spec.environment = [("RAYON_NUM_THREADS", "1"), ("OMP_NUM_THREADS", "1")]
        .map(|(name, value)| (name.into(), value.into()))
        .to_vec();
    spec.rendezvous_required = true;
    spec.rendezvous_timeout = RENDEZVOUS_TIMEOUT;
    spec.stop_grace = STOP_GRACE;
    spec.watchdog = Some((program, vec!["__watchdog".into()]));
    spec
}

/// Tells what went wrong, if anything, and how the command ends.
fn exit_code(outcome: &Outcome) -> i32 {
    match outcome.exit {
        Exit::Done => exit::DONE,
        Exit::Stopped { .. } => {
            eprintln!("stopped: all workers have ended; no model was written");
            outcome.exit_code()
        }
        Exit::Failed(_) => {
            report_failure(outcome);
            let user_error = outcome.first_failure().is_some_and(|failure| {
                matches!(
                    &failure.cause,
                    Cause::Reported(Event::WorkerFailed {
                        user_error: true,
                        ..
                    })
                )
            });
            if user_error {
                exit::USER_ERROR
            } else {
                exit::GAVE_UP
            }
        }
    }
}
