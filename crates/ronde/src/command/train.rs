//! `ronde train`: from a run file to supervised workers and a model.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ronde::comm::FlightRecord;
use ronde_cluster::{
    ElasticSettings, Exit, JobSpec, LaunchSpec, LocalLauncher, LogSink, Outcome, RestartLimits,
    StopFlag, Succession, supervise,
};
use ronde_core::{Tracker, WorldSize};
use ronde_monitor::{Fanout, JsonLines};
use ronde_train::config::{DEFAULT_RUN_FILE, Document, Origin, Override, SuccessionKind, check};
use ronde_train::flights::Flights;
use ronde_train::{Plan, RunConfig, Task, TrainError};

use super::front::Front;
use super::job::JOB_FOLDER;
use super::last::LastCheckpoint;
use super::open::{self, OpenArguments, Opened};
use super::output::OutputFolder;
use super::resume::{self, Resumed};
use super::room::{check_disk, check_memory};
use super::run::report_failure;
use super::{data_news, exit, flight, join};

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
    /// Go on from the last good checkpoint of a run: its folder, or the folder or address of its
    /// checkpoints; without a value that of the run file. On any number of workers, with the same bits.
    #[arg(long, value_name = "RUN", num_args = 0..=1)]
    resume: Option<Option<String>>,
    /// Write events to standard output, one JSON object a line, instead of progress.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArguments,
}

/// How long workers may take to meet; the engine and the data are opened after that.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a worker may take to end when it is told to.
const STOP_GRACE: Duration = Duration::from_millis(1200);
/// What is kept in the output folder besides the model.
const EVENT_FILE: &str = "events.jsonl";

/// A run that is ready to start.
struct Prepared {
    config: RunConfig,
    world_size: WorldSize,
    output: OutputFolder,
    task: String,
    notices: Vec<String>,
    checkpoints: LastCheckpoint,
}

/// Why a run does not start.
pub(super) enum Refused {
    /// The user has to change something.
    Because(String),
    /// There is nothing left to do.
    Finished(String),
}

impl From<String> for Refused {
    fn from(message: String) -> Self {
        Self::Because(message)
    }
}

