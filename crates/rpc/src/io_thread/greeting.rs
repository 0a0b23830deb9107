//! The beginning of a connection: dialling and accepting, and the first message in each direction.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ronde_identity::IdentityError;
use ronde_peer_memory::{LendingOffer, PeerMemory};
use ronde_wire::{TlsRefusal, TlsSession};

use super::{
    ConnectionPhase, ConnectionSide, PolledConnection, PollingThread, REFUSAL, RpcConnectionEnd,
    TICK,
};
use crate::callee::CalleeSession;
use crate::connection::RpcConnection;
use crate::frame::FrameBody;
use crate::frame_reader::FrameReader;
use crate::hello::{self, CalleeHello, CallerHello, HELLO};
use crate::lease::ProcessName;
use crate::node::{NodeShared, SessionState};
use crate::peers::RpcPeer;
use crate::security::RpcKeys;
use crate::stream::RpcStream;

/// The reason why a connection is not opened.
#[derive(Debug, thiserror::Error)]
enum GreetingError {
    #[error("the list of workers has no member for its certificate")]
    NoMemberForAddress,
    #[error("cannot connect to {at}: {cause}")]
    Connect { at: SocketAddr, cause: io::Error },
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Tls(#[from] TlsRefusal),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("you do not have the token of this job")]
    Token,
    #[error("this is a worker of job `{job}`")]
    OtherJob { job: String },
    #[error("this is the worker `{name}`")]
    OtherWorker { name: String },
    #[error("`{name}` is not in the list of this job's workers")]
    UnknownCaller { name: String },
    #[error("you have no certificate")]
    NoCertificate,
    #[error("the list of workers has no member for your name")]
    NoMemberForName,
}

fn lost(error: hello::FirstMessageError) -> RpcConnectionEnd {
    RpcConnectionEnd::Lost(error.to_string())
}

/// The interval of attempts to connect to a lost peer without calls.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// Lost sessions of workers with one name that are kept, besides those with a connection.
const LOST_SESSIONS_MAX: usize = 4;

impl PollingThread<'_> {
    /// Dials the peers to which calls wait.
    pub(super) fn dial(&mut self, now: Duration) {
        let shared = self.shared;
        if shared.is_closing.load(Ordering::SeqCst) {
            return;
        }
        let mut state = shared.lock();
        for (index, peer) in state.peers.iter_mut().enumerate() {
            // A lost peer is dialled now and then without calls, so that calls for its role find it when it returns.
            let pause = match (peer.link.in_flight(), peer.link.is_lost()) {
                (0, false) => continue,
                (0, true) => PROBE_PAUSE,
                _ => Duration::ZERO,
            };
            let is_early = now < peer.next_dial + pause;
            if peer.link.is_connected() || peer.is_dialling || is_early {
                continue;
            }
            match dial(shared, &peer.peer) {
                Ok(stream) => {
                    peer.is_dialling = true;
                    let number = self.next_number;
                    self.next_number += 1;
                    let phase = ConnectionPhase::Connecting;
                    let side = ConnectionSide::Dialled(index);
                    let polled = PolledConnection::new(shared, number, stream, side, phase, now);
                    self.connections.insert(number, polled);
                }
                Err(cause) => {
                    peer.next_dial = now + TICK;
                    peer.link.disconnected(now, cause.to_string());
                }
            }
        }
    }

    /// Accepts waiting connections. If there are too many, the oldest that has not authenticated is closed, so that silent
    /// connections cannot keep out a worker.
    pub(super) fn accept(&mut self) {
        let shared = self.shared;
        loop {
            let now = shared.clock.elapsed();
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Usually out of file descriptors, which may be temporary.
                    self.accept_from = now + TICK;
                    return;
                }
            };
            let is_accepted =
                |polled: &PolledConnection| matches!(polled.side, ConnectionSide::Accepted(_));
            let accepted = self.connections.values().filter(|p| is_accepted(p)).count();
            if accepted >= shared.limits.connections_max {
                let stranger = |polled: &PolledConnection| {
                    matches!(polled.side, ConnectionSide::Accepted(None))
                };
                let mut strangers = self.connections.iter().filter(|(_, p)| stranger(p));
                let Some((&oldest, _)) = strangers.next() else {
                    continue;
                };
                let cause = "too many connections".to_owned();
                self.end(oldest, RpcConnectionEnd::Lost(cause));
            }
            if let Ok(stream) = accepted_stream(shared, socket) {
                let number = self.next_number;
                self.next_number += 1;
                let phase = ConnectionPhase::Greeting(Vec::new());
                let side = ConnectionSide::Accepted(None);
                let polled = PolledConnection::new(shared, number, stream, side, phase, now);
                self.connections.insert(number, polled);
            }
        }
    }
}

