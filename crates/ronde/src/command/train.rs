//! `ronde train`: trains a model from a run file with supervised workers.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ronde::comm::FlightRecord;
use ronde_cluster::{
    ElasticSettings, JobExit, JobOutcome, JobSpec, LaunchSpec, LocalLauncher, LogSink,
    RestartLimits, StopFlag, SuccessionPolicy, supervise,
};
use ronde_core::{Tracker, WorldSize};
use ronde_monitor::{Fanout, JsonLines};
use ronde_train::config::{
    DEFAULT_RUN_FILE, Document, Override, SuccessionKind, ValueOrigin, check,
};
use ronde_train::flight_records::FlightRecordWriter;
use ronde_train::{Plan, RunConfig, TrainError, WorkerTask};

use super::capacity::{check_disk, check_memory};
use super::job::JOB_FOLDER;
use super::open::{self, OpenArguments, OpenJob};
use super::output::OutputFolder;
use super::progress_output::ProgressOutput;
use super::resume::{self, ResumeSource};
use super::run::report_failure;
use super::run_position::RunPosition;
use super::{data_progress, exit, flight, join};

/// Arguments of `ronde train`.
#[derive(Args)]
pub(crate) struct TrainArguments {
    /// Run file [default: the embedded example].
    file: Option<PathBuf>,
    /// Number of worker processes; the trained bits do not depend on it.
    #[arg(short = 'n', long, value_name = "N")]
    workers: Option<u32>,
    /// Override a value of the run file, such as `--set train.epochs=3`; can be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Resume from the last good checkpoint of a run, given by its folder or the folder or address of its
    /// checkpoints [default: those of the run file]; any number of workers gives the same bits.
    #[arg(long, value_name = "RUN", num_args = 0..=1)]
    resume: Option<Option<String>>,
    /// Write events to standard output, one JSON object per line, instead of progress.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArguments,
}

/// Time limit of the workers' rendezvous, which precedes opening the engine and the data.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a worker's end after SIGTERM.
const STOP_GRACE: Duration = Duration::from_millis(1200);
/// Name of the event file in the output folder.
const EVENT_FILE: &str = "events.jsonl";

/// A run that is ready to start.
struct PreparedRun {
    config: RunConfig,
    world_size: WorldSize,
    output: OutputFolder,
    task: String,
    notices: Vec<String>,
    position: RunPosition,
}

/// The reason that a run does not start.
pub(super) enum StartError {
    /// An error that the user has to resolve.
    Invalid(String),
    /// The run is finished already.
    Finished(String),
}

impl From<String> for StartError {
    fn from(message: String) -> Self {
        Self::Invalid(message)
    }
}

pub(crate) fn train(arguments: TrainArguments, stop: &StopFlag) -> i32 {
    let prepared = match prepare(&arguments) {
        Ok(prepared) => prepared,
        Err(StartError::Finished(message)) => {
            eprintln!("{message}");
            return exit::DONE;
        }
        Err(StartError::Invalid(message)) => {
            eprintln!("{message}");
            return exit::USER_ERROR;
        }
    };
    let code = match arguments.open.listen {
        Some(listen) => supervise_open_run(&prepared, &arguments, listen, stop),
        None => supervise_run(&prepared, arguments.json, stop),
    };
    prepared.output.remove_temporary_files();
    code
}

