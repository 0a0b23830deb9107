//! Joining over TCP: every member dials the lower ranks and listens for the higher ones.

mod connection;
mod gathered;
mod pool;
mod resume;

use std::cmp::Ordering;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ronde_core::byte_reader::ByteProblem;
use ronde_core::{CollectiveError, GroupRank};
use ronde_identity::IdentityError;

use crate::config::GroupConfig;
use crate::config::JoinCancellation;
use crate::hello::{HELLO, JoinHello};
use crate::program::invalid;
use crate::security::TlsKeys;
use crate::transport::PeerStream;
use connection::CertificateProblem;
pub(crate) use connection::transport;
use gathered::{GatheredStreams, kept_after};
pub use pool::ConnectionPool;
pub(crate) use pool::KeptStream;
use resume::{Resumption, ResumptionStop};
use ronde_wire::{HelloProblem, PREFIX_BYTES, WireStream};

/// How long an unknown connection on the listening port may take to identify itself.
const STRANGER_MAX: Duration = Duration::from_secs(5);
/// How long threads that dial may take after the deadline to report their error.
const DETAIL: Duration = Duration::from_millis(100);
/// Unknown connections that are read at once, besides those of members.
const STRANGERS_MAX: usize = 64;
/// Maximum number of connections between two members.
const CONNECTIONS_MAX: usize = 16;
/// Connections between two members that may be on different hosts.
const FAR_CONNECTIONS: usize = 2;
/// Interval between checks of the listener, and between attempts to dial an address that refuses.
const PAUSE: Duration = Duration::from_millis(5);

/// Listens on a free port of `address`, and returns the listener and its address.
///
/// # Errors
/// [`CollectiveError::Connect`] with the system's error.
pub fn bind(address: IpAddr) -> Result<(TcpListener, SocketAddr), CollectiveError> {
    let what = || format!("cannot listen on {address}");
    let listener = TcpListener::bind((address, 0)).map_err(|e| failed(what(), &e))?;
    let at = listener.local_addr().map_err(|e| failed(what(), &e))?;
    Ok((listener, at))
}

/// Returns the number of connections between two members: the configured number, or else 1 if
/// all members listen on loopback addresses and [`FAR_CONNECTIONS`] if they do not.
pub(crate) fn connections(
    config: &GroupConfig,
    peers: &[SocketAddr],
) -> Result<usize, CollectiveError> {
    let far = peers.iter().any(|at| !at.ip().is_loopback());
    let chosen = if far { FAR_CONNECTIONS } else { 1 };
    let connections = config.connections.unwrap_or(chosen);
    if (1..=CONNECTIONS_MAX).contains(&connections) {
        return Ok(connections);
    }
    let problem = format!(
        "invalid number of connections `{connections}`: expected 1 to {CONNECTIONS_MAX} to each member"
    );
    Err(invalid("joining a group", problem))
}

fn failed(what: String, cause: &dyn ToString) -> CollectiveError {
    CollectiveError::Connect {
        what,
        cause: cause.to_string(),
    }
}

/// Returns the error for a member that did not connect before the deadline.
fn unreachable(peer: usize, what: String, cause: &dyn ToString) -> CollectiveError {
    CollectiveError::Unreachable {
        peer: GroupRank(peer as u32),
        what,
        cause: cause.to_string(),
    }
}

/// The outcome of one connection.
enum ConnectionOutcome {
    /// A connection to a member, with its number.
    Member(usize, usize, WireStream),
    /// Streams to members, kept from an earlier group, on which the hellos were exchanged.
    Resumed(Vec<(usize, PeerStream)>),
    /// A kept stream to a member that can no longer be used.
    Lost(usize),
    /// A peer that was refused, and the cause; the expected member may still connect.
    Refused(String),
    /// Joining has failed.
    Failed(CollectiveError),
}

