//! `ronde bench` as one of the workers that another launcher starts, such as mpirun, srun or torchrun.
//!
//! Rank 0 passes the settings to the other ranks, runs the competitors on its host, and prints and writes the results.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ronde::environment::RONDE_STARTED_BY;
use ronde::{Error, FixedRank, Worker};
use ronde_bench::{BenchError, CollectivesReport, Hub};
use ronde_cluster::{StartDecision, StopFlag, WaitSettings};
use ronde_core::Rank;

use super::arguments::BenchArguments;
use super::prepare::{PreparedBench, prepare};
use super::{compete, conclude, exit, print, refuse, take, take_part, temporary_folder};
use crate::command::console::{info, message};

/// How long the ranks wait for each other.
const MEETING_MAX: Duration = Duration::from_secs(60);
/// The interval between looks at the stop flag.
const LOOK: Duration = Duration::from_millis(100);

/// Measures as one rank and returns the exit code of this process.
pub(super) fn bench(
    mine: &FixedRank,
    decision: &StartDecision,
    arguments: &BenchArguments,
    stop: &StopFlag,
) -> i32 {
    if let Some(problem) = conflict(mine, decision, arguments) {
        message!("error: {problem}");
        return exit::USER_ERROR;
    }
    if mine.rank != Rank(0) {
        let worker = match meet(mine, "") {
            Ok(worker) => worker,
            Err(error) => return report(mine, &error),
        };
        let measuring = Measuring::start(worker);
        return match measuring.wait(stop) {
            None => 128 + stop.signal(),
            Some(Ok(())) => exit::DONE,
            Some(Err(error)) => report(mine, &Error::Bench(error)),
        };
    }
    let prepared = match prepare(arguments, Some(mine.world_size.len())) {
        Ok(prepared) => prepared,
        Err(error) => return refuse(&error),
    };
    let folder = match temporary_folder() {
        Ok(folder) => folder,
        Err(code) => return code,
    };
    let mut rows = prepared.report();
    match measure(mine, &prepared, &mut rows, folder.path(), stop) {
        Ok(exit::DONE) => conclude(arguments, &rows, stop),
        Ok(code) => code,
        Err(_) if stop.signal() != 0 => 128 + stop.signal(),
        Err(Error::Bench(error)) => refuse(&error),
        Err(error) => report(mine, &error),
    }
}

/// Returns the problem with a number of workers that another launcher decides.
fn conflict(
    mine: &FixedRank,
    decision: &StartDecision,
    arguments: &BenchArguments,
) -> Option<String> {
    let (size, from) = (mine.world_size.len(), &decision.world_size_from);
    match *arguments.workers {
        [] => None,
        [one] if one == size => None,
        _ => Some(format!(
            "invalid `--workers`: expected {size}, the value of {from}, because another launcher starts the workers\n  \
             help: {RONDE_STARTED_BY}=none starts workers of its own"
        )),
    }
}

/// Meets the other ranks.
fn meet(mine: &FixedRank, task: &str) -> Result<Worker, Error> {
    let wait = WaitSettings {
        timeout: MEETING_MAX,
        notify: &mut |message| info!("{message}"),
    };
    Worker::fixed_within(mine, task, wait)
}

/// Meets the other ranks, starts the competitors, and measures as rank 0.
fn measure(
    mine: &FixedRank,
    prepared: &PreparedBench,
    rows: &mut CollectivesReport,
    folder: &Path,
    stop: &StopFlag,
) -> Result<i32, Error> {
    let mut hub = Hub::new(folder)?;
    let worker = meet(mine, &prepared.task(&hub)?)?;
    let ranks = mine.world_size.len();
    let here = worker.assignment().local_world_size as usize;
    check_competitors(prepared, here)?;
    compete(&mut hub, prepared, ranks, folder, stop)?;
    let columns = prepared.columns();
    print(&format!("{}\n", columns.head()), stop);
    let measuring = Measuring::start(worker);
    let served = hub.serve(&mut |news| take(news, &columns, rows, stop), &|| {
        stop.signal() == 0 && !measuring.thread.is_finished()
    });
    match measuring.wait(stop) {
        None => Ok(128 + stop.signal()),
        Some(measured) => Ok(measured.and(served).map(|()| exit::DONE)?),
    }
}

/// Checks that Gloo and Open MPI, which run on the host of rank 0, run under the same conditions; `here` is the number of
/// ranks on that host.
fn check_competitors(prepared: &PreparedBench, here: usize) -> Result<(), BenchError> {
    let refuse = |problem| {
        Err(BenchError::Setting {
            what: "--against",
            problem,
        })
    };
    let (machine, ranks) = (&prepared.machine, prepared.worlds.iter().sum());
    if !prepared.settings.against.iter().any(|one| one.is_foreign()) {
        return Ok(());
    }
    if here < ranks {
        return refuse(format!(
            "Gloo and Open MPI are measured on one host, which has {here} of these {ranks} ranks; run \
             benchmarks/gloo_and_mpi_all_reduce.py under mpirun for several hosts"
        ));
    }
    if machine.is_bound {
        return refuse(format!(
            "rank 0 is bound to {} cores, and all ranks of Gloo and Open MPI would be as well; start the ranks with \
             `mpirun --bind-to none`",
            machine.cores
        ));
    }
    Ok(())
}

/// A thread that measures, so that a signal can end the process meanwhile.
struct Measuring {
    thread: JoinHandle<()>,
    result: Receiver<Result<(), BenchError>>,
}

impl Measuring {
    fn start(mut worker: Worker) -> Self {
        let (sender, result) = channel();
        let thread = std::thread::spawn(move || drop(sender.send(take_part(&mut worker))));
        Self { thread, result }
    }

    /// Waits for the result; returns `None` after a signal.
    fn wait(self, stop: &StopFlag) -> Option<Result<(), BenchError>> {
        loop {
            match self.result.recv_timeout(LOOK) {
                _ if stop.signal() != 0 => return None,
                Ok(result) => return Some(result),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => match self.thread.join() {
                    Ok(()) => return Some(Ok(())),
                    Err(panic) => std::panic::resume_unwind(panic),
                },
            }
        }
    }
}

fn report(mine: &FixedRank, error: &Error) -> i32 {
    message!("error: rank {}: {}", mine.rank, error.explain());
    match error {
        Error::Bench(error) if error.is_user_error() => exit::USER_ERROR,
        _ => exit::GAVE_UP,
    }
}
