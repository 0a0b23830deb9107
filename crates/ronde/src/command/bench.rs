//! `ronde bench`: measures collectives between real worker processes.

mod arguments;
mod data;
mod prepare;
mod training;

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ronde::{Error, environment};
use ronde_bench::{
    BenchError, Columns, Hub, News, Others, Report, Start, Task, choice_table, footnotes,
};
use ronde_cluster::{
    Exit, LaunchSpec, LocalLauncher, LogSink, Outcome, OutputStream, StopFlag, supervise,
};
use ronde_core::{NullTracker, Rank, WorldSize};

use super::exit;
use super::run::report_failure;
use super::worker::join;
pub(crate) use arguments::BenchArguments;
use arguments::TrainingCommand;
use prepare::{Prepared, prepare};

/// How long workers may take to meet.
const RENDEZVOUS_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a worker may take to end when it is told to.
const STOP_GRACE: Duration = Duration::from_millis(1200);

pub(crate) fn bench(arguments: &BenchArguments, stop: &StopFlag) -> i32 {
    match &arguments.training {
        Some(TrainingCommand::Train(arguments)) => return training::bench(arguments, stop),
        Some(TrainingCommand::Data(arguments)) => return data::bench(arguments, stop),
        None => {}
    }
    let prepared = match prepare(arguments) {
        Ok(prepared) => prepared,
        Err(error) => return refuse(&error),
    };
    if arguments.explain {
        return match ronde_bench::explain(&prepared.settings, &prepared.worlds) {
            Ok(text) => print(&text, stop),
            Err(error) => refuse(&error),
        };
    }
    let mut report = Report::new(
        prepared.machine.clone(),
        prepared.settings.clone(),
        prepared.worlds.clone(),
    );
    for &ranks in &prepared.worlds {
        let code = measure(&prepared, ranks, &mut report, stop);
        if code != exit::DONE {
            return code;
        }
    }
    let mut lines = Vec::new();
    if arguments.choice {
        lines = choice_table(&report.rows);
    }
    lines.extend(footnotes(&report));
    let text = lines.join("\n") + "\n";
    let code = print(&text, stop);
    match save(arguments, &report) {
        Ok(()) => code,
        Err(error) => refuse(&error),
    }
}

fn refuse(error: &BenchError) -> i32 {
    eprintln!("error: {error}");
    if error.is_user_error() {
        exit::USER_ERROR
    } else {
        exit::GAVE_UP
    }
}

fn save(arguments: &BenchArguments, report: &Report) -> Result<(), BenchError> {
    if let Some(path) = &arguments.json {
        ronde_bench::write(path, &report.to_json()?)?;
        eprintln!("wrote {}", path.display());
    }
    if let Some(path) = &arguments.plot {
        ronde_bench::write(path, &ronde_bench::plot(report))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// Writes to standard output; somebody may have stopped reading, as behind `head`.
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

/// One job of `ranks` processes; its rows are printed as they come and added to the report.
fn measure(prepared: &Prepared, ranks: usize, report: &mut Report, stop: &StopFlag) -> i32 {
    // Nobody else can enter it.
    let folder = match tempfile::tempdir() {
        Ok(folder) => folder,
        Err(error) => {
            eprintln!("error: cannot make a temporary folder: {error}");
            return exit::GAVE_UP;
        }
    };
    let (mut hub, spec) = match open(prepared, ranks, folder.path(), stop) {
        Ok(ready) => ready,
        Err(_) if stop.signal() != 0 => return 128 + stop.signal(),
        Err(error) => return refuse(&error),
    };
    let columns = Columns {
        against: prepared.settings.against.clone(),
        reasons: prepared.reasons,
    };
    if print(&format!("{}\n", columns.head()), stop) != exit::DONE {
        return 128 + stop.signal();
    }
    let over = AtomicBool::new(false);
    let log: Arc<dyn LogSink> = Arc::new(ToStderr);
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

/// Prints rows as they come and keeps them.
fn take(news: News, columns: &Columns, report: &mut Report, stop: &StopFlag) {
    match news {
        News::Rows(rows) => {
            let lines: Vec<String> = rows.iter().map(|row| columns.line(row, &rows)).collect();
            // When nobody reads any more the run is stopped.
            print(&format!("{}\n", lines.join("\n")), stop);
            report.rows.extend(rows);
        }
        News::Note(note) if !report.notes.contains(&note) => report.notes.push(note),
        _ => {}
    }
}

/// The socket with those who are measured beside ronde, and the job.
fn open(
    prepared: &Prepared,
    ranks: usize,
    folder: &Path,
    stop: &StopFlag,
) -> Result<(Hub, LaunchSpec), BenchError> {
    let mut hub = Hub::new(folder)?;
    let settings = &prepared.settings;
    if settings.against.iter().any(|one| one.is_foreign()) {
        eprintln!("starting {} for {ranks} ranks", names(&settings.against));
        let start = Start {
            python: &prepared.python,
            against: &settings.against,
            ranks,
            seed: settings.seed,
            socket: hub.socket(),
            folder,
        };
        let others = Others::start(&start)?;
        hub.compete(others, &|| stop.signal() == 0)?;
    }
    let task = Task {
        settings: settings.clone(),
        socket: hub.socket().to_owned(),
        cache_bytes: prepared.machine.cache_bytes(),
    };
    let spec = launch_spec(ranks, task.encode()?)?;
    Ok((hub, spec))
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
        problem: format!("{ranks} workers cannot be"),
    })?;
    let program =
        std::env::current_exe().map_or_else(|_| OsString::from("ronde"), PathBuf::into_os_string);
    let mut spec = LaunchSpec::new(program.clone(), vec!["__bench_worker".into()], world_size);
    spec.job = format!("bench-{}", std::process::id());
    spec.task = task;
    spec.environment = environment::thread_limits();
    spec.rendezvous_required = true;
    spec.rendezvous_timeout = RENDEZVOUS_TIMEOUT;
    spec.stop_grace = STOP_GRACE;
    spec.watchdog = Some((program, vec!["__watchdog".into()]));
    Ok(spec)
}

/// Tells what went wrong, if anything, and how the command ends.
fn exit_code(outcome: &Outcome) -> i32 {
    match outcome.exit {
        Exit::Done => exit::DONE,
        Exit::Stopped { .. } => {
            eprintln!("stopped: all workers have ended");
            outcome.exit_code()
        }
        Exit::Failed(_) => {
            report_failure(outcome);
            exit::of_failure(outcome)
        }
    }
}

/// What ranks say besides their results.
struct ToStderr;

impl LogSink for ToStderr {
    fn line(&self, rank: Rank, _stream: OutputStream, line: &str) {
        eprintln!("[rank {rank}] {line}");
    }
}

/// `ronde __bench_worker`: one worker process of `ronde bench`.
pub(crate) fn work() -> i32 {
    let Some(mut worker) = join(&Arc::default()) else {
        return exit::GAVE_UP;
    };
    let (assignment, listener) = worker.take_parts();
    match ronde_bench::run(&assignment, listener) {
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