fn dial(shared: &NodeShared, peer: &RpcPeer) -> Result<RpcStream, GreetingError> {
    let tls = match (&shared.keys, &peer.member) {
        (RpcKeys::Token(_), _) => None,
        (RpcKeys::Tls { .. }, None) => {
            return Err(GreetingError::NoMemberForAddress);
        }
        (
            RpcKeys::Tls {
                identity, client, ..
            },
            Some(member),
        ) => {
            let name = identity.name_of(member)?;
            Some(TlsSession::client(Arc::clone(client), name)?)
        }
    };
    let at = peer.address;
    RpcStream::dial(at, tls).map_err(|cause| GreetingError::Connect { at, cause })
}

fn accepted_stream(shared: &NodeShared, socket: TcpStream) -> Result<RpcStream, GreetingError> {
    let tls = match &shared.keys {
        RpcKeys::Token(_) => None,
        RpcKeys::Tls { server, .. } => Some(TlsSession::server(Arc::clone(server))?),
    };
    Ok(RpcStream::accepted(socket, tls)?)
}

impl PolledConnection {
    fn new(
        shared: &NodeShared,
        number: u64,
        stream: RpcStream,
        side: ConnectionSide,
        phase: ConnectionPhase,
        now: Duration,
    ) -> Self {
        let pool = Arc::clone(&shared.pool);
        Self {
            connection: Arc::new(RpcConnection::new(number, stream)),
            side,
            phase,
            reader: FrameReader::new(shared.limits.message_bytes_max, pool),
            deadline: now + shared.limits.handshake,
            has_more: false,
        }
    }

    /// The system has connected, or failed to: sends the first message.
    pub(super) fn connected(&mut self, shared: &Arc<NodeShared>) -> Result<(), RpcConnectionEnd> {
        if let Some(error) = self.connection.stream.dial_error() {
            return Err(RpcConnectionEnd::Lost(error.to_string()));
        }
        let ConnectionSide::Dialled(index) = &self.side else {
            return Ok(());
        };
        let to = shared.lock().peers[*index].peer.name.clone();
        let hello = CallerHello {
            job: shared.job.clone(),
            from: shared.me.0.clone(),
            process: shared.me.1,
            to,
            token: own_token(shared),
            lends: self.connection.offer(),
        };
        self.connection.queue_raw(&hello::encode(&hello));
        self.phase = ConnectionPhase::Greeting(Vec::new());
        Ok(())
    }

