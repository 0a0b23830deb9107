//! [`ControlServer`]: the supervisor's end of the control socket.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ronde_core::{Event, Rank, WorldSize};
use ronde_protocol::{ToWorker, WorkerReport};

use crate::token::Token;
use crate::wire::{
    self, FromSupervisor, FromWorker, HELLO_BYTES_MAX, JobTerms, MessageReader, PROTOCOL,
    ReadError, WORKER_BYTES_MAX,
};

/// Time within which a connection must show the token.
const HELLO_MAX: Duration = Duration::from_secs(10);
/// Connections in addition to one per rank; further ones are closed immediately.
const CONNECTIONS_SPARE: usize = 32;
/// Maximum number of queued messages; beyond it the workers' sockets fill up.
const MESSAGES_MAX: usize = 4_096;
/// Time limit for sending one message to a worker.
const WRITE_MAX: Duration = Duration::from_secs(2);

/// An event on a worker's connection.
#[derive(Debug)]
pub(crate) enum ControlEvent {
    /// The worker showed the token.
    Linked(Rank),
    /// The worker sent a report.
    Reported(Rank, Box<WorkerReport>),
    /// The worker recorded an event.
    Recorded(Rank, Event),
    /// The connection of this worker ended, with the reason if the worker caused it.
    Unlinked(Rank, u64, Option<String>),
}

/// A listening socket on this machine, with a thread for it and one per connection.
pub(crate) struct ControlServer {
    address: SocketAddr,
    shared: Arc<ControlShared>,
    messages: Receiver<ControlEvent>,
    accepting: Option<JoinHandle<()>>,
}

struct ControlShared {
    token: Token,
    world_size: WorldSize,
    terms: JobTerms,
    closing: AtomicBool,
    state: Mutex<ControlState>,
}

#[derive(Default)]
struct ControlState {
    /// All connections by number, so that they can be closed.
    open: BTreeMap<u64, Arc<TcpStream>>,
    /// The connections of the ranks.
    workers: BTreeMap<Rank, WorkerConnection>,
    /// The worker that was started for each rank.
    expected: BTreeMap<Rank, ExpectedWorker>,
    threads: Vec<JoinHandle<()>>,
    /// The reason for the end of the job, for workers that connect too late.
    stopped: Option<String>,
}

/// The connection of a rank's worker.
struct WorkerConnection {
    stream: Arc<TcpStream>,
    worker: u64,
    pid: u32,
}

/// A worker that may connect.
#[derive(Clone)]
struct ExpectedWorker {
    worker: u64,
    /// Its certificate, if the job has an authority.
    identity: Option<String>,
}

