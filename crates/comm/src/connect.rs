//! Joining over TCP: every member dials those before it and listens for those after it.

mod connection;

use std::cmp::Ordering;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use ronde_core::{CollectiveError, GroupRank};

use crate::GroupConfig;
use crate::JoinCancellation;
use crate::clock;
use crate::hello::{JoinHello, PREFIX_BYTES, PROTOCOL_VERSION};
use crate::program::invalid;
use crate::security::TlsKeys;
pub(crate) use connection::{PeerConnection, transport};

/// How long the other members are still answered after one was refused, so that they hear of it.
const GRACE: Duration = Duration::from_secs(2);
/// How long a stranger on the listening port may take to say who it is.
const STRANGER_MAX: Duration = Duration::from_secs(5);
/// How long those who dial may take after the limit to say what went wrong.
const DETAIL: Duration = Duration::from_millis(100);
/// Strangers that are listened to at once, beside the members.
const STRANGERS_MAX: usize = 64;
/// Refusals that are told in full; the others are counted.
const REFUSALS_MAX: usize = 16;
/// Most connections between two members.
const CONNECTIONS_MAX: usize = 16;
/// Connections between two members that may be on different hosts.
const FAR_CONNECTIONS: usize = 2;
/// Between two looks at whether to give up.
const GIVE_UP_PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at the listener or two tries of an address that refuses.
const PAUSE: Duration = Duration::from_millis(5);

/// Listens on a free port of `address`; the port is known before any peer is.
///
/// # Errors
/// [`CollectiveError::Connect`] with the system's answer.
pub fn bind(address: IpAddr) -> Result<(TcpListener, SocketAddr), CollectiveError> {
    let what = || format!("listening on {address}");
    let listener = TcpListener::bind((address, 0)).map_err(|e| failed(what(), &e))?;
    let at = listener.local_addr().map_err(|e| failed(what(), &e))?;
    Ok((listener, at))
}

/// How many connections there are between two members: what the configuration says, or else one where
/// all listen on loopback addresses and [`FAR_CONNECTIONS`] where they do not.
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
    let problem = format!("{connections} connections to each member, from 1 to {CONNECTIONS_MAX}");
    Err(invalid("joining a group", problem))
}

fn failed(what: String, cause: &dyn ToString) -> CollectiveError {
    CollectiveError::Connect {
        what,
        cause: cause.to_string(),
    }
}

/// What comes of a connection.
enum ConnectionOutcome {
    /// A connection to a member, of this number.
    Member(usize, usize, PeerConnection),
    /// Somebody who was turned away, and why; the right one may still come.
    Refused(String),
    /// Joining is not possible.
    Failed(CollectiveError),
}

/// This member as it joins.
struct Joiner {
    hello: JoinHello,
    /// What it says first, by the number of the connection.
    greetings: Vec<Vec<u8>>,
    keys: Option<TlsKeys>,
    end: Instant,
    calls: DialledSockets,
}

/// All connections, and who was turned away meanwhile.
pub(crate) struct Connections {
    /// By group rank and number of the connection; `None` for this member.
    pub(crate) wires: Vec<Option<PeerConnection>>,
    pub(crate) refused: Vec<String>,
}

