//! [`OutputPump`]: a thread that reads the output of all ranks on this machine.

use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{ChildStderr, ChildStdout};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ronde_core::Rank;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::launcher::{LogSink, OutputStream};
use crate::lines::LineCutter;

/// Number of lines of standard error kept per rank.
const LINES_KEPT: usize = 10;
/// Maximum length of a kept line, in bytes.
const KEPT_BYTES_MAX: usize = 1_024;
/// Interval for checking for new pipes and for the end.
const TURN: Duration = Duration::from_millis(20);

/// The reading thread and its results.
pub(crate) struct OutputPump {
    orders: Sender<PumpCommand>,
    last: Arc<Mutex<LastLines>>,
    thread: Option<JoinHandle<()>>,
    done: Receiver<()>,
}

type LastLines = BTreeMap<Rank, VecDeque<String>>;

enum PumpCommand {
    Read(OutputSource),
    /// Read the available output and end; later output is not waited for.
    Finish(Instant),
}

/// One output stream of one rank.
struct OutputSource {
    rank: Rank,
    pipe: ChildPipe,
    cutter: LineCutter,
    log: Arc<dyn LogSink>,
}

/// A pipe from a child.
enum ChildPipe {
    Stdout(ChildStdout),
    Stderr(ChildStderr),
}

impl ChildPipe {
    fn stream(&self) -> OutputStream {
        match self {
            Self::Stdout(_) => OutputStream::Stdout,
            Self::Stderr(_) => OutputStream::Stderr,
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Stdout(pipe) => pipe.as_fd(),
            Self::Stderr(pipe) => pipe.as_fd(),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Self::Stdout(pipe) => pipe.read(bytes),
            Self::Stderr(pipe) => pipe.read(bytes),
        }
    }
}

impl OutputPump {
    pub(crate) fn start() -> Self {
        let (orders, receiver) = channel();
        let (ended, done) = channel();
        let last = Arc::<Mutex<LastLines>>::default();
        let kept = Arc::clone(&last);
        let thread = thread::spawn(move || {
            run(&receiver, &kept);
            drop(ended);
        });
        Self {
            orders,
            last,
            thread: Some(thread),
            done,
        }
    }

    /// Reads a rank's standard output and error from now on.
    pub(crate) fn add(
        &self,
        rank: Rank,
        pipes: (Option<ChildStdout>, Option<ChildStderr>),
        log: &Arc<dyn LogSink>,
    ) {
        let pipes = [
            pipes.0.map(ChildPipe::Stdout),
            pipes.1.map(ChildPipe::Stderr),
        ];
        for pipe in pipes.into_iter().flatten() {
            let source = OutputSource {
                rank,
                pipe,
                cutter: LineCutter::default(),
                log: Arc::clone(log),
            };
            // The thread ends only after `finish`, after which nothing needs to be read.
            let _ = self.orders.send(PumpCommand::Read(source));
        }
    }

    /// Returns the last lines of a rank's standard error.
    pub(crate) fn last_lines(&self, rank: Rank) -> Vec<String> {
        lock(&self.last)
            .get(&rank)
            .map(|lines| lines.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Reads to the end of all pipes, at most for `timeout`, and ends the thread. A thread that is
    /// blocked in a sink is detached: it holds nothing but the pipes.
    pub(crate) fn finish(&mut self, timeout: Duration) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let _ = self
            .orders
            .send(PumpCommand::Finish(ronde_clock::now() + timeout));
        // Nothing is ever sent on this channel: it is closed when the thread ends.
        let limit = timeout + 5 * TURN;
        if self.done.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected) {
            let _ = thread.join();
        }
    }
}

fn lock(last: &Mutex<LastLines>) -> MutexGuard<'_, LastLines> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(orders: &Receiver<PumpCommand>, last: &Mutex<LastLines>) {
    let mut sources: Vec<OutputSource> = Vec::new();
    let mut finish_at = None;
    loop {
        loop {
            match orders.try_recv() {
                Ok(PumpCommand::Read(source)) => sources.push(source),
                Ok(PumpCommand::Finish(at)) => finish_at = Some(at),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    finish_at.get_or_insert_with(ronde_clock::now);
                    break;
                }
            }
        }
        let late = finish_at.is_some_and(|at| ronde_clock::now() >= at);
        if finish_at.is_some() && (sources.is_empty() || late) {
            break;
        }
        turn(&mut sources, last);
    }
    for source in &mut sources {
        source.end(last);
    }
}

/// Waits for output, at most one turn, and reads it.
fn turn(sources: &mut Vec<OutputSource>, last: &Mutex<LastLines>) {
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: i64::from(TURN.subsec_nanos()),
    };
    let ready: Vec<bool> = {
        let mut fds: Vec<PollFd<'_>> = sources
            .iter()
            .map(|source| PollFd::from_borrowed_fd(source.pipe.fd(), PollFlags::IN))
            .collect();
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) => fds.iter().map(|fd| !fd.revents().is_empty()).collect(),
            Err(_) => {
                ronde_clock::pause(TURN);
                return;
            }
        }
    };
    let mut ready = ready.into_iter();
    sources.retain_mut(|source| !ready.next().unwrap_or(false) || source.read(last));
}

impl OutputSource {
    /// Reads once; returns false at the end of the pipe.
    fn read(&mut self, last: &Mutex<LastLines>) -> bool {
        let mut bytes = [0_u8; 16 << 10];
        match self.pipe.read(&mut bytes) {
            Ok(0) => {
                self.end(last);
                false
            }
            Ok(n) => {
                let (rank, stream, log) = (self.rank, self.pipe.stream(), &self.log);
                self.cutter
                    .feed(&bytes[..n], |line| deliver(last, rank, stream, log, line));
                true
            }
            Err(error) => error.kind() == ErrorKind::Interrupted,
        }
    }

    fn end(&mut self, last: &Mutex<LastLines>) {
        let (rank, stream, log) = (self.rank, self.pipe.stream(), &self.log);
        self.cutter
            .finish(|line| deliver(last, rank, stream, log, line));
    }
}

fn deliver(
    last: &Mutex<LastLines>,
    rank: Rank,
    stream: OutputStream,
    log: &Arc<dyn LogSink>,
    line: &str,
) {
    if stream == OutputStream::Stderr {
        let mut last = lock(last);
        let lines = last.entry(rank).or_default();
        if lines.len() == LINES_KEPT {
            lines.pop_front();
        }
        lines.push_back(line[..line.floor_char_boundary(KEPT_BYTES_MAX)].to_owned());
    }
    log.line(rank, stream, line);
}
