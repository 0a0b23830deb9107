//! `ronde train`: trains a model from a run file with supervised workers.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ronde::environment::{self, WorkerEnvironment};
use ronde::trackers::{ProblemReport, RunTrackers};
use ronde_cluster::{
    ElasticSettings, JobExit, JobOutcome, JobSpec, LaunchSpec, LocalLauncher, LogSink,
    RestartLimits, StopFlag, supervise,
};
use ronde_core::{Tracker, WorldSize};
use ronde_protocol::MembershipPolicy;
use ronde_tracking::{
    BackgroundWriter, EventFile, EventFileSettings, Fanout, MonitorError, RunView, previous,
};
use ronde_train::RunConfig;
use ronde_train::flight_records::FlightRecordWriter;
use ronde_train::results::{ResultsUpload, StoredResults, UploadSource};

use crate::command::console::{message, print};
use crate::command::job::join;
use crate::command::job::open;
use crate::command::job::open::{OpenArguments, OpenJob};
use crate::command::job::preemption::NoticeSource;
use crate::command::run::flight;
use crate::command::run::loss_plot::LossPlot;
use crate::command::run::progress_output::ProgressOutput;
use crate::command::run::rank_logs::RankLogs;
use crate::command::run::rank_output::report_failure;
use crate::command::run::run_folder::{EVENT_FILE, JOB_FOLDER};
use crate::command::run::start_error::StartError;
use crate::command::{exit, signals};

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
    /// checkpoints [default: the run of the run file, or the newest in `runs`]; any number of workers gives the same bits.
    #[arg(long, value_name = "RUN", num_args = 0..=1)]
    resume: Option<Option<String>>,
    /// With `--resume`: continue with another value of a setting that changes the trained bits, such as `learning_rate`,
    /// `optimizer.weight_decay` or `schedule`; can be repeated. The length of a run needs no permission.
    #[arg(long, value_name = "SETTING", requires = "resume")]
    allow_change: Vec<String>,
    /// Start a new run from the weights of another one: a run's folder, a saved model or a safetensors file.
    #[arg(long, value_name = "MODEL", conflicts_with = "resume")]
    init_from: Option<PathBuf>,
    /// Replace the results of a run that is in the output folder already, including its checkpoints.
    #[arg(long, conflicts_with = "resume")]
    overwrite: bool,
    /// Print the plan of the run and what would be started, without training.
    #[arg(long)]
    dry_run: bool,
    /// Write events to standard output, one JSON object per line, instead of progress.
    #[arg(long)]
    json: bool,
    /// Draw the loss in the terminal at the end, and write it to `loss.svg` in the run's folder.
    #[arg(long)]
    plot: bool,
    /// Record what all workers do from the start; `ronde trace` writes the timeline.
    #[arg(long)]
    trace: bool,
    /// Print which launcher or platform has started this process, as which rank of how many, and by which variables;
    /// trains nothing.
    #[arg(long)]
    explain_environment: bool,
    /// Hosts and their slots, such as `gpu1:4,gpu2:4`: submit the run to them over SSH, show its progress, and copy its
    /// results at the end.
    #[arg(short = 'H', long, value_name = "HOSTS",
          conflicts_with_all = ["resume", "init_from", "overwrite", "json", "plot", "trace", "listen"])]
    hosts: Option<String>,
    /// End the run after a checkpoint, as SIGTERM does, when this file appears, or when this address of a cloud's
    /// metadata announces the end of the host; can be repeated.
    #[arg(long, value_name = "FILE|URL")]
    drain_on: Vec<NoticeSource>,
    #[command(flatten)]
    open: OpenArguments,
}

/// The beginning of a message about the output of this process.
const STDOUT: &str = "cannot write standard output";
/// Time limit of the workers' rendezvous, which precedes opening the engine and the data.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a worker's end after SIGTERM.
const STOP_GRACE: Duration = Duration::from_millis(1200);

mod member;
mod on_hosts;
mod prepare;

use prepare::PreparedRun;
pub(crate) use prepare::{PlanRequest, PlannedRun, plan, read_run_file};

