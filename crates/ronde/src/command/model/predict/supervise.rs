//! [`WorkerPool`]: starts the workers of `ronde predict`, assigns chunks to them and replaces lost ones.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use ronde_cluster::{StopFlag, StopLevel};
use ronde_data::DataEvent;
use ronde_serve::ChunkQueue;

use super::{ScoringArguments, worker};
use crate::command::console::message;
use crate::command::data::progress;
use crate::command::exit;

/// The number of chunks that a worker has, so that it reads the samples of one while it computes another.
const ASSIGNED: usize = 2;
/// The number of workers in succession that may end before any one is ready.
const START_LOSSES_MAX: u32 = 3;
/// The time between two looks at the stop flag.
const POLL: Duration = Duration::from_millis(50);

/// The reason for which not all chunks are finished.
pub(super) struct Interruption {
    /// The exit code.
    pub(super) code: i32,
    /// The cause as text; `None` if a worker has printed it.
    pub(super) cause: Option<String>,
}

impl Interruption {
    fn gave_up(cause: String) -> Self {
        Self {
            code: exit::GAVE_UP,
            cause: Some(cause),
        }
    }
}

/// A message from the thread that reads a worker's output.
enum ChunkReport {
    /// The worker has opened the model and the data.
    Ready,
    /// The worker has published a chunk.
    Finished(u64),
    /// The worker has closed its output.
    Ended,
}

/// A worker process.
struct WorkerProcess {
    child: Child,
    /// The numbers of its chunks are written here; the worker ends when it is closed.
    chunks: ChildStdin,
}

/// The number of a worker, and what it reports.
type ReportOfWorker = (u64, ChunkReport);

/// The workers and the chunks that are still to be computed. Dropping it kills the workers.
pub(super) struct WorkerPool<'a> {
    arguments: &'a ScoringArguments,
    queue: ChunkQueue,
    workers: BTreeMap<u64, WorkerProcess>,
    /// The number of workers that were started.
    started: u64,
    start_losses: u32,
    /// The number of finished chunks and of all.
    progress: (u64, u64),
    show: Arc<dyn Fn(&DataEvent) + Send + Sync>,
    reports: (Sender<ReportOfWorker>, Receiver<ReportOfWorker>),
}

impl<'a> WorkerPool<'a> {
    /// Creates a pool without workers for the missing ones of a number of chunks. With `quiet`, no progress is printed.
    pub(super) fn new(
        arguments: &'a ScoringArguments,
        (chunks, missing): (u64, Vec<u64>),
        quiet: bool,
    ) -> Self {
        Self {
            arguments,
            progress: (chunks - missing.len() as u64, chunks),
            queue: ChunkQueue::new(missing),
            workers: BTreeMap::new(),
            started: 0,
            start_losses: 0,
            show: progress::show(quiet),
            reports: mpsc::channel(),
        }
    }