/// Connects to all other members.
pub(crate) fn mesh(
    mine: &JoinHello,
    keys: Option<TlsKeys>,
    listener: TcpListener,
    peers: &[SocketAddr],
    limit: Duration,
    give_up: Option<&JoinCancellation>,
) -> Result<Connections, CollectiveError> {
    let rank = mine.rank as usize;
    let greeting = |connection| {
        let mine = mine.clone();
        JoinHello { connection, ..mine }.encode()
    };
    let greetings: Result<_, _> = (0..mine.connections).map(greeting).collect();
    let joining = Arc::new(Joiner {
        hello: mine.clone(),
        greetings: greetings?,
        keys,
        end: clock::deadline(limit),
        calls: DialledSockets::default(),
    });
    let (met, meetings) = mpsc::channel::<ConnectionOutcome>();
    thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let joining = &joining;
        for (peer, &address) in peers[..rank].iter().enumerate() {
            for connection in 0..mine.connections as usize {
                let met = met.clone();
                scope.spawn(move || {
                    let outcome = dial(joining, (peer, connection), address);
                    let outcome = outcome.map_or_else(ConnectionOutcome::Failed, |wire| {
                        ConnectionOutcome::Member(peer, connection, wire)
                    });
                    // The receiver is gone once the outcome is decided.
                    let _late = met.send(outcome);
                });
            }
        }
        let accepting = met;
        scope.spawn(move || accept(&listener, joining, &accepting, &stopped));
        let outcome = gather(mine, peers, &meetings, joining.end + DETAIL, give_up);
        if outcome.is_err() {
            joining.calls.hang_up();
        }
        drop(stop);
        outcome
    })
}

/// Collects the connections; after a failure the others are still heard for a while.
fn gather(
    mine: &JoinHello,
    peers: &[SocketAddr],
    meetings: &mpsc::Receiver<ConnectionOutcome>,
    mut end: Instant,
    give_up: Option<&JoinCancellation>,
) -> Result<Connections, CollectiveError> {
    let each = mine.connections as usize;
    let mut wires: Vec<Option<PeerConnection>> = (0..peers.len() * each).map(|_| None).collect();
    let (mut refused, mut refusals) = (Vec::new(), 0);
    let mut failure: Option<CollectiveError> = None;
    let mut heard = each;
    while heard < wires.len() {
        if give_up.is_some_and(JoinCancellation::is_wanted) {
            return Err(failed(
                format!("joining generation {}", mine.generation),
                &"it was given up, for there is a newer one",
            ));
        }
        let left = clock::left(end);
        match meetings.recv_timeout(left.min(GIVE_UP_PAUSE)) {
            Err(RecvTimeoutError::Timeout) if left > GIVE_UP_PAUSE => {}
            Ok(ConnectionOutcome::Member(peer, connection, wire)) => {
                if wires[peer * each + connection].replace(wire).is_some() {
                    let what = format!("group rank {peer} joining");
                    failure.get_or_insert(failed(what, &"it came twice"));
                }
                heard += 1;
            }
            Ok(ConnectionOutcome::Refused(who)) => {
                refusals += 1;
                if refused.len() < REFUSALS_MAX {
                    refused.push(who);
                }
            }
            Ok(ConnectionOutcome::Failed(error)) => {
                end = end.min(clock::deadline(GRACE));
                failure.get_or_insert(error);
                heard += 1;
            }
            Err(_) => {
                let missing: Vec<String> = (0..peers.len())
                    .filter(|&peer| peer != mine.rank as usize)
                    .filter(|&peer| wires[peer * each..][..each].iter().any(Option::is_none))
                    .map(|peer| format!("{peer} ({})", peers[peer]))
                    .collect();
                let what = format!("waiting for group ranks {}", missing.join(", "));
                let mut cause = "the limit has passed".to_owned();
                if refusals > 0 {
                    cause += &format!("; turned away {refusals}: {}", refused.join("; "));
                }
                return Err(failure.unwrap_or_else(|| failed(what, &cause)));
            }
        }
    }
    failure.map_or(Ok(Connections { wires, refused }), Err)
}