pub(crate) fn train(arguments: TrainArguments, stop: &StopFlag) -> i32 {
    if arguments.explain_environment {
        return explain_environment();
    }
    if let Some(hosts) = &arguments.hosts {
        return on_hosts::train(&arguments, hosts, stop);
    }
    match WorkerEnvironment::read() {
        Ok(Some(WorkerEnvironment::Fixed { rank, decision })) => {
            return member::train(&rank, &decision, &arguments, stop);
        }
        Ok(_) => {}
        Err(problem) => {
            message!("error: {problem}");
            return exit::USER_ERROR;
        }
    }
    let prepared = match prepare(&arguments, &PlanRequest::of(&arguments)) {
        Ok(prepared) => prepared,
        Err(code) => return code,
    };
    signals::begin_supervision();
    arguments
        .drain_on
        .iter()
        .for_each(|source| source.watch(stop));
    let code = match arguments.open.listen {
        Some(listen) => supervise_open_run(&prepared, &arguments, listen, stop),
        None => supervise_run(&prepared, &arguments, stop),
    };
    prepared.output.remove_temporary_files();
    code
}

/// Prints how this process was started.
fn explain_environment() -> i32 {
    match environment::explain_start() {
        Ok(text) => print(text),
        Err(problem) => {
            message!("error: {problem}");
            exit::USER_ERROR
        }
    }
}

/// Plans a run and claims its output folder. The error is the exit code; a message has been printed.
fn prepare(arguments: &TrainArguments, request: &PlanRequest<'_>) -> Result<PreparedRun, i32> {
    let planned = plan(request);
    if let (true, Ok(planned)) = (arguments.dry_run, &planned) {
        return Err(print(planned.describe()));
    }
    planned
        .and_then(|planned| planned.claim_folder(arguments))
        .map_err(|error| match error {
            StartError::Finished(message) => {
                message!("{message}");
                exit::DONE
            }
            StartError::Invalid(message) => {
                message!("{message}");
                exit::USER_ERROR
            }
        })
}

/// Where the events of a run go.
struct RunOutputs {
    progress: Arc<ProgressOutput>,
    events: Arc<BackgroundWriter>,
    trackers: RunTrackers,
    plot: Option<LossPlot>,
    tracker: Arc<Fanout>,
    upload: Option<ResultsUpload>,
}

impl RunOutputs {
    /// Opens the event file of a run and shows its notices. The error is the exit code; a message has been printed.
    fn open(prepared: &PreparedRun, arguments: &TrainArguments) -> Result<Self, i32> {
        let progress = Arc::new(ProgressOutput::new(arguments.json));
        let file = event_file(prepared).map_err(|error| {
            message!("error: {error}\n  help: choose another folder: --set run.output=FOLDER");
            exit::USER_ERROR
        })?;
        let attempt = prepared.resumes.then(|| file.next_attempt());
        if prepared.resumes {
            progress.resume(file.view().clone());
        }
        let earlier = prepared.resumes.then(|| file.view());
        let report = progress.problem_report();
        let trackers = open_trackers(prepared, earlier, &report)?;
        let position = Arc::new(prepared.position.clone());
        let events = BackgroundWriter::event_file(file);
        let events = Arc::new(events.reporting(move |problem| report(problem)));
        let output = Arc::clone(&prepared.output);
        let mut sinks: Vec<Arc<dyn Tracker>> =
            vec![output, progress.tracker(), position, events.clone()];
        sinks.extend_from_slice(trackers.trackers());
        let plot = loss_plot(prepared, arguments);
        sinks.extend(plot.as_ref().map(LossPlot::tracker));
        let tracker = Fanout(sinks);
        if let Some(attempt) = attempt {
            tracker.record(attempt);
        }
        for notice in prepared.notices.iter().chain(trackers.notices()) {
            progress.notice(notice);
        }
        Ok(Self {
            progress,
            events,
            trackers,
            plot,
            tracker: Arc::new(tracker),
            upload: start_upload(prepared)?,
        })
    }

    /// Writes all events and sends the results. The error is a message.
    fn finish(self, code: i32) -> Result<(), String> {
        let shown = self
            .progress
            .finish()
            .map_err(|problem| format!("{STDOUT}: {problem}"));
        self.events.finish();
        if let Some(problem) = self.events.problem() {
            message!("warning: {problem}");
        }
        report_problems(&self.trackers);
        self.plot.iter().for_each(LossPlot::finish);
        shown.and(finish_upload(self.upload, code))
    }
}

/// Begins to send the results of a run, if it names an address. The error is the exit code; a message has been printed.
fn start_upload(prepared: &PreparedRun) -> Result<Option<ResultsUpload>, i32> {
    let start = |results: &StoredResults| {
        let source = UploadSource::Run(prepared.output.path().to_owned());
        ResultsUpload::start(results.clone(), vec![source])
    };
    let upload = prepared.results.as_ref().map(start).transpose();
    upload.map_err(|problem| {
        message!("error: cannot send the results: {problem}");
        exit::GAVE_UP
    })
}

