//! Streams between threads of one process: bounded byte queues, one waker per member.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Interest, Transport, Waker};

/// Maximum size of the queue from one member to another, in bytes.
const PIPE_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
struct InProcessWaker {
    signalled: Mutex<bool>,
    changed: Condvar,
}

impl Waker for InProcessWaker {
    fn wake(&self) {
        let mut signalled = lock(&self.signalled);
        if !*signalled {
            *signalled = true;
            self.changed.notify_all();
        }
    }
}

#[derive(Debug, Default)]
struct InProcessPipe {
    bytes: VecDeque<u8>,
    /// The writer has ended its stream or is gone.
    finished: bool,
    /// The reader is gone.
    abandoned: bool,
}

#[derive(Debug)]
struct InProcessPipes {
    size: usize,
    /// By writer and reader.
    pipes: Vec<Mutex<InProcessPipe>>,
    wakers: Vec<Arc<InProcessWaker>>,
}

impl InProcessPipes {
    fn pipe(&self, from: usize, to: usize) -> MutexGuard<'_, InProcessPipe> {
        lock(&self.pipes[from * self.size + to])
    }
}

/// One member's end of the streams.
#[derive(Debug)]
pub(crate) struct InProcess {
    rank: usize,
    wiring: Arc<InProcessPipes>,
}

/// Connects `size` members.
pub(crate) fn connect(size: usize) -> Vec<InProcess> {
    let wiring = Arc::new(InProcessPipes {
        size,
        pipes: (0..size * size).map(|_| Mutex::default()).collect(),
        wakers: (0..size).map(|_| Arc::default()).collect(),
    });
    (0..size)
        .map(|rank| InProcess {
            rank,
            wiring: Arc::clone(&wiring),
        })
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl InProcess {
    fn possible(&self, peer: usize, wanted: Interest) -> Interest {
        let mut possible = Interest::default();
        if wanted.read {
            let pipe = self.wiring.pipe(peer, self.rank);
            possible.read = !pipe.bytes.is_empty() || pipe.finished;
        }
        if wanted.write {
            let pipe = self.wiring.pipe(self.rank, peer);
            possible.write = pipe.bytes.len() < PIPE_BYTES_MAX || pipe.abandoned;
        }
        possible
    }
}

impl Transport for InProcess {
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.wiring.pipe(peer, self.rank);
        if pipe.bytes.is_empty() && !into.is_empty() {
            return if pipe.finished {
                Ok(0)
            } else {
                Err(ErrorKind::WouldBlock.into())
            };
        }
        let was_full = pipe.bytes.len() >= PIPE_BYTES_MAX;
        let count = into.len().min(pipe.bytes.len());
        let (front, back) = pipe.bytes.as_slices();
        let split = count.min(front.len());
        into[..split].copy_from_slice(&front[..split]);
        into[split..count].copy_from_slice(&back[..count - split]);
        pipe.bytes.drain(..count);
        drop(pipe);
        if was_full {
            self.wiring.wakers[peer].wake();
        }
        Ok(count)
    }

    fn write(&mut self, peer: usize, head: &[u8], body: &[u8]) -> io::Result<usize> {
        let mut pipe = self.wiring.pipe(self.rank, peer);
        if pipe.abandoned || pipe.finished {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let room = PIPE_BYTES_MAX.saturating_sub(pipe.bytes.len());
        if room == 0 && head.len() + body.len() > 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let from_head = head.len().min(room);
        let from_body = body.len().min(room - from_head);
        pipe.bytes.extend(&head[..from_head]);
        pipe.bytes.extend(&body[..from_body]);
        drop(pipe);
        self.wiring.wakers[peer].wake();
        Ok(from_head + from_body)
    }

    fn wait(&mut self, interest: &mut [Interest], limit: Option<Duration>) -> io::Result<()> {
        let end = limit.map(ronde_clock::deadline);
        let waker = Arc::clone(&self.wiring.wakers[self.rank]);
        loop {
            let mut any = std::mem::take(&mut *lock(&waker.signalled));
            let possible: Vec<Interest> = interest
                .iter()
                .enumerate()
                .map(|(peer, &wanted)| self.possible(peer, wanted))
                .collect();
            any |= possible.iter().any(|p| p.read || p.write);
            let left = end.map(ronde_clock::left);
            if any || left == Some(Duration::ZERO) {
                interest.copy_from_slice(&possible);
                return Ok(());
            }
            let signalled = lock(&waker.signalled);
            let poison = PoisonError::into_inner;
            if let Some(left) = left {
                let slept = waker
                    .changed
                    .wait_timeout_while(signalled, left, |signalled| !*signalled);
                drop(slept.unwrap_or_else(PoisonError::into_inner));
            } else {
                drop(
                    waker
                        .changed
                        .wait_while(signalled, |signalled| !*signalled)
                        .unwrap_or_else(poison),
                );
            }
        }
    }

    fn finish(&mut self, peer: usize) {
        self.wiring.pipe(self.rank, peer).finished = true;
        self.wiring.wakers[peer].wake();
    }

    fn waker(&self) -> Arc<dyn Waker> {
        Arc::clone(&self.wiring.wakers[self.rank]) as Arc<dyn Waker>
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        for peer in (0..self.wiring.size).filter(|&peer| peer != self.rank) {
            self.wiring.pipe(self.rank, peer).finished = true;
            self.wiring.pipe(peer, self.rank).abandoned = true;
            self.wiring.wakers[peer].wake();
        }
    }
}
