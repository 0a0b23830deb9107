//! [`Engine`]: what the progress thread of a group does, over any transport.
//!
//! Collectives run one after the other in the order of their calls; messages run beside them. What
//! arrives before it is wanted is kept, up to a bound, so that two members that first send and then
//! receive do not wait for each other. The first failure ends everything and is told to all.

mod failure;
mod incoming;
mod outgoing;
mod peer;
mod progress;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ronde_core::{Buffer, CollectiveError, DType, Generation};

use crate::clock;
use crate::flight::{Asks, Flight, FlightRecord};
use crate::frame::{Call, HEADER_BYTES, Header};
use crate::notice::Notice;
use crate::program::Member;
use crate::running::{Asked, Running};
use crate::transport::{Interest, Transport, Waker};
use crate::work::Completion;
use peer::Peer;

/// How many past calls are remembered to name them when a peer disagrees late.
const HISTORY: usize = 256;
/// How long a leaving member flushes what it has sent.
const FLUSH_MAX: Duration = Duration::from_secs(5);
/// How long a leaving member waits for the others to leave too.
const LINGER: Duration = Duration::from_millis(100);

/// What callers ask of the progress thread.
pub(crate) enum Command {
    Collective(Asked),
    Send {
        to: usize,
        call: Call,
        buffer: Buffer,
        completion: Completion,
    },
    Receive {
        from: usize,
        call: Call,
        buffer: Buffer,
        completion: Completion,
    },
    /// From now on operations may take this long.
    Limit(Duration),
    /// The group has failed elsewhere than on the progress thread, which is to tell the others.
    Fail {
        error: CollectiveError,
        notice: Option<Notice>,
    },
}

/// What is known of the group while waiting for a peer elsewhere than on the progress thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing is known to be wrong.
    Fine,
    /// The peer has left in good order.
    Left,
    /// The group has failed.
    Failed,
}

impl Command {
    /// Tells the recorder, which will hear of the end too.
    fn record(&mut self, flight: &Arc<Flight>) {
        let (asks, call, buffer, completion) = match self {
            Self::Collective(Asked {
                call,
                buffer,
                completion,
                ..
            }) => (Asks::Collective, call, buffer, completion),
            Self::Send {
                to,
                call,
                buffer,
                completion,
            } => (Asks::SendTo(*to as u32), call, buffer, completion),
            Self::Receive {
                from,
                call,
                buffer,
                completion,
            } => (Asks::ReceiveFrom(*from as u32), call, buffer, completion),
            Self::Limit(_) | Self::Fail { .. } => return,
        };
        let ticket = completion.ticket().unwrap_or_else(|| {
            let ticket = flight.issued(asks, *call, buffer.bytes().len());
            completion.recorded_by(flight, ticket);
            ticket
        });
        if asks == Asks::Collective {
            flight.streams(ticket);
        }
    }
}

#[derive(Default)]
struct Mail {
    commands: Vec<Command>,
    abort: Option<String>,
    leave: bool,
    failed: Option<CollectiveError>,
    /// Peers that have left in good order.
    left: Vec<usize>,
}

/// What callers and the progress thread share.
#[derive(Debug)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    waker: Arc<dyn Waker>,
    bytes: AtomicU64,
    payload_bytes: AtomicU64,
    flight: Arc<Flight>,
    shared_bytes: AtomicU64,
    shared_payload_bytes: AtomicU64,
    /// Somebody has left, or the group has failed.
    news: AtomicBool,
}

impl std::fmt::Debug for Mail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mail({} commands)", self.commands.len())
    }
}

