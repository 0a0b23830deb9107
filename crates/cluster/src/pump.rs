//! [`Pump`]: one thread that reads the output of all ranks of this machine.

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

use crate::clock;
use crate::launcher::{LogSink, OutputStream};
use crate::lines::LineCutter;

/// Lines of standard error that are kept per rank.
const LINES_KEPT: usize = 10;
/// Most bytes of a kept line.
const KEPT_BYTES_MAX: usize = 1_024;
/// How often new pipes and the end are looked for.
const TURN: Duration = Duration::from_millis(20);

/// The thread and what it has seen.
pub(crate) struct Pump {
    orders: Sender<Order>,
    last: Arc<Mutex<Kept>>,
    thread: Option<JoinHandle<()>>,
    done: Receiver<()>,
}

type Kept = BTreeMap<Rank, VecDeque<String>>;

enum Order {
    Read(Source),
    /// Read what is there and end; whatever is not there by then is not waited for.
    Finish(Instant),
}

/// One output of one rank.
struct Source {
    rank: Rank,
    pipe: Pipe,
    cutter: LineCutter,
    log: Arc<dyn LogSink>,
}

/// A pipe from a child.
enum Pipe {
    Stdout(ChildStdout),
    Stderr(ChildStderr),
}

impl Pipe {
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

impl Pump {
    pub(crate) fn start() -> Self {
        let (orders, receiver) = channel();
        let (ended, done) = channel();
        let last = Arc::<Mutex<Kept>>::default();
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
        let pipes = [pipes.0.map(Pipe::Stdout), pipes.1.map(Pipe::Stderr)];
        for pipe in pipes.into_iter().flatten() {
            let source = Source {
                rank,
                pipe,
                cutter: LineCutter::default(),
                log: Arc::clone(log),
            };
            // The thread ends only after `finish`, and then nothing more is to be read.
            let _ = self.orders.send(Order::Read(source));
        }
    }

    /// The last lines of a rank's standard error.
    pub(crate) fn last_lines(&self, rank: Rank) -> Vec<String> {
        lock(&self.last)
            .get(&rank)
            .map(|lines| lines.iter().cloned().collect())
            .unwrap_or_default()
    }

    /// Reads to the end of all pipes, at most for `timeout`, and ends the thread. A thread that a
    /// blocked sink holds is left behind: it holds nothing but the pipes.
    pub(crate) fn finish(&mut self, timeout: Duration) {
        let Some(thread) = self.thread.take() else {
            return;
        };
        let _ = self.orders.send(Order::Finish(clock::now() + timeout));
        // Nothing is ever sent: the end of the thread is what is waited for.
        let patience = timeout + 5 * TURN;
        if self.done.recv_timeout(patience) == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
        {
            let _ = thread.join();
        }
    }
}

fn lock(last: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    last.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(orders: &Receiver<Order>, last: &Mutex<Kept>) {
    let mut sources: Vec<Source> = Vec::new();
    let mut finish_at = None;
    loop {
        loop {
            match orders.try_recv() {
                Ok(Order::Read(source)) => sources.push(source),
                Ok(Order::Finish(at)) => finish_at = Some(at),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    finish_at.get_or_insert_with(clock::now);
                    break;
                }
            }
        }
        let late = finish_at.is_some_and(|at| clock::now() >= at);
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
fn turn(sources: &mut Vec<Source>, last: &Mutex<Kept>) {
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
                clock::pause(TURN);
                return;
            }
        }
    };
    let mut ready = ready.into_iter();
    sources.retain_mut(|source| !ready.next().unwrap_or(false) || source.read(last));
}

impl Source {
    /// Reads once; false at the end of the pipe.
    fn read(&mut self, last: &Mutex<Kept>) -> bool {
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

    fn end(&mut self, last: &Mutex<Kept>) {
        let (rank, stream, log) = (self.rank, self.pipe.stream(), &self.log);
        self.cutter
            .finish(|line| deliver(last, rank, stream, log, line));
    }
}

fn deliver(
    last: &Mutex<Kept>,
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