pub(crate) fn train(arguments: TrainArguments, stop: &StopFlag) -> i32 {
    let prepared = match prepare(&arguments) {
        Ok(prepared) => prepared,
        Err(Refused::Finished(message)) => {
            eprintln!("{message}");
            return exit::DONE;
        }
        Err(Refused::Because(message)) => {
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

/// Everything that can be wrong before anything is started. The error is a complete message.
fn prepare(arguments: &TrainArguments) -> Result<Prepared, Refused> {
    let colour = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let overrides = overrides(arguments);
    let from = Resumed::find(
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
    // As the workers have it, so that indexes are theirs, too.
    let base = base.canonicalize().unwrap_or(base);
    let tell = data_news::show(arguments.json);
    let opening = ronde::environment::surroundings().opening(&base, config.run.seed, tell);
    let split = ronde_data::open(&config.data, &opening).map_err(|e| failed(e.into()))?;
    let world_size = WorldSize::new(config.workers.count)
        .ok_or_else(|| "error: a run needs a worker".to_owned())?;
    let plan = Plan::resolve(&config, world_size, &*split.train).map_err(failed)?;
    let size = config
        .model
        .size(split.train.sample_shape(), split.train.classes())
        .map_err(|error| failed(TrainError::Model(error)))?;
    check_memory(&plan, &size, &*split.train, world_size).map_err(failed)?;
    let folder = config.run.output_folder();
    let output = check_disk(&folder, size.parameters)
        .and_then(|()| OutputFolder::take(&folder))
        .and_then(|output| {
            FlightRecord::remove_all(&output.path().join(Flights::FOLDER))
                .map_err(|error| format!("old flight records cannot be removed: {error}"))?;
            Ok(output)
        })
        .map_err(|message| format!("error: {message}"))?;
    let checkpoints = resume::check(&mut config, &plan, &base, output.path(), from.is_some())?;
    let mut task = Task::new(&config, base, output.path().to_owned()).map_err(failed)?;
    task.resumes = from.is_some();
    let task = task.encode();
    if !arguments.json {
        show_run_file(&text, &name, arguments.file.is_none() && from.is_none());
        show_changes(&document);
    }
    let mut notices = vec![format!(
        "engine: {} on one thread a worker (pinned: its sums depend on the thread count), {}",
        ronde_engine::engine_name(),
        ronde_engine::cpu_features()
    )];
    notices.extend(config.train.learning_rate_rule());
    notices.extend(config.train.precision_note());
    notices.extend((!document.notices().is_empty()).then(|| document.render_notices(colour)));
    Ok(Prepared {
        config,
        world_size,
        output,
        task,
        notices,
        checkpoints,
    })
}

/// The run file of a run that starts or goes on: its text, name and folder.
fn run_file(
    arguments: &TrainArguments,
    from: Option<&Resumed>,
) -> Result<(String, String, PathBuf), String> {
    match from {
        Some(Resumed {
            file: Some(file), ..
        }) => read_run_file(Some(file)),
        Some(resumed) if arguments.file.is_none() && resumed.newest.is_some() => resumed.run_file(),
        _ => read_run_file(arguments.file.as_deref()),
    }
}

/// Text, name and folder of the run file.
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
            ErrorKind::NotFound => format!("`ronde init {shown}` writes one to start from"),
            _ => "a run file is a text in TOML; `ronde init` writes one to start from".to_owned(),
        };
        format!("error: cannot read the run file {shown}: {error}\n  hint: {hint}")
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

/// What the environment and the arguments say in place of the run file.
fn show_changes(document: &Document) {
    for (path, origin) in document.origins() {
        match origin {
            Origin::Set { text } => eprintln!("changed: {text}"),
            Origin::Environment { name } => eprintln!("changed: {path}, by {name}"),
            _ => {}
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
    let last = Arc::new(prepared.checkpoints.clone());
    let mut sinks = vec![front.tracker(), last.clone() as Arc<dyn Tracker>];
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
    let shown = front.finish();
    if let Some(events) = events {
        events.finish();
        if let Some(problem) = events.problem() {
            eprintln!("warning: {problem}");
        }
    }
    conclude(prepared, &outcome, shown)
}

/// How the command ends. `shown`: whether all events could be shown.
fn conclude(prepared: &Prepared, outcome: &Outcome, shown: Result<(), String>) -> i32 {
    let code = exit_code(outcome);
    let folder = prepared.output.path();
    if code == exit::GAVE_UP {
        flight::show(folder);
    } else {
        // Groups of a run that ended otherwise tell only who left them first.
        let _gone = std::fs::remove_dir_all(folder.join(Flights::FOLDER));
    }
    if code != exit::DONE {
        prepared.checkpoints.tell();
    }
    match (code, shown) {
        (code, Ok(())) => code,
        (code, Err(problem)) => {
            eprintln!("error: standard output: {problem}");
            if code == exit::DONE {
                exit::GAVE_UP
            } else {
                code
            }
        }
    }
}

/// The same, with a coordinator of its own and other hosts that may join.
fn supervise_open_run(
    prepared: &Prepared,
    arguments: &TrainArguments,
    listen: SocketAddr,
    stop: &StopFlag,
) -> i32 {
    let Some(settings) = elastic(&prepared.config) else {
        eprintln!(
            "error: --listen is for a run that goes on when workers die\n  hint: elastic.enabled = true"
        );
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
    let front = Arc::new(Front::new(arguments.json));
    for notice in &prepared.notices {
        front.notice(notice);
    }
    let path = prepared.output.path().join(JOB_FOLDER);
    let says = Arc::clone(&front);
    let say = move |message: &str| says.notice(message);
    let opened = match open::open(&path, &spec, &arguments.open, listen, say) {
        Ok(opened) => opened,
        Err(code) => return code,
    };
    let Opened {
        agent,
        keeper,
        notice,
    } = opened;
    front.notice(&notice);
    let places = arguments.open.here.and_then(WorldSize::new);
    let launch = LaunchSpec {
        stop_grace: STOP_GRACE,
        finish_limit: finish_limit(&prepared.config),
        ..join::agent_spec(&agent, places.unwrap_or(prepared.world_size))
    };
    let log: Arc<dyn LogSink> = front.clone();
    let last = Arc::new(prepared.checkpoints.clone());
    let sinks = Fanout(vec![front.tracker(), last as Arc<dyn Tracker>]);
    let outcome = agent.supervise(&launch, &mut LocalLauncher::new(), &sinks, &log, stop);
    drop(keeper);
    conclude(prepared, &outcome, front.finish())
}

fn job_name(prepared: &Prepared) -> String {
    format!("{}-{}", prepared.config.run.name, std::process::id())
}

fn launch_spec(prepared: &Prepared) -> LaunchSpec {
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

/// How long workers may take to save a last checkpoint when the job is asked to end.
fn finish_limit(config: &RunConfig) -> Option<Duration> {
    let limit = Duration::try_from_secs_f64(config.checkpoint.finish_limit_s).ok();
    limit.filter(|limit| !limit.is_zero())
}

/// How the run goes on when workers die.
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
            SuccessionKind::Lease => Succession::Lease,
            SuccessionKind::Majority => Succession::Majority,
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
            exit::of_failure(outcome)
        }
    }
}

#[cfg(test)]
mod tests {
    use ronde_cluster::{Cause, Failure};
    use ronde_core::{Event, Rank};

    use super::*;

    #[test]
    fn the_exit_code_tells_whose_fault_it_was() {
        let reported = |user_error| {
            Cause::Reported(Event::WorkerFailed {
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
            (Cause::ExitCode(101), exit::BUG),
            (Cause::ExitCode(1), exit::GAVE_UP),
            (Cause::Signal(9, "SIGKILL"), exit::GAVE_UP),
        ] {
            let failure = Failure {
                rank: Rank(0),
                host: "here".to_owned(),
                pid: 1,
                cause,
                last_step: None,
                last_lines: Vec::new(),
            };
            let outcome = Outcome {
                exit: Exit::Failed(0),
                failures: vec![failure],
                unresponsive: Vec::new(),
            };
            assert_eq!(exit_code(&outcome), code, "{outcome:?}");
        }
    }
}
