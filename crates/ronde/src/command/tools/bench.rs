//! `ronde bench`: measures collectives between worker processes.

mod arguments;
mod data;
mod kernels;
mod member;
mod prepare;
mod run_file;
mod training;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub(crate) use arguments::BenchArguments;
use arguments::BenchCommand;
use prepare::{PreparedBench, prepare};
use ronde::environment::{self, WorkerEnvironment};
use ronde::{Error, Worker};
use ronde_bench::{
    BenchError, CollectivesReport, Columns, CompetitorLaunch, CompetitorProcess, Hub, HubEvent,
    choice_table, footnotes,
};
use ronde_cluster::{
    JobExit, JobOutcome, LaunchSpec, LocalLauncher, LogSink, OutputStream, StopFlag, supervise,
};
use ronde_core::{NullTracker, Rank, WorldSize};
use tempfile::TempDir;

use crate::command::console::message;
use crate::command::exit;
use crate::command::run::rank_output::report_failure;
use crate::command::run::worker::join;

/// Time limit of the workers' rendezvous.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a worker's end after SIGTERM.
const STOP_GRACE: Duration = Duration::from_millis(1200);

pub(crate) fn bench(arguments: &BenchArguments, stop: &StopFlag) -> i32 {
    match &arguments.command {
        Some(BenchCommand::Train(arguments)) => return training::bench(arguments, stop),
        Some(BenchCommand::Data(arguments)) => return data::bench(arguments, stop),
        Some(BenchCommand::Kernels(arguments)) => return kernels::bench(arguments, stop),
        None => {}
    }
    if !arguments.explain {
        match WorkerEnvironment::read() {
            Ok(Some(WorkerEnvironment::Fixed { rank, decision })) => {
                return member::bench(&rank, &decision, arguments, stop);
            }
            Ok(_) => {}
            Err(problem) => {
                message!("error: {problem}");
                return exit::USER_ERROR;
            }
        }
    }
    let prepared = match prepare(arguments, None) {
        Ok(prepared) => prepared,
        Err(error) => return refuse(&error),
    };
    if arguments.explain {
        return match ronde_bench::explain(&prepared.settings, &prepared.worlds) {
            Ok(text) => print(&text, stop),
            Err(error) => refuse(&error),
        };
    }
    let mut report = prepared.report();
    for &ranks in &prepared.worlds {
        let code = measure(&prepared, ranks, &mut report, stop);
        if code != exit::DONE {
            return code;
        }
    }
    conclude(arguments, &report, stop)
}

/// Prints what belongs under the table, and writes the file of `--json`.
fn conclude(arguments: &BenchArguments, report: &CollectivesReport, stop: &StopFlag) -> i32 {
    let mut lines = Vec::new();
    if arguments.choice {
        lines = choice_table(&report.rows);
    }
    lines.extend(footnotes(report));
    let text = lines.join("\n") + "\n";
    let code = print(&text, stop);
    match save(arguments, report) {
        Ok(()) => code,
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &BenchError) -> i32 {
    message!("error: {error}");
    if matches!(error, BenchError::Setting { .. }) && !error.to_string().contains("help:") {
        message!("  help: `ronde bench --help` describes the options and has examples");
    }
    if error.is_user_error() {
        exit::USER_ERROR
    } else {
        exit::GAVE_UP
    }
}

fn save(arguments: &BenchArguments, report: &CollectivesReport) -> Result<(), BenchError> {
    if let Some(path) = &arguments.json {
        ronde_bench::write(path, &report.to_json()?)?;
        message!("wrote {}", path.display());
    }
    Ok(())
}

/// Writes to standard output. The reader may have closed the pipe, such as `head`.
fn print(text: &str, stop: &StopFlag) -> i32 {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Ok(()) => exit::DONE,
        Err(_) => {
            stop.request(signal_hook::consts::SIGPIPE);
            128 + signal_hook::consts::SIGPIPE
        }
    }
}

/// Runs one job of `ranks` processes. Its rows are printed as they arrive and added to the report.
fn measure(
    prepared: &PreparedBench,
    ranks: usize,
    report: &mut CollectivesReport,
    stop: &StopFlag,
) -> i32 {
    let folder = match temporary_folder() {
        Ok(folder) => folder,
        Err(code) => return code,
    };
    let opened = Hub::new(folder.path()).and_then(|mut hub| {
        compete(&mut hub, prepared, ranks, folder.path(), stop)?;
        let spec = launch_spec(ranks, prepared.task(&hub)?)?;
        Ok((hub, spec))
    });
    let (mut hub, spec) = match opened {
        Ok(ready) => ready,
        Err(_) if stop.signal() != 0 => return 128 + stop.signal(),
        Err(error) => return refuse(&error),
    };
    let columns = prepared.columns();
    if print(&format!("{}\n", columns.head()), stop) != exit::DONE {
        return 128 + stop.signal();
    }
    let over = AtomicBool::new(false);
    let log: Arc<dyn LogSink> = Arc::new(StderrLog);
    let (outcome, served) = std::thread::scope(|scope| {
        let serving = scope.spawn(|| {
            let go_on = || !over.load(Ordering::Relaxed);
            hub.serve(&mut |news| take(news, &columns, report, stop), &go_on)
        });
        let outcome = supervise(&spec, &mut LocalLauncher::new(), &NullTracker, &log, stop);
        over.store(true, Ordering::Relaxed);
        (outcome, serving.join())
    });
    match (exit_code(&outcome), served) {
        (exit::DONE, Ok(Err(error))) => refuse(&error),
        (exit::DONE, Err(_)) => exit::BUG,
        (code, _) => code,
    }
}