    /// Computes all chunks with up to `workers` processes.
    ///
    /// # Errors
    /// A stop request, an error that a worker reports, or too many lost workers.
    pub(super) fn run(&mut self, workers: u32, stop: &StopFlag) -> Result<(), Interruption> {
        let (finished, chunks) = self.progress;
        for _ in 0..u64::from(workers).min(chunks - finished) {
            self.start()?;
        }
        while !self.queue.is_finished() {
            if stop.level() != StopLevel::Run {
                self.show_progress(1.0);
                return Err(Interruption {
                    code: 128 + stop.signal(),
                    cause: Some("interrupted".to_owned()),
                });
            }
            match self.reports.1.recv_timeout(POLL) {
                Ok((worker, report)) => self.handle(worker, report)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.show_progress(1.0);
        Ok(())
    }

    fn handle(&mut self, worker: u64, report: ChunkReport) -> Result<(), Interruption> {
        match report {
            ChunkReport::Ready => {
                self.start_losses = 0;
                for _ in 0..ASSIGNED {
                    self.assign(worker);
                }
                Ok(())
            }
            ChunkReport::Finished(chunk) => {
                self.queue.finish(worker, chunk);
                self.progress.0 += 1;
                self.show_progress(self.progress.0 as f64 / self.progress.1.max(1) as f64);
                self.assign(worker);
                Ok(())
            }
            ChunkReport::Ended => self.replace(worker),
        }
    }

    fn show_progress(&self, share: f64) {
        let what = "predicting".to_owned();
        (self.show)(&DataEvent::Progress { what, share });
    }

    /// Assigns the next chunk to a worker, if there is one. A worker that cannot be written to has ended, which its output
    /// reports.
    fn assign(&mut self, worker: u64) {
        if let Some(process) = self.workers.get_mut(&worker)
            && let Some(chunk) = self.queue.take(worker)
        {
            let _ = writeln!(process.chunks, "{chunk}");
        }
    }

    /// Returns the chunks of a worker that has ended to the queue, and starts another worker for them.
    fn replace(&mut self, worker: u64) -> Result<(), Interruption> {
        let Some(mut process) = self.workers.remove(&worker) else {
            return Ok(());
        };
        // A worker that has only closed its output cannot report any more.
        let _ = process.child.kill();
        let status = process.child.wait();
        let status = status.map_err(|error| {
            Interruption::gave_up(format!("error: cannot wait for a worker: {error}"))
        })?;
        if let Some(code @ (exit::USER_ERROR | exit::GAVE_UP)) = status.code() {
            return Err(Interruption { code, cause: None });
        }
        self.show_progress(1.0);
        message!(
            "worker {worker} lost ({}); its parts are computed by another worker",
            ending(status)
        );
        self.start_losses += 1;
        let lost = self.queue.lose(worker).map_err(|chunk| {
            format!("error: cannot predict part {chunk}: it has ended three workers")
        });
        lost.map_err(Interruption::gave_up)?;
        if self.start_losses >= START_LOSSES_MAX {
            let cause = "error: cannot predict: three workers in succession ended at their start";
            return Err(Interruption::gave_up(cause.to_owned()));
        }
        if self.queue.is_waiting() {
            self.start()
        } else {
            Ok(())
        }
    }

    /// Starts a worker in a process group of its own, so that only this command receives Ctrl-C.
    fn start(&mut self) -> Result<(), Interruption> {
        let failed = |error: std::io::Error| {
            Interruption::gave_up(format!("error: cannot start a worker: {error}"))
        };
        let mut command = Command::new(std::env::current_exe().map_err(failed)?);
        command.arg("__predict_worker");
        self.arguments.pass_to(&mut command);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = command.spawn().map_err(failed)?;
        let worker = self.started;
        self.started += 1;
        let streams = child.stdin.take().zip(child.stdout.take());
        let Some((chunks, output)) = streams else {
            return Err(failed(std::io::Error::other("it has no pipes")));
        };
        self.workers.insert(worker, WorkerProcess { child, chunks });
        let sender = self.reports.0.clone();
        let thread = std::thread::Builder::new().name(format!("worker {worker}"));
        thread
            .spawn(move || read(worker, output, &sender))
            .map_err(failed)?;
        Ok(())
    }
}

impl Drop for WorkerPool<'_> {
    fn drop(&mut self) {
        for process in self.workers.values_mut() {
            // A worker that has ended already cannot be killed.
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }
}

/// Reads the output of a worker until it ends.
fn read(worker: u64, output: ChildStdout, reports: &Sender<(u64, ChunkReport)>) {
    for line in BufReader::new(output).lines() {
        let report = match line.as_deref() {
            Ok(worker::READY) => ChunkReport::Ready,
            Ok(line) => match line.parse() {
                Ok(chunk) => ChunkReport::Finished(chunk),
                Err(_) => break,
            },
            Err(_) => break,
        };
        if reports.send((worker, report)).is_err() {
            return;
        }
    }
    // The pool may have ended.
    let _ = reports.send((worker, ChunkReport::Ended));
}

/// Describes how a process ended.
fn ending(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) => format!("killed by signal {signal}"),
        (None, code) => format!("exit code {}", code.unwrap_or_default()),
    }
}