/// This member while it joins.
struct Joiner {
    hello: JoinHello,
    /// The encoded hello of each connection.
    greetings: Vec<Vec<u8>>,
    /// Whether connections within this host may be plain once TLS has authenticated their peers.
    plain_within_host: bool,
    keys: Option<TlsKeys>,
    end: Instant,
    dialled: DialledSockets,
}

/// The streams to all other members, and the refusals that happened while they were made.
pub(crate) struct Connections {
    /// By group rank; `None` for this member.
    pub(crate) streams: Vec<Option<PeerStream>>,
    pub(crate) refused: Vec<String>,
}

impl Connections {
    /// Returns by group rank whether a member is on this host.
    pub(crate) fn within_host(&self) -> Vec<bool> {
        let is_local = |stream: &PeerStream| stream.is_within_host();
        let streams = self.streams.iter();
        streams
            .map(|stream| stream.as_ref().is_some_and(is_local))
            .collect()
    }
}

/// Why a member could not join, and the streams that its next attempt can continue, by group rank.
pub(crate) struct JoinFailure {
    pub(crate) error: CollectiveError,
    pub(crate) kept: Vec<(usize, KeptStream)>,
}

impl From<CollectiveError> for JoinFailure {
    fn from(error: CollectiveError) -> Self {
        let kept = Vec::new();
        Self { error, kept }
    }
}

/// Connects to all other members. Continues the streams of an earlier group to members that it has in common with this one.
pub(crate) fn mesh(
    mine: &JoinHello,
    (keys, plain_within_host): (Option<TlsKeys>, bool),
    listener: TcpListener,
    peers: &[SocketAddr],
    mut kept: Vec<Option<KeptStream>>,
    limit: Duration,
    give_up: Option<&JoinCancellation>,
) -> Result<Connections, JoinFailure> {
    let joining = Arc::new(Joiner::new(mine, keys, plain_within_host, limit)?);
    for (peer, stream) in kept.iter_mut().enumerate() {
        let _dropped = stream.take_if(|stream| !joining.can_continue(peer, stream));
    }
    let lower = 0..mine.rank as usize;
    let missing: Vec<usize> = lower.filter(|&peer| kept[peer].is_none()).collect();
    let resumption = joining.resumption(kept)?;
    let (outcomes, meetings) = mpsc::channel::<ConnectionOutcome>();
    thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let joining = &joining;
        let dialling = outcomes.clone();
        let dial_peer = |peer: usize| {
            for connection in 0..mine.connections as usize {
                let outcomes = dialling.clone();
                scope.spawn(move || {
                    let outcome = dial(joining, (peer, connection), peers[peer]);
                    let outcome = outcome.map_or_else(ConnectionOutcome::Failed, |wire| {
                        ConnectionOutcome::Member(peer, connection, wire)
                    });
                    // The receiver is gone once the outcome is decided.
                    let _late = outcomes.send(outcome);
                });
            }
        };
        missing.into_iter().for_each(dial_peer);
        let (resumption, resumption_stop) = resumption.unzip();
        let resuming = resumption.zip(resumption_stop.clone());
        let resuming = resuming.map(|(resumption, stop)| {
            let outcomes = outcomes.clone();
            scope.spawn(move || resumption.run(mine, &outcomes, &stop))
        });
        let accepting = outcomes;
        scope.spawn(move || accept(&listener, joining, &accepting, &stopped));
        let mut gathered = GatheredStreams::new(mine, peers);
        let end = joining.end + DETAIL;
        let outcome = gathered.gather(&meetings, end, give_up, &dial_peer);
        if outcome.is_err() {
            joining.dialled.shut_down();
        }
        drop(stop);
        if let Some(stop) = resumption_stop {
            stop.request();
        }
        let unfinished = resuming.and_then(|thread| thread.join().ok());
        let refused = std::mem::take(&mut gathered.refused);
        let streams = gathered.into_streams();
        match outcome {
            Ok(()) => Ok(Connections { streams, refused }),
            Err(error) => Err(JoinFailure {
                kept: kept_after(&error, unfinished.unwrap_or_default(), streams),
                error,
            }),
        }
    })
}