/// Checks everything before anything is started. The error is a complete message.
fn prepare(arguments: &TrainArguments) -> Result<PreparedRun, StartError> {
    let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let overrides = overrides(arguments);
    let from = ResumeSource::find(
        arguments.resume.as_ref(),
        arguments.file.as_deref(),
        &overrides,
    )?;
    let (text, name, base) = run_file(arguments, from.as_ref())?;
    let (mut config, document) =
        Document::load(&text, &name, &ronde::environment::all(), &overrides)
            .map_err(|error| error.render(colour))?;
    if let Some(resumed) = &from {
        resumed.redirect(&mut config);
    }
    if let Some(error) = document.refuse(check::files(&config.data, &base, &|path| path.is_file()))
    {
        return Err(error.render(colour).into());
    }
    let failed = |error: TrainError| format!("error: {error}");
    // The same path as in the workers, so that they find the indexes built here.
    let base = base.canonicalize().unwrap_or(base);
    let progress = data_progress::show(arguments.json);
    let opening = ronde::environment::surroundings().opening(&base, config.run.seed, progress);
    let split = ronde_data::open(&config.data, &opening).map_err(|e| failed(e.into()))?;
    let world_size = WorldSize::new(config.workers.count)
        .ok_or_else(|| "error: invalid `workers.count`: expected at least 1 worker".to_owned())?;
    let plan = Plan::resolve(&config, world_size, &*split.train).map_err(failed)?;
    let size = config
        .model
        .size(split.train.sample_shape(), split.train.classes())
        .map_err(|error| failed(TrainError::Model(error)))?;
    check_memory(&plan, &size, &*split.train, world_size).map_err(failed)?;
    let folder = config.run.output_folder();
    let output = check_disk(&folder, size.parameters)
        .and_then(|()| OutputFolder::lock(&folder))
        .and_then(|output| {
            FlightRecord::remove_all(&output.path().join(FlightRecordWriter::FOLDER))
                .map_err(|error| format!("cannot remove old flight records: {error}"))?;
            Ok(output)
        })
        .map_err(|message| format!("error: {message}"))?;
    let position = resume::check(&mut config, &plan, &base, output.path(), from.is_some())?;
    let mut task = WorkerTask::new(&config, base, output.path().to_owned()).map_err(failed)?;
    task.resumes = from.is_some();
    let task = task.encode();
    if !arguments.json {
        show_run_file(&text, &name, arguments.file.is_none() && from.is_none());
        show_changes(&document);
    }
    let mut notices = vec![format!(
        "engine: {}, one thread per worker (its sums depend on the number of threads), {}",
        ronde_engine::engine_name(),
        ronde_engine::cpu_features()
    )];
    notices.extend(config.train.learning_rate_rule());
    notices.extend(config.train.precision_note());
    notices.extend((!document.notices().is_empty()).then(|| document.render_notices(colour)));
    Ok(PreparedRun {
        config,
        world_size,
        output,
        task,
        notices,
        position,
    })
}

/// Returns the text, name and folder of the run file of a new or resumed run.
fn run_file(
    arguments: &TrainArguments,
    from: Option<&ResumeSource>,
) -> Result<(String, String, PathBuf), String> {
    match from {
        Some(ResumeSource {
            file: Some(file), ..
        }) => read_run_file(Some(file)),
        Some(resumed) if arguments.file.is_none() && resumed.newest.is_some() => resumed.run_file(),
        _ => read_run_file(arguments.file.as_deref()),
    }
}