impl Mailbox {
    pub(crate) fn new(waker: Arc<dyn Waker>, member: Member) -> Self {
        Self {
            mail: Mutex::default(),
            waker,
            bytes: AtomicU64::new(0),
            payload_bytes: AtomicU64::new(0),
            flight: Arc::new(Flight::new(member.rank, member.size)),
            shared_bytes: AtomicU64::new(0),
            shared_payload_bytes: AtomicU64::new(0),
            news: AtomicBool::new(false),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands over a command, or says why the group is over.
    pub(crate) fn post(&self, mut command: Command) -> Result<(), CollectiveError> {
        {
            let mut mail = self.lock();
            if let Some(error) = &mail.failed {
                return Err(error.clone());
            }
            // Under the lock, so that the recorder numbers collectives as they will be run.
            command.record(&self.flight);
            mail.commands.push(command);
        }
        self.waker.wake();
        Ok(())
    }

    pub(crate) fn abort(&self, reason: &str) {
        {
            let mut mail = self.lock();
            mail.abort = Some(reason.to_owned());
            // Also for those who do not wait for the progress thread.
            mail.failed.get_or_insert_with(|| CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason: reason.to_owned(),
            });
        }
        self.news.store(true, Ordering::SeqCst);
        self.waker.wake();
    }

    pub(crate) fn leave(&self) {
        self.lock().leave = true;
        self.waker.wake();
    }

    /// The progress thread has ended, by whatever cause: nothing may wait for it any more.
    pub(crate) fn close(&self) {
        let commands = {
            let mut mail = self.lock();
            mail.failed.get_or_insert_with(|| CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason: "its progress thread has ended".to_owned(),
            });
            std::mem::take(&mut mail.commands)
        };
        self.news.store(true, Ordering::SeqCst);
        // Dropping them completes them with an error.
        drop(commands);
    }

    /// The recorder.
    pub(crate) fn flight(&self) -> &Arc<Flight> {
        &self.flight
    }

    /// The last operations, and why the group has failed if it has.
    pub(crate) fn flight_record(&self) -> FlightRecord {
        let failure = self.lock().failed.as_ref().map(ToString::to_string);
        FlightRecord {
            failure,
            ..self.flight.record()
        }
    }

    /// Whether [`Mailbox::verdict`] may have something to say. Cheap.
    pub(crate) fn has_news(&self) -> bool {
        self.news.load(Ordering::Relaxed)
    }

    /// What is known of the group and one peer.
    pub(crate) fn verdict(&self, peer: usize) -> Verdict {
        if !self.news.load(Ordering::Acquire) {
            return Verdict::Fine;
        }
        let mail = self.lock();
        match &mail.failed {
            Some(_) => Verdict::Failed,
            None if mail.left.contains(&peer) => Verdict::Left,
            None => Verdict::Fine,
        }
    }

    /// How the group has failed.
    pub(crate) fn error(&self) -> Option<CollectiveError> {
        self.lock().failed.clone()
    }

    fn note_left(&self, peer: usize) {
        self.lock().left.push(peer);
        self.news.store(true, Ordering::SeqCst);
    }

    fn note_failed(&self, error: &CollectiveError) {
        self.lock().failed = Some(error.clone());
        self.news.store(true, Ordering::SeqCst);
    }

    /// Counts bytes that went to others elsewhere than through a stream.
    pub(crate) fn count(&self, bytes: u64, payload_bytes: u64) {
        // One thread at a time counts here: no need for one step.
        let add = |counter: &AtomicU64, bytes: u64| {
            counter.store(counter.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
        };
        add(&self.shared_bytes, bytes);
        add(&self.shared_payload_bytes, payload_bytes);
    }

    /// Bytes sent, with and without headers.
    pub(crate) fn bytes_sent(&self) -> (u64, u64) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (
            load(&self.bytes) + load(&self.shared_bytes),
            load(&self.payload_bytes) + load(&self.shared_payload_bytes),
        )
    }
}