/// Dials a peer until it answers or the deadline has passed.
fn dial(
    joining: &Joiner,
    (peer, connection): (usize, usize),
    address: SocketAddr,
) -> Result<WireStream, CollectiveError> {
    let what = || format!("cannot connect to group rank {peer} at {address}");
    let end = joining.end;
    loop {
        let left = ronde_clock::left(end);
        if left.is_zero() || joining.dialled.are_closed() {
            return Err(unreachable(peer, what(), &"no answer before the deadline"));
        }
        match TcpStream::connect_timeout(&address, left.min(Duration::from_secs(1))) {
            Ok(stream) => {
                joining.dialled.add(&stream);
                let (wire, theirs) = joining
                    .greet_dialled(stream, (peer, connection))
                    .map_err(|unmet| unmet.error(GroupRank(peer as u32), what()))?;
                match joining.hello.age_of(&theirs) {
                    // The peer will learn of the newer generation and join it.
                    Ordering::Less => {
                        ronde_clock::pause(PAUSE);
                        continue;
                    }
                    Ordering::Greater => return Err(ended_generation(&joining.hello, &theirs)),
                    Ordering::Equal => {}
                }
                joining.hello.check(&theirs)?;
                if theirs.rank as usize != peer {
                    let answer = format!("group rank {} answered", theirs.rank);
                    return Err(failed(what(), &answer));
                }
                return Ok(wire);
            }
            Err(error) if ronde_clock::left(end).is_zero() => {
                return Err(unreachable(peer, what(), &error));
            }
            Err(_) => ronde_clock::pause(PAUSE),
        }
    }
}

/// Listens until stopped. Unknown connections are refused without harm; another plan is an error.
fn accept(
    listener: &TcpListener,
    joining: &Arc<Joiner>,
    outcomes: &mpsc::Sender<ConnectionOutcome>,
    stopped: &mpsc::Receiver<()>,
) {
    if let Err(error) = listener.set_nonblocking(true) {
        let _late = outcomes.send(ConnectionOutcome::Failed(failed(
            "listening".to_owned(),
            &error,
        )));
        return;
    }
    let size = joining.hello.size as usize;
    while stopped.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
        match listener.accept() {
            Ok(_) if Arc::strong_count(joining) > size + STRANGERS_MAX => {}
            Ok((stream, from)) => {
                let (outcomes, joining) = (outcomes.clone(), Arc::clone(joining));
                // On a separate thread, so that an idle connection does not delay the others.
                thread::spawn(move || {
                    let _late = outcomes.send(answer(stream, from, &joining));
                });
            }
            Err(_) => ronde_clock::pause(PAUSE),
        }
    }
}

/// Answers a peer that has dialled this member.
fn answer(stream: TcpStream, from: SocketAddr, joining: &Joiner) -> ConnectionOutcome {
    let mine = &joining.hello;
    let (wire, theirs) = match joining.receive(stream) {
        Ok(outcomes) => outcomes,
        Err(error @ GreetError::Hello(HelloProblem::Version { .. })) => {
            return ConnectionOutcome::Failed(error.error(GroupRank(u32::MAX), from.to_string()));
        }
        Err(unmet) => return ConnectionOutcome::Refused(format!("{from}: {}", unmet.words())),
    };
    match mine.age_of(&theirs) {
        Ordering::Less => {
            let (rank, generation) = (theirs.rank, theirs.generation);
            return ConnectionOutcome::Refused(format!(
                "{from}: group rank {rank} of generation {generation}, which has ended"
            ));
        }
        Ordering::Greater => return ConnectionOutcome::Failed(ended_generation(mine, &theirs)),
        Ordering::Equal => {}
    }
    if let Err(error) = mine.check(&theirs) {
        return ConnectionOutcome::Failed(error);
    }
    if theirs.rank <= mine.rank || theirs.rank >= mine.size {
        let what = format!("cannot join with {from} as group rank {}", theirs.rank);
        return ConnectionOutcome::Failed(failed(what, &"that rank must not dial this one"));
    }
    if theirs.connection >= mine.connections {
        let what = format!("cannot join with {from} as group rank {}", theirs.rank);
        let cause = format!("invalid connection number {}", theirs.connection);
        return ConnectionOutcome::Failed(failed(what, &cause));
    }
    ConnectionOutcome::Member(theirs.rank as usize, theirs.connection as usize, wire)
}