    /// Reads the peer's first message, and no byte beyond it.
    pub(super) fn greet(&mut self, shared: &Arc<NodeShared>) -> Result<(), RpcConnectionEnd> {
        let ConnectionPhase::Greeting(bytes) = &mut self.phase else {
            return Ok(());
        };
        loop {
            let missing = HELLO.missing(bytes);
            let missing = missing.map_err(|problem| RpcConnectionEnd::Lost(problem.to_string()))?;
            if missing == 0 {
                break;
            }
            let mut piece = vec![0; missing];
            match self.connection.stream.read(&mut piece) {
                Ok(count @ 1..) => bytes.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.has_more = false;
                    // Answers of the TLS handshake.
                    self.connection.write();
                    return Ok(());
                }
                Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
                _ => {
                    let cause = "it closed the connection before it authenticated";
                    return Err(RpcConnectionEnd::Lost(cause.to_owned()));
                }
            }
        }
        let bytes = std::mem::take(bytes);
        self.has_more = true;
        match &self.side {
            ConnectionSide::Dialled(index) => {
                let index = *index;
                self.greeted_by_callee(shared, index, &bytes)
            }
            ConnectionSide::Accepted(_) => self.greeted_by_caller(shared, &bytes),
        }
    }

    fn greeted_by_callee(
        &mut self,
        shared: &NodeShared,
        index: usize,
        bytes: &[u8],
    ) -> Result<(), RpcConnectionEnd> {
        let hello: CalleeHello = hello::decode(bytes).map_err(lost)?;
        if let Some(cause) = hello.refused {
            return Err(RpcConnectionEnd::Refused(cause));
        }
        if !shows_token(shared, hello.token.as_deref()) {
            let cause = "it does not have the token of this job".to_owned();
            return Err(RpcConnectionEnd::Refused(cause));
        }
        self.read_lent_from(hello.lends);
        self.connection.open();
        self.phase = ConnectionPhase::Open;
        let mut actions = Vec::new();
        let mut state = shared.lock();
        let peer = &mut state.peers[index];
        let is_same = peer.process == Some(hello.process);
        peer.process = Some(hello.process);
        peer.is_dialling = false;
        peer.connection = Some(Arc::clone(&self.connection));
        peer.link
            .connected(hello.is_resumed && is_same, &mut actions);
        shared.carry_out(peer, actions);
        drop(state);
        self.connection.write();
        Ok(())
    }

    fn greeted_by_caller(
        &mut self,
        shared: &NodeShared,
        bytes: &[u8],
    ) -> Result<(), RpcConnectionEnd> {
        let hello: CallerHello = hello::decode(bytes).map_err(lost)?;
        let mut answer = CalleeHello {
            process: shared.me.1,
            is_resumed: false,
            token: None,
            lends: None,
            refused: None,
        };
        if let Err(cause) = self.check_caller(shared, &hello) {
            answer.refused = Some(cause.to_string());
            self.connection.queue_raw(&hello::encode(&answer));
            self.connection.write();
            self.phase = ConnectionPhase::Refusing;
            self.deadline = shared.clock.elapsed() + REFUSAL;
            return Ok(());
        }
        answer.token = own_token(shared);
        answer.lends = self.connection.offer();
        self.read_lent_from(hello.lends);
        let caller: ProcessName = (hello.from, hello.process);
        let mut state = shared.lock();
        answer.is_resumed = state.sessions.contains_key(&caller);
        let lost = |(name, session): &(&ProcessName, &SessionState)| {
            name.0 == caller.0 && **name != caller && session.connection.is_none()
        };
        let lost_sessions: Vec<(Duration, ProcessName)> = state
            .sessions
            .iter()
            .filter(lost)
            .map(|(name, session)| (session.lost_at, name.clone()))
            .collect();
        if lost_sessions.len() >= LOST_SESSIONS_MAX
            && let Some((_, oldest)) = lost_sessions.into_iter().min()
        {
            state.sessions.remove(&oldest);
        }
        let session = state
            .sessions
            .entry(caller.clone())
            .or_insert_with(|| SessionState {
                session: CalleeSession::default(),
                connection: None,
                lost_at: Duration::ZERO,
            });
        let replaced = session.connection.replace(Arc::clone(&self.connection));
        drop(state);
        if let Some(replaced) = replaced {
            replaced.close();
        }
        self.connection.queue_raw(&hello::encode(&answer));
        self.connection.open();
        self.phase = ConnectionPhase::Open;
        self.side = ConnectionSide::Accepted(Some(Arc::new(caller)));
        self.connection.write();
        Ok(())
    }

    /// Reads lent values if this process may, and notifies the peer.
    fn read_lent_from(&mut self, offer: Option<LendingOffer>) {
        let offer = offer.filter(|_| self.connection.offer().is_some());
        if let Some(memory) = offer.and_then(PeerMemory::open) {
            self.reader.read_lent_from(memory);
            self.connection.queue(Arc::new(FrameBody::returned(0)));
        }
    }

    /// Checks that a caller is a worker of this job and means this one.
    fn check_caller(&self, shared: &NodeShared, hello: &CallerHello) -> Result<(), GreetingError> {
        if !shows_token(shared, hello.token.as_deref()) {
            return Err(GreetingError::Token);
        }
        if hello.job != shared.job {
            return Err(GreetingError::OtherJob {
                job: shared.job.clone(),
            });
        }
        if hello.to != shared.me.0 {
            return Err(GreetingError::OtherWorker {
                name: shared.me.0.clone(),
            });
        }
        let state = shared.lock();
        let known = state.peers.iter().find(|peer| peer.peer.name == hello.from);
        let known = known.ok_or_else(|| GreetingError::UnknownCaller {
            name: hello.from.clone(),
        })?;
        if let RpcKeys::Tls { identity, .. } = &shared.keys {
            let certificate = self.connection.stream.certificate();
            let certificate = certificate.ok_or(GreetingError::NoCertificate)?;
            let member = known.peer.member.as_ref();
            let member = member.ok_or(GreetingError::NoMemberForName)?;
            identity.check_peer(&certificate, member)?;
        }
        Ok(())
    }
}

fn own_token(shared: &NodeShared) -> Option<String> {
    match &shared.keys {
        RpcKeys::Token(token) => Some(token.expose().to_owned()),
        RpcKeys::Tls { .. } => None,
    }
}

/// Returns whether a peer has shown the token, if the node uses one.
fn shows_token(shared: &NodeShared, shown: Option<&str>) -> bool {
    match &shared.keys {
        RpcKeys::Token(token) => shown.is_some_and(|shown| token.matches(shown)),
        RpcKeys::Tls { .. } => true,
    }
}