/// Closes the mailbox when the progress thread ends, even by a panic.
struct Closing(Arc<Mailbox>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A receive that waits for its message.
struct Posted {
    call: Call,
    buffer: Buffer,
    completion: Completion,
    started: Instant,
    deadline: Instant,
}

/// A frame that came before it was wanted.
struct Early {
    header: Header,
    bytes: Vec<u8>,
}

impl Early {
    /// What it counts for in the bound on what is kept.
    fn weight(header: &Header) -> u64 {
        header.bytes.saturating_add(HEADER_BYTES as u64)
    }
}

/// Peer and tag.
type Address = (usize, u64);

/// The progress thread's state.
pub(crate) struct Engine {
    transport: Box<dyn Transport>,
    mailbox: Arc<Mailbox>,
    member: Member,
    generation: Generation,
    timeout: Duration,
    peers: Vec<Peer>,
    queue: VecDeque<Asked>,
    running: Option<Running>,
    next_sequence: u64,
    history: VecDeque<(u64, Call)>,
    posted: BTreeMap<Address, VecDeque<Posted>>,
    letters: BTreeMap<Address, VecDeque<Early>>,
    scratch: Option<Buffer>,
    failed: Option<CollectiveError>,
    /// The disagreement behind a failure, to tell the others both calls.
    disagreement: Option<Notice>,
    leaving: bool,
    /// Told once of the failure.
    reporter: Option<Reporter>,
}

/// What is done with the flight record when the group fails.
pub(crate) type Reporter = Box<dyn FnOnce(FlightRecord, &CollectiveError) + Send>;

impl Engine {
    pub(crate) fn new(
        transport: Box<dyn Transport>,
        mailbox: Arc<Mailbox>,
        member: Member,
        generation: Generation,
        timeout: Duration,
        reporter: Option<Reporter>,
    ) -> Self {
        Self {
            transport,
            mailbox,
            member,
            generation,
            timeout,
            peers: (0..member.size).map(|_| Peer::default()).collect(),
            queue: VecDeque::new(),
            running: None,
            next_sequence: 0,
            history: VecDeque::new(),
            posted: BTreeMap::new(),
            letters: BTreeMap::new(),
            scratch: Some(Buffer::host(DType::U8, 0)),
            failed: None,
            disagreement: None,
            leaving: false,
            reporter,
        }
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.member.rank.index();
        (0..self.member.size).filter(move |&peer| peer != me)
    }

    /// Runs until the group is left.
    pub(crate) fn run(mut self) {
        let _closing = Closing(Arc::clone(&self.mailbox));
        loop {
            self.take_mail();
            self.work_off();
            self.check_deadlines();
            if self.failed.is_some() {
                // The others hear of it now, not when something else happens here.
                self.flush();
            }
            self.report();
            if self.leaving {
                break;
            }
            let limit = self.next_deadline().map(clock::left);
            self.wait_and_read(limit);
        }
        self.depart();
    }

    /// Hands out the flight record after a failure, once, when all others have been told.
    fn report(&mut self) {
        if let Some(error) = &self.failed
            && !self
                .peers
                .iter()
                .any(|peer| peer.has_to_send() && !peer.blocked)
            && let Some(reporter) = self.reporter.take()
        {
            reporter(self.mailbox.flight_record(), error);
        }
    }

    /// Starts, advances and sends until nothing moves without news from outside.
    fn work_off(&mut self) {
        loop {
            let mut moved = self.advance();
            moved |= self.flush();
            if !moved {
                break;
            }
        }
    }

    fn take_mail(&mut self) {
        let (commands, abort, leave) = {
            let mut mail = self.mailbox.lock();
            let commands = std::mem::take(&mut mail.commands);
            (commands, mail.abort.take(), mail.leave)
        };
        for command in commands {
            self.accept(command);
        }
        if let Some(reason) = abort {
            self.fail(CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason,
            });
        }
        self.leaving |= leave;
    }

    fn wait_and_read(&mut self, limit: Option<Duration>) {
        let mut interest: Vec<Interest> = self.peers.iter().map(Peer::interest).collect();
        interest[self.member.rank.index()] = Interest::default();
        if let Err(error) = self.transport.wait(&mut interest, limit) {
            self.fail(CollectiveError::Connect {
                what: "waiting for other ranks".to_owned(),
                cause: error.to_string(),
            });
            self.leaving = true;
        }
        for (peer, ready) in interest.into_iter().enumerate() {
            self.peers[peer].blocked &= !ready.write;
            if ready.read {
                self.read(peer);
            }
        }
    }

    /// Leaves in good order: what was sent arrives, pending operations fail.
    fn depart(mut self) {
        let pending = self.running.is_some() || !self.queue.is_empty() || self.waits_for_messages();
        if pending && self.failed.is_none() {
            self.fail(CollectiveError::Aborted {
                by: "this rank".to_owned(),
                reason: "the group was dropped while operations were pending".to_owned(),
            });
        }
        if self.failed.is_none() {
            self.say_goodbye();
        }
        let end = clock::deadline(FLUSH_MAX.min(self.timeout));
        while self.peers.iter().any(Peer::has_to_send) && !clock::left(end).is_zero() {
            self.flush();
            self.wait_and_read(Some(clock::left(end).min(LINGER)));
        }
        self.report();
        for peer in self.others() {
            self.transport.finish(peer);
        }
        let end = clock::deadline(LINGER);
        while self.others().any(|p| self.peers[p].is_open()) && !clock::left(end).is_zero() {
            self.wait_and_read(Some(clock::left(end)));
        }
    }
}

#[cfg(test)]
mod tests;