/// Sends the results that have not been sent. The error is a message.
fn finish_upload(upload: Option<ResultsUpload>, code: i32) -> Result<(), String> {
    match upload.and_then(|upload| upload.finish(Some(code), &|note| message!("{note}"))) {
        None => Ok(()),
        Some(problem) => Err(format!("cannot send all results: {problem}")),
    }
}

/// Begins the drawing of the loss, if it is requested.
fn loss_plot(prepared: &PreparedRun, arguments: &TrainArguments) -> Option<LossPlot> {
    let folder = prepared.output.path();
    let plot = || LossPlot::new(folder, prepared.resumes, !arguments.json);
    arguments.plot.then(plot)
}

/// Opens the trackers that the run file names. The error is the exit code; a message has been printed.
fn open_trackers(
    prepared: &PreparedRun,
    earlier: Option<&RunView>,
    report: &ProblemReport,
) -> Result<RunTrackers, i32> {
    let folder = prepared.output.path();
    RunTrackers::open(&prepared.config, folder, earlier, report).map_err(|problem| {
        message!("error: {problem}");
        exit::USER_ERROR
    })
}

/// Waits until the trackers have written everything, and prints what they could not write.
fn report_problems(trackers: &RunTrackers) {
    for problem in trackers.finish() {
        message!("warning: {problem}");
    }
}

fn supervise_run(prepared: &PreparedRun, arguments: &TrainArguments, stop: &StopFlag) -> i32 {
    let outputs = match RunOutputs::open(prepared, arguments) {
        Ok(outputs) => outputs,
        Err(code) => return code,
    };
    let log = rank_logs(prepared, outputs.progress.clone());
    let outcome = supervise(
        &launch_spec(prepared),
        &mut LocalLauncher::new(),
        &*outputs.tracker,
        &log,
        stop,
    );
    conclude(prepared, &outcome, outputs.finish(exit_code(&outcome)))
}

/// Opens the event file of the run: a resumed run continues the file of its earlier attempts.
fn event_file(prepared: &PreparedRun) -> Result<EventFile, MonitorError> {
    let section = &prepared.config.events;
    let settings = EventFileSettings {
        every_steps: section.every_steps,
        bytes_max: section.limit_mib.saturating_mul(1 << 20),
    };
    let path = prepared.output.path().join(EVENT_FILE);
    if prepared.resumes {
        EventFile::append(&path, settings)
    } else {
        EventFile::create(&path, settings)
    }
}