/// Reads a run file, or the embedded example, and returns its text, name and folder.
pub(super) fn read_run_file(file: Option<&Path>) -> Result<(String, String, PathBuf), String> {
    let Some(path) = file else {
        return Ok((
            DEFAULT_RUN_FILE.to_owned(),
            "embedded example".to_owned(),
            PathBuf::from("."),
        ));
    };
    let text = std::fs::read_to_string(path).map_err(|error| {
        let shown = path.display();
        let hint = match error.kind() {
            ErrorKind::NotFound => format!("write one with `ronde init {shown}`"),
            _ => "a run file is a TOML text; write one with `ronde init`".to_owned(),
        };
        format!("error: cannot read run file {shown}: {error}\n  help: {hint}")
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

/// Prints the values that the environment and the arguments override.
fn show_changes(document: &Document) {
    for (path, origin) in document.origins() {
        match origin {
            ValueOrigin::Set { text } => eprintln!("override: {text}"),
            ValueOrigin::Environment { name } => eprintln!("override: {path}, from {name}"),
            _ => {}
        }
    }
}

fn supervise_run(prepared: &PreparedRun, json: bool, stop: &StopFlag) -> i32 {
    let output = Arc::new(ProgressOutput::new(json));
    let events = match JsonLines::create(&prepared.output.path().join(EVENT_FILE)) {
        Ok(events) => Some(Arc::new(events)),
        Err(error) => {
            eprintln!("error: {error}\n  help: choose another folder: --set run.output=FOLDER");
            return exit::USER_ERROR;
        }
    };
    let position = Arc::new(prepared.position.clone());
    let mut sinks = vec![output.tracker(), position.clone() as Arc<dyn Tracker>];
    sinks.extend(events.clone().map(|events| events as Arc<dyn Tracker>));
    for notice in &prepared.notices {
        output.notice(notice);
    }
    let log: Arc<dyn LogSink> = output.clone();
    let outcome = supervise(
        &launch_spec(prepared),
        &mut LocalLauncher::new(),
        &Fanout(sinks),
        &log,
        stop,
    );
    let shown = output.finish();
    if let Some(events) = events {
        events.finish();
        if let Some(problem) = events.problem() {
            eprintln!("warning: {problem}");
        }
    }
    conclude(prepared, &outcome, shown)
}

/// Prints how the run ended and returns the exit code. `shown` is the result of writing all events.
fn conclude(prepared: &PreparedRun, outcome: &JobOutcome, shown: Result<(), String>) -> i32 {
    let code = exit_code(outcome);
    let folder = prepared.output.path();
    if code == exit::GAVE_UP {
        flight::show(folder);
    } else {
        // After any other end the records only show which rank left first.
        let _gone = std::fs::remove_dir_all(folder.join(FlightRecordWriter::FOLDER));
    }
    match outcome.exit {
        JobExit::Done => {}
        JobExit::Stopped { .. } => eprintln!("{}", prepared.position.interrupted()),
        JobExit::Failed(_) => {
            if let Some(message) = prepared.position.failed() {
                eprintln!("{message}");
            }
        }
    }
    match (code, shown) {
        (code, Ok(())) => code,
        (code, Err(problem)) => {
            eprintln!("error: cannot write standard output: {problem}");
            if code == exit::DONE {
                exit::GAVE_UP
            } else {
                code
            }
        }
    }
}

/// Supervises the workers of an open job: with a separate coordinator, and other hosts that can join.
fn supervise_open_run(
    prepared: &PreparedRun,
    arguments: &TrainArguments,
    listen: SocketAddr,
    stop: &StopFlag,
) -> i32 {
    let Some(settings) = elastic(&prepared.config) else {
        eprintln!("error: --listen requires an elastic run\n  help: set elastic.enabled = true");
        return exit::USER_ERROR;
    };
    let (elastic, shards) = (
        &prepared.config.elastic,
        prepared.config.workers.logical_shards,
    );
    let most = match elastic.max_workers {
        0 => shards,
        most => most,
    };
    let spec = JobSpec {
        job: job_name(prepared),
        task: prepared.task.clone(),
        settings: ElasticSettings {
            workers_max: most.max(settings.workers),
            ..settings
        },
        command: Vec::new(),
        record: None,
        events: Some(prepared.output.path().join(EVENT_FILE)),
    };
    let output = Arc::new(ProgressOutput::new(arguments.json));
    for notice in &prepared.notices {
        output.notice(notice);
    }
    let path = prepared.output.path().join(JOB_FOLDER);
    let notices = Arc::clone(&output);
    let notify = move |message: &str| notices.notice(message);
    let opened = match open::open(&path, &spec, &arguments.open, listen, notify) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    let OpenJob {
        agent,
        coordinator,
        notice,
    } = opened;
    output.notice(&notice);
    let slots = arguments.open.here.and_then(WorldSize::new);
    let launch = LaunchSpec {
        stop_grace: STOP_GRACE,
        finish_limit: finish_limit(&prepared.config),
        ..join::agent_spec(&agent, slots.unwrap_or(prepared.world_size))
    };
    let log: Arc<dyn LogSink> = output.clone();
    let position = Arc::new(prepared.position.clone());
    let sinks = Fanout(vec![output.tracker(), position as Arc<dyn Tracker>]);
    let outcome = agent.supervise(&launch, &mut LocalLauncher::new(), &sinks, &log, stop);
    drop(coordinator);
    conclude(prepared, &outcome, output.finish())
}

fn job_name(prepared: &PreparedRun) -> String {
    format!("{}-{}", prepared.config.run.name, std::process::id())
}

fn launch_spec(prepared: &PreparedRun) -> LaunchSpec {
    let program = open::this_program();
    let mut spec = LaunchSpec::new(
        program.clone(),
        vec!["__worker".into()],
        prepared.world_size,
    );
    spec.job = job_name(prepared);
    spec.task.clone_from(&prepared.task);
    spec.environment = open::own_worker();
    spec.rendezvous_required = true;
    spec.rendezvous_timeout = RENDEZVOUS_TIMEOUT;
    spec.stop_grace = STOP_GRACE;
    spec.watchdog = Some((program, vec!["__watchdog".into()]));
    spec.finish_limit = finish_limit(&prepared.config);
    spec.elastic = elastic(&prepared.config);
    spec
}

/// Returns the time limit for saving a last checkpoint when the job is requested to end.
fn finish_limit(config: &RunConfig) -> Option<Duration> {
    let limit = Duration::try_from_secs_f64(config.checkpoint.finish_limit_s).ok();
    limit.filter(|limit| !limit.is_zero())
}

/// Returns the settings of an elastic run.
fn elastic(config: &RunConfig) -> Option<ElasticSettings> {
    let (elastic, workers) = (&config.elastic, config.workers.count);
    let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
    let silence = seconds(elastic.silence_s);
    let lease = seconds(elastic.lease_s);
    elastic.enabled.then(|| ElasticSettings {
        workers_min: elastic.min_workers,
        heartbeat: silence / 2,
        silence,
        lease,
        store_timeout: lease / 3,
        rendezvous: RENDEZVOUS_TIMEOUT,
        succession: match elastic.succession {
            SuccessionKind::Lease => SuccessionPolicy::Lease,
            SuccessionKind::Majority => SuccessionPolicy::Majority,
        },
        wait_limit: seconds(elastic.wait_s),
        restart: RestartLimits {
            restarts_max: elastic.max_restarts,
            window: seconds(elastic.restart_window_s),
            ..RestartLimits::default()
        },
        ..ElasticSettings::new(workers)
    })
}

/// Prints the failure, if any, and returns the exit code.
fn exit_code(outcome: &JobOutcome) -> i32 {
    match outcome.exit {
        JobExit::Done => exit::DONE,
        JobExit::Stopped { .. } => outcome.exit_code(),
        JobExit::Failed(_) => {
            report_failure(outcome);
            exit::of_failure(outcome)
        }
    }
}

#[cfg(test)]
mod tests {
    use ronde_cluster::{FailureCause, WorkerFailure};
    use ronde_core::{Event, Rank};

    use super::*;

    #[test]
    fn the_exit_code_depends_on_the_cause_of_the_failure() {
        let reported = |user_error| {
            FailureCause::Reported(Event::WorkerFailed {
                rank: Rank(0),
                message: "no".to_owned(),
                last_step: None,
                secondary: false,
                user_error,
            })
        };
        for (cause, code) in [
            (reported(true), exit::USER_ERROR),
            (reported(false), exit::GAVE_UP),
            (FailureCause::ExitCode(101), exit::BUG),
            (FailureCause::ExitCode(1), exit::GAVE_UP),
            (FailureCause::Signal(9, "SIGKILL"), exit::GAVE_UP),
        ] {
            let failure = WorkerFailure {
                rank: Rank(0),
                host: "here".to_owned(),
                pid: 1,
                cause,
                last_step: None,
                last_lines: Vec::new(),
            };
            let outcome = JobOutcome {
                exit: JobExit::Failed(0),
                failures: vec![failure],
                unresponsive: Vec::new(),
            };
            assert_eq!(exit_code(&outcome), code, "{outcome:?}");
        }
    }
}