/// Dials a peer until it answers or time is up.
fn dial(
    joining: &Joiner,
    (peer, connection): (usize, usize),
    address: SocketAddr,
) -> Result<PeerConnection, CollectiveError> {
    let what = || format!("connecting to group rank {peer} at {address}");
    let end = joining.end;
    loop {
        let left = clock::left(end);
        if left.is_zero() || joining.calls.are_over() {
            return Err(failed(what(), &"nobody answered before the limit"));
        }
        match TcpStream::connect_timeout(&address, left.min(Duration::from_secs(1))) {
            Ok(stream) => {
                joining.calls.add(&stream);
                let (wire, theirs) = joining
                    .call_on(stream, (peer, connection))
                    .map_err(|unmet| unmet.error(GroupRank(peer as u32), what()))?;
                match joining.hello.age_of(&theirs) {
                    // It will hear of the newer generation and come.
                    Ordering::Less => {
                        clock::pause(PAUSE);
                        continue;
                    }
                    Ordering::Greater => return Err(over(&joining.hello, &theirs)),
                    Ordering::Equal => {}
                }
                joining.hello.check(&theirs)?;
                if theirs.rank as usize != peer {
                    let answer = format!("group rank {} answered", theirs.rank);
                    return Err(failed(what(), &answer));
                }
                return Ok(wire);
            }
            Err(error) if clock::left(end).is_zero() => return Err(failed(what(), &error)),
            Err(_) => clock::pause(PAUSE),
        }
    }
}