/// Prints how the run ended and returns the exit code. `shown` is the result of writing all events and sending the results.
fn conclude(prepared: &PreparedRun, outcome: &JobOutcome, shown: Result<(), String>) -> i32 {
    if let JobExit::Failed(_) = outcome.exit {
        report_failure(outcome);
    }
    let code = exit_code(outcome);
    let folder = prepared.output.path();
    if code == exit::DONE {
        prepared.output.remove_replaced_results();
    }
    if code == exit::GAVE_UP {
        flight::show(folder);
    } else {
        // After any other end the records only show which rank left first.
        let _gone = std::fs::remove_dir_all(folder.join(FlightRecordWriter::FOLDER));
    }
    match outcome.exit {
        JobExit::Done => {}
        JobExit::Stopped { .. } => message!("{}", prepared.position.interrupted()),
        JobExit::Failed(_) => {
            if let Some(message) = prepared.position.failed() {
                message!("{message}");
            }
        }
    }
    match (code, shown) {
        (code, Ok(())) => code,
        (code, Err(problem)) => {
            message!("error: {problem}");
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
    let settings = settings(&prepared.config);
    if settings.policy == MembershipPolicy::Fixed {
        message!("error: --listen requires an elastic run\n  help: set elastic.enabled = true");
        return exit::USER_ERROR;
    }
    let spec = job_spec(prepared, settings);
    let output = Arc::new(ProgressOutput::new(arguments.json));
    for notice in &prepared.notices {
        output.notice(notice);
    }
    if let Err(problem) = prepare_events(prepared) {
        message!("{problem}");
        return exit::USER_ERROR;
    }
    let earlier = prepared.resumes.then(RunView::default);
    let report = output.problem_report();
    let trackers = match open_trackers(prepared, earlier.as_ref(), &report) {
        Ok(trackers) => trackers,
        Err(code) => return code,
    };
    for notice in trackers.notices() {
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
    let upload = match start_upload(prepared) {
        Ok(upload) => upload,
        Err(code) => return code,
    };
    output.notice(&notice);
    let slots = arguments.open.here.and_then(WorldSize::new);
    let launch = LaunchSpec {
        stop_grace: STOP_GRACE,
        finish_limit: finish_limit(&prepared.config),
        ..join::agent_spec(&agent, slots.unwrap_or(prepared.world_size))
    };
    let log = rank_logs(prepared, output.clone());
    let position = Arc::new(prepared.position.clone());
    let folder = Arc::clone(&prepared.output);
    let mut sinks: Vec<Arc<dyn Tracker>> = vec![folder, output.tracker(), position];
    sinks.extend_from_slice(trackers.trackers());
    let plot = loss_plot(prepared, arguments);
    sinks.extend(plot.as_ref().map(LossPlot::tracker));
    let sinks = Fanout(sinks);
    let outcome = agent.supervise(&launch, &mut LocalLauncher::new(), &sinks, &log, stop);
    drop(coordinator);
    let shown = output
        .finish()
        .map_err(|problem| format!("{STDOUT}: {problem}"));
    report_problems(&trackers);
    plot.iter().for_each(LossPlot::finish);
    let sent = finish_upload(upload, exit_code(&outcome));
    conclude(prepared, &outcome, shown.and(sent))
}

/// Returns the description of an open job, which its coordinator keeps.
fn job_spec(prepared: &PreparedRun, settings: ElasticSettings) -> JobSpec {
    let (elastic, possible) = (&prepared.config.elastic, prepared.config.workers_max());
    let most = match elastic.max_workers {
        0 => possible,
        most => most,
    };
    JobSpec {
        job: job_name(prepared),
        task: prepared.task.clone(),
        settings: ElasticSettings {
            workers_max: most.max(settings.workers),
            ..settings
        },
        command: Vec::new(),
        record: None,
        events: Some(prepared.output.path().join(EVENT_FILE)),
    }
}

/// Prepares the event file that the coordinator writes: a resumed run begins a new file with the totals of its earlier
/// attempts.
fn prepare_events(prepared: &PreparedRun) -> Result<(), String> {
    let path = prepared.output.path().join(EVENT_FILE);
    if prepared.resumes {
        return EventFile::archive(&path).map_err(|error| format!("error: {error}"));
    }
    for path in [previous(&path), path] {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(format!("error: cannot remove {}: {error}", path.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Returns the sink of the output of the ranks: shown, and written to the folder of the run.
fn rank_logs(prepared: &PreparedRun, shown: Arc<ProgressOutput>) -> Arc<dyn LogSink> {
    Arc::new(RankLogs::new(prepared.output.path(), 0, shown))
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
    spec.stop_grace = STOP_GRACE;
    spec.watchdog = Some((program, vec!["__watchdog".into()]));
    spec.finish_limit = finish_limit(&prepared.config);
    spec.settings = settings(&prepared.config);
    spec
}

/// Returns the time limit for saving a last checkpoint when the job is requested to end.
fn finish_limit(config: &RunConfig) -> Option<Duration> {
    let limit = Duration::try_from_secs_f64(config.checkpoint.finish_limit_s).ok();
    limit.filter(|limit| !limit.is_zero())
}

/// Returns the settings of the membership of a run.
fn settings(config: &RunConfig) -> ElasticSettings {
    let (elastic, workers) = (&config.elastic, config.workers.count);
    if !elastic.enabled {
        return ElasticSettings {
            rendezvous: RENDEZVOUS_TIMEOUT,
            ..ElasticSettings::fixed(workers)
        };
    }
    let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
    let silence = seconds(elastic.silence_s);
    let lease = seconds(elastic.lease_s);
    ElasticSettings {
        workers_min: elastic.min_workers,
        heartbeat: silence / 2,
        silence,
        lease,
        store_timeout: lease / 3,
        rendezvous: RENDEZVOUS_TIMEOUT,
        succession: elastic.succession,
        wait_limit: seconds(elastic.wait_s),
        state_wait: seconds(elastic.state_wait_s),
        is_divided: config.has_slices(),
        orphan_limit: seconds(elastic.contact_s),
        restart: RestartLimits {
            restarts_max: elastic.max_restarts,
            window: seconds(elastic.restart_window_s),
            ..RestartLimits::default()
        },
        ..ElasticSettings::new(workers)
    }
}

/// Prints the failure, if any, and returns the exit code.
fn exit_code(outcome: &JobOutcome) -> i32 {
    match outcome.exit {
        JobExit::Done => exit::DONE,
        JobExit::Stopped { .. } => outcome.exit_code(),
        JobExit::Failed(_) => exit::of_failure(outcome),
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
