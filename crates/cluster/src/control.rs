//! [`Control`]: the supervisor's end of the control socket.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ronde_core::{Assignment, Event, Rank, WorldSize};
use ronde_elastic::{WorkerReport, ToWorker};

use crate::clock;
use crate::token::Token;
use crate::wire::{
    self, FromSupervisor, FromWorker, HELLO_BYTES_MAX, MessageReader, PROTOCOL, ReadError, Terms,
    WORKER_BYTES_MAX,
};

/// How long a connection may take to show the token.
const HELLO_MAX: Duration = Duration::from_secs(10);
/// Connections beside one per rank; more are closed at once.
const CONNECTIONS_SPARE: usize = 32;
/// Messages that wait for the supervisor at most; beyond that the workers' sockets fill up.
const MESSAGES_MAX: usize = 4_096;
/// How long one message to a worker may take.
const WRITE_MAX: Duration = Duration::from_secs(2);

/// What a worker did.
#[derive(Debug)]
pub(crate) enum Message {
    /// It showed the token.
    Linked(Rank),
    /// Its data plane listens.
    Ready(Rank, SocketAddr),
    /// It says how it is.
    Reported(Rank, Box<WorkerReport>),
    /// It recorded an event.
    Recorded(Rank, Event),
    /// Its connection is over: why, when that was its own fault. With the name of the process in a job
    /// that goes on when workers die.
    Unlinked(Rank, Option<u64>, Option<String>),
}

/// A listening socket on this machine, a thread for it and one for each connection.
pub(crate) struct Control {
    address: SocketAddr,
    shared: Arc<Shared>,
    messages: Receiver<Message>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    token: Token,
    world_size: WorldSize,
    terms: Option<Terms>,
    closing: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// All connections by number, so that they can be closed.
    open: BTreeMap<u64, Arc<TcpStream>>,
    /// The connections of the ranks.
    workers: BTreeMap<Rank, Arc<TcpStream>>,
    /// Which process has each place, in a job that goes on when workers die, and its certificate where
    /// the job has an authority.
    expected: BTreeMap<Rank, (u64, Option<String>)>,
    threads: Vec<JoinHandle<()>>,
    /// Why the job ends: what a worker hears that comes too late.
    stopped: Option<String>,
}