/// Listens until told to stop. Strangers are turned away without harm; other plans are an error.
fn accept(
    listener: &TcpListener,
    joining: &Arc<Joiner>,
    met: &mpsc::Sender<ConnectionOutcome>,
    stopped: &mpsc::Receiver<()>,
) {
    if let Err(error) = listener.set_nonblocking(true) {
        let _late = met.send(ConnectionOutcome::Failed(failed(
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
                let (met, joining) = (met.clone(), Arc::clone(joining));
                // On its own, so that a stranger that says nothing holds up nobody.
                thread::spawn(move || {
                    let _late = met.send(welcome(stream, from, &joining));
                });
            }
            Err(_) => clock::pause(PAUSE),
        }
    }
}

/// Meets one that has dialled.
fn welcome(stream: TcpStream, from: SocketAddr, joining: &Joiner) -> ConnectionOutcome {
    let mine = &joining.hello;
    let (wire, theirs) = match joining.receive(stream) {
        Ok(met) => met,
        Err(GreetError::OtherVersion(version)) => {
            let error = GreetError::OtherVersion(version);
            return ConnectionOutcome::Failed(error.error(GroupRank(u32::MAX), from.to_string()));
        }
        Err(unmet) => return ConnectionOutcome::Refused(format!("{from}: {}", unmet.words())),
    };
    match mine.age_of(&theirs) {
        Ordering::Less => {
            let (rank, generation) = (theirs.rank, theirs.generation);
            return ConnectionOutcome::Refused(format!(
                "{from}: group rank {rank} of generation {generation}, which is over"
            ));
        }
        Ordering::Greater => return ConnectionOutcome::Failed(over(mine, &theirs)),
        Ordering::Equal => {}
    }
    if let Err(error) = mine.check(&theirs) {
        return ConnectionOutcome::Failed(error);
    }
    if theirs.rank <= mine.rank || theirs.rank >= mine.size {
        let what = format!("{from} joining as group rank {}", theirs.rank);
        return ConnectionOutcome::Failed(failed(what, &"that rank does not dial this one"));
    }
    if theirs.connection >= mine.connections {
        let what = format!("{from} joining as group rank {}", theirs.rank);
        let cause = format!("it dials connection {}", theirs.connection);
        return ConnectionOutcome::Failed(failed(what, &cause));
    }
    ConnectionOutcome::Member(theirs.rank as usize, theirs.connection as usize, wire)
}

/// A member of a newer generation of the same group was met.
fn over(mine: &JoinHello, theirs: &JoinHello) -> CollectiveError {
    failed(
        format!("joining generation {}", mine.generation),
        &format!(
            "it is over: group rank {} is in generation {}",
            theirs.rank, theirs.generation
        ),
    )
}

/// Connections that this member has dialled, so that waiting on them can end.
#[derive(Default)]
struct DialledSockets {
    streams: Mutex<Vec<TcpStream>>,
    over: AtomicBool,
}

impl DialledSockets {
    fn add(&self, stream: &TcpStream) {
        // One that cannot be cloned is not ended early, but by its deadline.
        if let Ok(stream) = stream.try_clone() {
            self.streams().push(stream);
        }
        if self.are_over() {
            self.hang_up();
        }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn are_over(&self) -> bool {
        self.over.load(SeqCst)
    }

    fn hang_up(&self) {
        self.over.store(true, SeqCst);
        for stream in self.streams().drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Why a hello did not come.
enum GreetError {
    Io(io::Error),
    NoHello(String),
    OtherVersion(u32),
}

impl GreetError {
    fn words(&self) -> String {
        match self {
            Self::Io(error) if error.kind() == ErrorKind::UnexpectedEof => {
                "it hung up before it said who it is".to_owned()
            }
            Self::Io(error) => error.to_string(),
            Self::NoHello(problem) => problem.clone(),
            Self::OtherVersion(version) => {
                format!("protocol version is {PROTOCOL_VERSION} here and {version} there")
            }
        }
    }

    fn error(self, peer: GroupRank, what: String) -> CollectiveError {
        match self {
            Self::Io(error) => failed(what, &error),
            Self::NoHello(problem) => CollectiveError::Protocol { peer, problem },
            Self::OtherVersion(_) => CollectiveError::OtherPlan {
                peer,
                difference: self.words(),
            },
        }
    }
}

impl Joiner {
    /// Greets a peer that this member has dialled; hears whether the peer accepts it.
    fn call_on(
        &self,
        stream: TcpStream,
        (peer, connection): (usize, usize),
    ) -> Result<(PeerConnection, JoinHello), GreetError> {
        let end = self.end;
        let mut wire = PeerConnection::dial(stream, self.keys.as_ref(), peer as u32, end)?;
        let theirs = self.greet(&mut wire, connection, end)?;
        if self.keys.is_some() {
            wire.hear_verdict(end)?;
        }
        Ok((wire, theirs))
    }

    /// Greets one that has dialled, and makes sure that it is who it says it is.
    fn receive(&self, stream: TcpStream) -> Result<(PeerConnection, JoinHello), GreetError> {
        let end = self.end.min(clock::deadline(STRANGER_MAX));
        stream.set_nonblocking(false).map_err(GreetError::Io)?;
        let mut wire = PeerConnection::accept(stream, self.keys.as_ref(), end)?;
        let theirs = self.greet(&mut wire, 0, end)?;
        if let Some(keys) = &self.keys {
            let problem = wire.imposture(keys, theirs.rank);
            wire.give_verdict(problem.as_deref().unwrap_or(""), end)?;
            if let Some(problem) = problem {
                return Err(GreetError::NoHello(problem));
            }
        }
        Ok((wire, theirs))
    }

    /// Both sides say who they are at once, then read who the other one is.
    fn greet(
        &self,
        wire: &mut PeerConnection,
        connection: usize,
        end: Instant,
    ) -> Result<JoinHello, GreetError> {
        let unsaid = wire.write_all(&self.greetings[connection], end);
        let mut prefix = [0; PREFIX_BYTES];
        // One that refuses does not listen, but says why.
        let said = wire.read_all(&mut prefix, end);
        if let Some(unmet) = connection::tls_in_plain(&prefix) {
            return Err(unmet);
        }
        said?;
        unsaid.map_err(GreetError::Io)?;
        let (version, len) = JoinHello::decode_prefix(&prefix).map_err(GreetError::NoHello)?;
        if version != PROTOCOL_VERSION {
            return Err(GreetError::OtherVersion(version));
        }
        let mut body = vec![0; len];
        wire.read_all(&mut body, end)?;
        let theirs = JoinHello::decode(&body).map_err(GreetError::NoHello)?;
        let is_namesake = theirs.rank == self.hello.rank && theirs.job == self.hello.job;
        if is_namesake && theirs.generation == self.hello.generation {
            return Err(GreetError::NoHello("it has this member's rank".to_owned()));
        }
        Ok(theirs)
    }
}