impl ControlServer {
    /// Listens on a free port of 127.0.0.1.
    pub(crate) fn start(
        token: Token,
        world_size: WorldSize,
        terms: JobTerms,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(ControlShared {
            token,
            world_size,
            terms,
            closing: AtomicBool::new(false),
            state: Mutex::default(),
        });
        let (sender, messages) = sync_channel(MESSAGES_MAX);
        let accepting = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&listener, &shared, &sender))
        };
        Ok(Self {
            address,
            shared,
            messages,
            accepting: Some(accepting),
        })
    }

    /// Returns the listening address.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the next message, if there is one.
    pub(crate) fn next(&self) -> Option<ControlEvent> {
        self.messages.try_recv().ok()
    }

    /// Returns whether a worker has sent data that was not read yet.
    pub(crate) fn has_unread(&self, rank: Rank) -> bool {
        let stream = self.shared.stream(rank);
        stream
            .is_some_and(|stream| rustix::io::ioctl_fionread(&*stream).is_ok_and(|bytes| bytes > 0))
    }

    /// Accepts only this worker at a rank from now on.
    pub(crate) fn expect(&self, rank: Rank, worker: u64, identity: Option<String>) {
        let mut state = self.shared.lock();
        let expected = ExpectedWorker { worker, identity };
        state.expected.insert(rank, expected);
    }

    /// Sends a coordinator's message to a worker.
    pub(crate) fn send_to_worker(&self, rank: Rank, body: ToWorker) {
        self.send(rank, &FromSupervisor::Coordinator { body });
    }

    /// Notifies all workers, including those that connect later, that the job ends, and whether it
    /// failed.
    pub(crate) fn stop(&self, reason: &str, failed: bool) {
        let ranks: Vec<Rank> = {
            let mut state = self.shared.lock();
            state.stopped.get_or_insert_with(|| reason.to_owned());
            state.workers.keys().copied().collect()
        };
        for rank in ranks {
            self.send(
                rank,
                &FromSupervisor::Stop {
                    reason: reason.to_owned(),
                    failed,
                },
            );
        }
    }

    fn send(&self, rank: Rank, message: &FromSupervisor) {
        let stream = self.shared.stream(rank);
        if let Some(stream) = stream
            && wire::send(&stream, message).is_err()
        {
            // The message may be incomplete, so the connection is unusable; its reader reports
            // this.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes all connections and waits for the threads, which cannot block any more.
    pub(crate) fn close(&mut self) {
        let Some(accepting) = self.accepting.take() else {
            return;
        };
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the accepting thread. If that fails because the machine has no more sockets, the
        // thread is detached.
        let woken = TcpStream::connect_timeout(&self.address, Duration::from_secs(1)).is_ok();
        if woken {
            let _ = accepting.join();
        }
        let threads = {
            let mut state = self.shared.lock();
            for stream in state.open.values() {
                let _ = stream.shutdown(Shutdown::Both);
            }
            std::mem::take(&mut state.threads)
        };
        // A thread may be waiting for space in the queue.
        while threads.iter().any(|thread| !thread.is_finished()) {
            while self.next().is_some() {}
            ronde_clock::pause(Duration::from_millis(1));
        }
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.close();
    }
}

impl ControlShared {
    fn lock(&self) -> MutexGuard<'_, ControlState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection of a rank.
    fn stream(&self, rank: Rank) -> Option<Arc<TcpStream>> {
        let state = self.lock();
        let connection = state.workers.get(&rank)?;
        Some(Arc::clone(&connection.stream))
    }
}

fn accept(
    listener: &TcpListener,
    shared: &Arc<ControlShared>,
    messages: &SyncSender<ControlEvent>,
) {
    for number in 0_u64.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => Arc::new(stream),
            Err(_) => {
                if shared.closing.load(Ordering::SeqCst) {
                    return;
                }
                // Usually out of file descriptors, which may be temporary.
                ronde_clock::pause(Duration::from_millis(10));
                continue;
            }
        };
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let mut state = shared.lock();
        state.threads.retain(|thread| !thread.is_finished());
        if state.open.len() >= shared.world_size.len() + CONNECTIONS_SPARE {
            continue;
        }
        state.open.insert(number, Arc::clone(&stream));
        let (shared, messages) = (Arc::clone(shared), messages.clone());
        state.threads.push(thread::spawn(move || {
            serve(&stream, &shared, &messages);
            shared.lock().open.remove(&number);
        }));
    }
}