/// Creates a folder that only this user can access.
fn temporary_folder() -> Result<TempDir, i32> {
    tempfile::tempdir().map_err(|error| {
        message!("error: cannot create a temporary folder: {error}");
        exit::GAVE_UP
    })
}

/// Prints rows as they arrive and stores them.
fn take(news: HubEvent, columns: &Columns, report: &mut CollectivesReport, stop: &StopFlag) {
    match news {
        HubEvent::Rows(rows) => {
            let lines: Vec<String> = rows.iter().map(|row| columns.line(row, &rows)).collect();
            // `print` stops the run when the reader has closed the pipe.
            print(&format!("{}\n", lines.join("\n")), stop);
            report.rows.extend(rows);
        }
        HubEvent::Note(note) if !report.notes.contains(&note) => report.notes.push(note),
        _ => {}
    }
}

/// Starts the competitors, if any, and waits until they are connected.
fn compete(
    hub: &mut Hub,
    prepared: &PreparedBench,
    ranks: usize,
    folder: &Path,
    stop: &StopFlag,
) -> Result<(), BenchError> {
    let settings = &prepared.settings;
    if !settings.against.iter().any(|one| one.is_foreign()) {
        return Ok(());
    }
    let start = CompetitorLaunch {
        python: &prepared.python,
        against: &settings.against,
        ranks,
        seed: settings.seed,
        socket: hub.socket(),
        folder,
    };
    let others = CompetitorProcess::start(&start)?;
    message!(
        "starting {} for {ranks} ranks with {}",
        names(&settings.against),
        others.mpi()
    );
    hub.compete(others, &|| stop.signal() == 0)
}

fn names(against: &[ronde_bench::Competitor]) -> String {
    let foreign = against.iter().filter(|one| one.is_foreign());
    let names: Vec<&str> = foreign.map(|one| one.name()).collect();
    names.join(" and ")
}

fn launch_spec(ranks: usize, task: String) -> Result<LaunchSpec, BenchError> {
    let world_size = u32::try_from(ranks).ok().and_then(WorldSize::new);
    let world_size = world_size.ok_or_else(|| BenchError::Setting {
        what: "--workers",
        problem: format!("invalid number of workers {ranks}"),
    })?;
    let program =
        std::env::current_exe().map_or_else(|_| OsString::from("ronde"), PathBuf::into_os_string);
    let mut spec = LaunchSpec::new(program.clone(), vec!["__bench_worker".into()], world_size);
    spec.job = format!("bench-{}", std::process::id());
    spec.task = task;
    spec.environment = environment::thread_limits();
    spec.rendezvous_required = true;
    spec.settings.rendezvous = RENDEZVOUS_TIMEOUT;
    spec.stop_grace = STOP_GRACE;
    spec.watchdog = Some((program, vec!["__watchdog".into()]));
    Ok(spec)
}

/// Prints the failure, if any, and returns the exit code.
fn exit_code(outcome: &JobOutcome) -> i32 {
    match outcome.exit {
        JobExit::Done => exit::DONE,
        JobExit::Stopped { .. } => {
            message!("interrupted: all workers have ended");
            outcome.exit_code()
        }
        JobExit::Failed(_) => {
            report_failure(outcome);
            exit::of_failure(outcome)
        }
    }
}

/// Forwards the other output of the ranks to standard error.
struct StderrLog;

impl LogSink for StderrLog {
    fn line(&self, rank: Rank, _stream: OutputStream, line: &str) {
        message!("[rank {rank}] {line}");
    }
}

/// Runs `ronde __bench_worker`: one worker process of `ronde bench`.
pub(crate) fn work() -> i32 {
    let Some(mut worker) = join() else {
        return exit::GAVE_UP;
    };
    match take_part(&mut worker) {
        Ok(()) => exit::DONE,
        Err(error) => {
            let code = match error.is_user_error() {
                true => exit::USER_ERROR,
                false => exit::GAVE_UP,
            };
            worker.report(&Error::Bench(error), None);
            code
        }
    }
}

/// Measures as one rank.
fn take_part(worker: &mut Worker) -> Result<(), BenchError> {
    let access = worker.take_access();
    let security = (access.secure)(&access.assignment);
    ronde_bench::run(&access.assignment, access.listener, security)
}