impl Control {
    /// Listens on a free port of 127.0.0.1.
    pub(crate) fn start(
        token: Token,
        world_size: WorldSize,
        terms: Option<Terms>,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
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

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The next message, if there is one.
    pub(crate) fn next(&self) -> Option<Message> {
        self.messages.try_recv().ok()
    }

    /// From now on only this process is welcome at a place.
    pub(crate) fn expect(&self, rank: Rank, worker: u64, identity: Option<String>) {
        let mut state = self.shared.lock();
        state.expected.insert(rank, (worker, identity));
    }

    /// Says something to a worker of a job that goes on when workers die.
    pub(crate) fn tell(&self, rank: Rank, body: ToWorker) {
        self.send(rank, &FromSupervisor::Told { body });
    }

    /// Sends a worker its place.
    pub(crate) fn assign(&self, assignment: Assignment) {
        let rank = assignment.rank;
        self.send(rank, &FromSupervisor::Assignment(assignment.into()));
    }

    /// Tells all workers that the job ends, those included that come later, and whether it has failed.
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
        let stream = self.shared.lock().workers.get(&rank).cloned();
        if let Some(stream) = stream
            && wire::send(&stream, message).is_err()
        {
            // Half a message may be out: the connection is of no use any more, and its reader tells.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Closes everything and waits for the threads, which nothing can hold any more.
    pub(crate) fn close(&mut self) {
        let Some(accepting) = self.accepting.take() else {
            return;
        };
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the accepting thread. It cannot be woken when the machine is out of sockets: then it
        // is left behind.
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
        // A thread may wait for room in the queue.
        while threads.iter().any(|thread| !thread.is_finished()) {
            while self.next().is_some() {}
            clock::pause(Duration::from_millis(1));
        }
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, messages: &SyncSender<Message>) {
    for number in 0_u64.. {
        let stream = match listener.accept() {
            Ok((stream, _)) => Arc::new(stream),
            Err(_) => {
                if shared.closing.load(Ordering::SeqCst) {
                    return;
                }
                // Out of file descriptors, as a rule: that may pass.
                clock::pause(Duration::from_millis(10));
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

/// One connection, from its hello to its end.
fn serve(stream: &Arc<TcpStream>, shared: &Shared, messages: &SyncSender<Message>) {
    let mut reader = MessageReader::new(stream);
    let Ok((rank, worker, identity)) = admit(stream, shared, &mut reader) else {
        let _ = stream.shutdown(Shutdown::Both);
        return;
    };
    // Before the welcome: the supervisor sees the end of a process after its link, never before.
    let mut sent = messages.send(Message::Linked(rank)).map_err(drop);
    let welcome = FromSupervisor::Welcome {
        protocol: PROTOCOL,
        terms: shared.terms.clone().map(Box::new),
        identity,
    };
    sent = sent.and_then(|()| wire::send(stream, &welcome).map_err(drop));
    let problem = loop {
        if sent.is_err() {
            break None;
        }
        let message = match reader.next(WORKER_BYTES_MAX, None) {
            Ok(FromWorker::Ready { data_address }) => Message::Ready(rank, data_address),
            Ok(FromWorker::Event { body }) => Message::Recorded(rank, body),
            Ok(FromWorker::Report { body }) => {
                let named = Some(body.member.worker.0);
                if shared.terms.is_none() || named != worker {
                    break Some("a report of another worker".to_owned());
                }
                Message::Reported(rank, Box::new(body))
            }
            Ok(FromWorker::Hello { .. }) => break Some("a second hello".to_owned()),
            Err(ReadError::Broken(problem)) => break Some(problem),
            Err(_) => break None,
        };
        sent = messages.send(message).map_err(drop);
    };
    {
        let workers = &mut shared.lock().workers;
        let is_mine = |open: &Arc<TcpStream>| Arc::ptr_eq(open, stream);
        // Another process may have this place already.
        if workers.get(&rank).is_some_and(is_mine) {
            workers.remove(&rank);
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
    // The supervisor does not listen any more: then it need not know.
    let _ = messages.send(Message::Unlinked(rank, worker, problem));
}

/// Reads the hello, refuses it or enters the worker.
fn admit(
    stream: &Arc<TcpStream>,
    shared: &Shared,
    reader: &mut MessageReader<'_>,
) -> Result<(Rank, Option<u64>, Option<String>), ()> {
    let setup = stream
        .set_nodelay(true)
        .and_then(|()| stream.set_write_timeout(Some(WRITE_MAX)));
    if setup.is_err() {
        return Err(());
    }
    let hello = reader.next(HELLO_BYTES_MAX, Some(clock::now() + HELLO_MAX));
    let (judged, worker) = match hello {
        Ok(FromWorker::Hello {
            protocol,
            token,
            rank,
            worker,
            ..
        }) => (judge(shared, protocol, &token, rank), worker),
        Ok(_) | Err(ReadError::Broken(_)) => {
            (Err("the first message must be a hello".to_owned()), None)
        }
        Err(_) => return Err(()),
    };
    let rank = match judged {
        Ok(rank) => rank,
        Err(reason) => {
            let _ = wire::send(stream, &FromSupervisor::Refused { reason });
            return Err(());
        }
    };
    let mut state = shared.lock();
    if let Some(reason) = state.stopped.clone() {
        drop(state);
        // It has seen nothing.
        let failed = false;
        let _ = wire::send(stream, &FromSupervisor::Stop { reason, failed });
        return Err(());
    }
    let expected = state.expected.get(&rank).cloned().unzip();
    if shared.terms.is_some() && expected.0 != worker {
        drop(state);
        let reason = format!("another process already runs as rank {rank}");
        let _ = wire::send(stream, &FromSupervisor::Refused { reason });
        return Err(());
    }
    if shared.terms.is_none() && state.workers.contains_key(&rank) {
        drop(state);
        let reason = format!("rank {rank} is connected already");
        let _ = wire::send(stream, &FromSupervisor::Refused { reason });
        return Err(());
    }
    if let Some(old) = state.workers.insert(rank, Arc::clone(stream)) {
        // Of the process that had this place before, or of an earlier try of this one.
        let _ = old.shutdown(Shutdown::Both);
    }
    Ok((rank, worker, expected.1.flatten()))
}

/// Whether a hello is good. The token comes first: who does not know it learns nothing else.
fn judge(shared: &Shared, protocol: u32, token: &str, rank: u32) -> Result<Rank, String> {
    if !shared.token.matches(token) {
        return Err("wrong token: this worker belongs to another job".to_owned());
    }
    if protocol != PROTOCOL {
        return Err(format!(
            "control protocol {protocol}; the supervisor speaks {PROTOCOL}"
        ));
    }
    if rank >= shared.world_size.get() {
        return Err(format!("rank {rank} in a world of {}", shared.world_size));
    }
    Ok(Rank(rank))
}