/// Serves one connection from its hello to its end.
fn serve(stream: &Arc<TcpStream>, shared: &ControlShared, messages: &SyncSender<ControlEvent>) {
    let mut reader = MessageReader::new(stream);
    let Ok((rank, worker, identity)) = admit(stream, shared, &mut reader) else {
        let _ = stream.shutdown(Shutdown::Both);
        return;
    };
    // Sent before the welcome: the supervisor must see the link before the end of the process.
    let mut sent = messages.send(ControlEvent::Linked(rank)).map_err(drop);
    let welcome = FromSupervisor::Welcome {
        protocol: PROTOCOL,
        terms: Box::new(shared.terms.clone()),
        identity,
    };
    sent = sent.and_then(|()| wire::send(stream, &welcome).map_err(drop));
    let problem = loop {
        if sent.is_err() {
            break None;
        }
        let message = match reader.next(WORKER_BYTES_MAX, None) {
            Ok(FromWorker::Event { body }) => ControlEvent::Recorded(rank, body),
            Ok(FromWorker::Report { body }) => {
                if body.member.worker.0 != worker {
                    break Some("a report of another worker".to_owned());
                }
                ControlEvent::Reported(rank, Box::new(body))
            }
            Ok(FromWorker::Hello { .. }) => break Some("a second hello".to_owned()),
            Err(ReadError::Broken(problem)) => break Some(problem),
            Err(_) => break None,
        };
        sent = messages.send(message).map_err(drop);
    };
    {
        let workers = &mut shared.lock().workers;
        let is_mine = |open: &WorkerConnection| Arc::ptr_eq(&open.stream, stream);
        // Another process may have taken over this rank.
        if workers.get(&rank).is_some_and(is_mine) {
            workers.remove(&rank);
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
    // An error means that the supervisor no longer needs the message.
    let _ = messages.send(ControlEvent::Unlinked(rank, worker, problem));
}

/// Reads the hello, and registers or refuses the worker.
fn admit(
    stream: &Arc<TcpStream>,
    shared: &ControlShared,
    reader: &mut MessageReader<'_>,
) -> Result<(Rank, u64, Option<String>), ()> {
    let setup = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_write_timeout(Some(WRITE_MAX)));
    if setup.is_err() {
        return Err(());
    }
    let refuse = |reason: String| {
        let _ = wire::send(stream, &FromSupervisor::Refused { reason });
        Err(())
    };
    let (protocol, token, rank, pid, worker) =
        match reader.next(HELLO_BYTES_MAX, Some(ronde_clock::now() + HELLO_MAX)) {
            Ok(FromWorker::Hello {
                protocol,
                token,
                rank,
                pid,
                worker,
            }) => (protocol, token, rank, pid, worker),
            Ok(_) | Err(ReadError::Broken(_)) => {
                return refuse("the first message must be a hello".to_owned());
            }
            Err(_) => return Err(()),
        };
    let rank = match judge(shared, protocol, &token, rank) {
        Ok(rank) => rank,
        Err(reason) => return refuse(reason),
    };
    let mut state = shared.lock();
    if let Some(reason) = state.stopped.clone() {
        drop(state);
        // This worker has not observed a failure.
        let failed = false;
        let _ = wire::send(stream, &FromSupervisor::Stop { reason, failed });
        return Err(());
    }
    let expected = state.expected.get(&rank).cloned();
    let Some(expected) = expected.filter(|expected| expected.worker == worker) else {
        drop(state);
        return refuse(format!("another process already runs as rank {rank}"));
    };
    // A child of the worker inherits its variables.
    let is_taken = |open: &WorkerConnection| open.worker == worker && open.pid != pid;
    if state.workers.get(&rank).is_some_and(is_taken) {
        drop(state);
        return refuse(format!("rank {rank} is already connected"));
    }
    let connection = WorkerConnection {
        stream: Arc::clone(stream),
        worker,
        pid,
    };
    if let Some(old) = state.workers.insert(rank, connection) {
        // It belongs to the previous process of this rank, or to an earlier attempt of this one.
        let _ = old.stream.shutdown(Shutdown::Both);
    }
    Ok((rank, worker, expected.identity))
}

/// Validates a hello. The token is checked first, so that a client without it learns nothing else.
fn judge(shared: &ControlShared, protocol: u32, token: &str, rank: u32) -> Result<Rank, String> {
    if !shared.token.matches(token) {
        return Err("wrong token: this worker belongs to another job".to_owned());
    }
    if protocol != PROTOCOL {
        return Err(format!(
            "unsupported control protocol {protocol}: expected {PROTOCOL}"
        ));
    }
    if rank >= shared.world_size.get() {
        return Err(format!(
            "invalid rank {rank}: the world size is {}",
            shared.world_size
        ));
    }
    Ok(Rank(rank))
}