/// Returns the error of joining a generation that a peer has already left for a newer one.
fn ended_generation(mine: &JoinHello, theirs: &JoinHello) -> CollectiveError {
    failed(
        format!("cannot join generation {}", mine.generation),
        &format!(
            "it has ended: group rank {} is in generation {}",
            theirs.rank, theirs.generation
        ),
    )
}

/// Connections that this member has dialled, kept so that waits on them can be ended.
#[derive(Default)]
struct DialledSockets {
    streams: Mutex<Vec<TcpStream>>,
    ended_generation: AtomicBool,
}

impl DialledSockets {
    fn add(&self, stream: &TcpStream) {
        // One that cannot be cloned ends at its deadline instead.
        if let Ok(stream) = stream.try_clone() {
            self.streams().push(stream);
        }
        if self.are_closed() {
            self.shut_down();
        }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn are_closed(&self) -> bool {
        self.ended_generation.load(SeqCst)
    }

    fn shut_down(&self) {
        self.ended_generation.store(true, SeqCst);
        for stream in self.streams().drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Why no hello was received.
#[derive(Debug, thiserror::Error)]
enum GreetError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Body(#[from] ByteProblem),
    #[error(transparent)]
    Certificate(#[from] CertificateProblem),
    #[error("it has this member's rank")]
    SameRank,
    #[error("a verdict of {bytes} bytes")]
    Verdict { bytes: usize },
    #[error(transparent)]
    Hello(HelloProblem),
}

impl GreetError {
    fn words(&self) -> String {
        match self {
            Self::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
                "it closed the connection before it identified itself".to_owned()
            }
            Self::Hello(HelloProblem::Version { theirs, expected }) => {
                format!("protocol version is {expected} here and {theirs} there")
            }
            other => other.to_string(),
        }
    }

    fn error(self, peer: GroupRank, what: String) -> CollectiveError {
        match self {
            Self::Io(error) => failed(what, &error),
            Self::Hello(HelloProblem::Version { .. }) => CollectiveError::OtherPlan {
                peer,
                difference: self.words(),
            },
            other => CollectiveError::Protocol {
                peer,
                problem: other.to_string(),
            },
        }
    }
}

impl Joiner {
    fn new(
        mine: &JoinHello,
        keys: Option<TlsKeys>,
        plain_within_host: bool,
        limit: Duration,
    ) -> Result<Self, CollectiveError> {
        let greeting = |connection| {
            let mine = mine.clone();
            JoinHello { connection, ..mine }.encode()
        };
        let greetings: Result<_, _> = (0..mine.connections).map(greeting).collect();
        Ok(Self {
            hello: mine.clone(),
            greetings: greetings?,
            plain_within_host,
            keys,
            end: ronde_clock::deadline(limit),
            dialled: DialledSockets::default(),
        })
    }

    /// Returns whether a stream to a member of an earlier group can be continued as one to a group rank.
    fn can_continue(&self, peer: usize, kept: &mut KeptStream) -> bool {
        let connections = &kept.stream.connections;
        let is_expected = |connection: &WireStream| match (&self.keys, connection) {
            (None, WireStream::Plain(_)) => true,
            (Some(keys), WireStream::Tls(_)) => {
                connection::check_certificate(connection, keys, peer as u32).is_ok()
            }
            _ => false,
        };
        connections.len() == self.hello.connections as usize
            && connections.iter().all(is_expected)
            && kept.stream.set_up().is_ok()
    }

    /// Prepares the exchange of hellos on kept streams, by group rank; `None` if there are none.
    fn resumption(
        &self,
        kept: Vec<Option<KeptStream>>,
    ) -> Result<Option<(Resumption, ResumptionStop)>, CollectiveError> {
        if kept.iter().all(Option::is_none) {
            return Ok(None);
        }
        let each = self.hello.connections as usize;
        let greeting = self.hello.clone().without_parts().encode()?;
        let (streams, resuming) = resume::prepare(kept, &greeting);
        let transport = transport(streams, self.keys.is_some(), each)?;
        Ok(Some(Resumption::new(transport, resuming)))
    }

    /// Exchanges hellos with a peer that this member has dialled, and reads whether the peer accepts it.
    fn greet_dialled(
        &self,
        stream: TcpStream,
        (peer, connection): (usize, usize),
    ) -> Result<(WireStream, JoinHello), GreetError> {
        let end = self.end;
        let mut wire = connection::dial(stream, self.keys.as_ref(), peer as u32, end)?;
        let (theirs, leaves_tls) = self.greet(&mut wire, connection, end)?;
        if self.keys.is_some() {
            connection::read_verdict(&mut wire, end)?;
        }
        if leaves_tls {
            connection::leave_tls(&mut wire);
        }
        Ok((wire, theirs))
    }

    /// Exchanges hellos with a peer that has dialled, and verifies its identity.
    fn receive(&self, stream: TcpStream) -> Result<(WireStream, JoinHello), GreetError> {
        let end = self.end.min(ronde_clock::deadline(STRANGER_MAX));
        stream.set_nonblocking(false).map_err(GreetError::Io)?;
        let mut wire = connection::accept(stream, self.keys.as_ref(), end)?;
        let (theirs, leaves_tls) = self.greet(&mut wire, 0, end)?;
        if let Some(keys) = &self.keys {
            let checked = connection::check_certificate(&wire, keys, theirs.rank);
            let verdict = checked.as_ref().err().map(ToString::to_string);
            connection::send_verdict(&mut wire, verdict.as_deref().unwrap_or(""), end)?;
            checked?;
        }
        if leaves_tls {
            connection::leave_tls(&mut wire);
        }
        Ok((wire, theirs))
    }

    /// Sends this member's hello and reads the peer's; both sides send first. Over TLS, each hello is followed by
    /// the sender's host if the connection may leave TLS; returns whether it does, after the verdict.
    fn greet(
        &self,
        wire: &mut WireStream,
        connection: usize,
        end: Instant,
    ) -> Result<(JoinHello, bool), GreetError> {
        let host = if self.plain_within_host {
            connection::plain_host(wire)
        } else {
            0
        };
        let mut greeting = self.greetings[connection].clone();
        if self.keys.is_some() {
            greeting.extend(host.to_le_bytes());
        }
        let unsaid = wire.write_all(&greeting, end);
        let mut prefix = [0; PREFIX_BYTES];
        // A peer that refuses does not read, but it sends its reason.
        let said = wire.read_all(&mut prefix, end);
        if let Some(unmet) = connection::tls_in_plain(&prefix) {
            return Err(unmet);
        }
        said?;
        unsaid.map_err(GreetError::Io)?;
        let len = HELLO.body_bytes(&prefix).map_err(GreetError::Hello)?;
        let mut body = vec![0; len];
        wire.read_all(&mut body, end)?;
        let theirs = JoinHello::decode(&body)?;
        let is_namesake = theirs.rank == self.hello.rank && theirs.job == self.hello.job;
        if is_namesake && theirs.generation == self.hello.generation {
            return Err(GreetError::SameRank);
        }
        let mut their_host = [0; 8];
        if self.keys.is_some() {
            wire.read_all(&mut their_host, end)?;
        }
        Ok((theirs, host != 0 && host.to_le_bytes() == their_host))
    }
}
