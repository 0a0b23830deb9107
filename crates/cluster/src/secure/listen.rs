//! [`TlsListener`]: accepts connections to a coordinator up to their first line.

use std::collections::BTreeMap;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ronde_identity::rustls::pki_types::CertificateDer;
use ronde_identity::{Identity, IdentityError};
use ronde_wire::{ChooseConfig, LineStream, TlsStream, WireError, WireStream};

use super::{JOINING, LINE_BYTES_MAX, MEMBERS, STRANGER_BYTES_MAX};

/// The limits of a listener.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListenLimits {
    /// Time limit for the handshake and the first line of a connection.
    pub(crate) handshake: Duration,
    /// Maximum number of connections that have not completed both. A further one closes the oldest, so
    /// that idle connections cannot keep out a client that completes them at once.
    pub(crate) pending: usize,
    /// Maximum number of all connections; further ones are closed.
    pub(crate) connections: usize,
}

impl Default for ListenLimits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            pending: 32,
            connections: 1_024,
        }
    }
}

/// How a client authenticates.
pub(crate) enum Authentication {
    /// With a join token in its first line, which was not checked yet.
    JoinToken,
    /// With this certificate of the job's authority.
    Certificate(CertificateDer<'static>),
}

/// A connection whose first line was received.
pub(crate) struct AcceptedConnection {
    pub(crate) from: SocketAddr,
    pub(crate) way: Authentication,
    pub(crate) line: Vec<u8>,
    /// Bytes received after the line.
    pub(crate) rest: Vec<u8>,
    pub(crate) stream: Box<TlsStream>,
}

/// The handler of accepted connections; runs on a thread of the connection.
pub(crate) trait AcceptHandler: Send + Sync {
    /// Handles a connection whose first line was received.
    fn greet(&self, greeted: AcceptedConnection);
    /// Handles a connection that could not be authenticated.
    fn turn_away(&self, from: SocketAddr, why: String);
}

/// A listening socket, with a thread for it and one per connection.
pub(crate) struct TlsListener {
    address: SocketAddr,
    closing: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl TlsListener {
    /// Listens with the coordinator's certificate.
    pub(crate) fn start(
        socket: TcpListener,
        identity: &Identity,
        handler: Arc<dyn AcceptHandler>,
        limits: ListenLimits,
    ) -> Result<Self, std::io::Error> {
        let failed = |error: IdentityError| std::io::Error::other(error);
        let choose = configurations(identity).map_err(failed)?;
        let address = socket.local_addr()?;
        let closing = Arc::new(AtomicBool::new(false));
        let acceptor = Arc::new(ConnectionAcceptor {
            choose,
            handler,
            limits,
            closing: Arc::clone(&closing),
            open: AtomicUsize::new(0),
            pending: Mutex::default(),
        });
        let accepting = thread::spawn(move || acceptor.run(&socket));
        Ok(Self {
            address,
            closing,
            accepting: Some(accepting),
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for TlsListener {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        let mut here = self.address;
        if here.ip().is_unspecified() {
            here.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        // Wakes the accepting thread; if that fails, it is detached.
        let woken = TcpStream::connect_timeout(&here, Duration::from_secs(1)).is_ok();
        if let Some(thread) = self.accepting.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// The shared state of a listener's threads.
struct ConnectionAcceptor {
    choose: ChooseConfig,
    handler: Arc<dyn AcceptHandler>,
    limits: ListenLimits,
    closing: Arc<AtomicBool>,
    open: AtomicUsize,
    pending: Mutex<BTreeMap<u64, TcpStream>>,
}

impl ConnectionAcceptor {
    fn run(self: &Arc<Self>, socket: &TcpListener) {
        for number in 0_u64.. {
            let (stream, from) = match socket.accept() {
                Ok(accepted) => accepted,
                Err(_) if self.closing.load(Ordering::SeqCst) => return,
                Err(_) => {
                    // Usually out of file descriptors, which may be temporary.
                    ronde_clock::pause(Duration::from_millis(10));
                    continue;
                }
            };
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            if self.open.load(Ordering::SeqCst) >= self.limits.connections {
                continue;
            }
            if !self.admit(number, &stream) {
                continue;
            }
            self.open.fetch_add(1, Ordering::SeqCst);
            let acceptor = Arc::clone(self);
            let serve = move || {
                acceptor.serve(number, stream, from);
                acceptor.open.fetch_sub(1, Ordering::SeqCst);
            };
            if thread::Builder::new().spawn(serve).is_err() {
                // Too many threads on this machine: the client will try again.
                self.pending().remove(&number);
                self.open.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new connection, instead of the oldest pending one if there are too many. Returns
    /// false if the connection cannot be registered.
    fn admit(&self, number: u64, stream: &TcpStream) -> bool {
        let Ok(handle) = stream.try_clone() else {
            return false;
        };
        let mut pending = self.pending();
        while pending.len() >= self.limits.pending {
            if let Some((_, oldest)) = pending.pop_first() {
                let _ = oldest.shutdown(Shutdown::Both);
            }
        }
        pending.insert(number, handle);
        true
    }

    fn serve(&self, number: u64, stream: TcpStream, from: SocketAddr) {
        let deadline = ronde_clock::now() + self.limits.handshake;
        let received = receive(stream, from, &self.choose, deadline);
        let is_closed = self.pending().remove(&number).is_none();
        match received {
            Ok(accepted) => self.handler.greet(accepted),
            Err(_) if is_closed => {
                let why = "closed: too many connections have not authenticated";
                self.handler.turn_away(from, why.to_owned());
            }
            Err(Some(why)) => self.handler.turn_away(from, why),
            Err(None) => {}
        }
    }
}

/// Performs the handshake and reads the first line. `Err(None)`: the client closed the connection without a request; it rejected
/// this side's certificate, or only checked whether the port is open.
fn receive(
    socket: TcpStream,
    from: SocketAddr,
    choose: &ChooseConfig,
    deadline: Instant,
) -> Result<AcceptedConnection, Option<String>> {
    let refused = |error: WireError| match error {
        WireError::Closed => None,
        WireError::Late => Some("no complete request within the time limit".to_owned()),
        WireError::TooLong { .. } => Some("its first line is too long".to_owned()),
        error => Some(error.to_string()),
    };
    let lost = |error: std::io::Error| refused(error.into());
    socket.set_nodelay(true).map_err(lost)?;
    let stream = TlsStream::accept_by(socket, Arc::clone(choose), deadline).map_err(lost)?;
    let limit = match stream.tls().session().protocol() {
        Some(JOINING) => STRANGER_BYTES_MAX,
        _ => LINE_BYTES_MAX,
    };
    let way = match stream.certificate() {
        Some(certificate) => Authentication::Certificate(certificate.clone()),
        None => Authentication::JoinToken,
    };
    let mut lines = LineStream::new(WireStream::Tls(Box::new(stream)));
    let line = lines.next_line(limit, deadline, &mut || {});
    let line = line.map_err(refused)?;
    let (WireStream::Tls(stream), rest) = lines.into_parts() else {
        return Err(None);
    };
    Ok(AcceptedConnection {
        from,
        way,
        line,
        rest,
        stream,
    })
}

/// Returns the choice between the configurations for clients with a join token and with a certificate.
fn configurations(identity: &Identity) -> Result<ChooseConfig, IdentityError> {
    let joining = identity.joining_server_config(JOINING)?;
    let members = identity.server_config(MEMBERS)?;
    Ok(Arc::new(move |hello| {
        let joins = hello
            .alpn()
            .is_some_and(|mut offered| offered.any(|protocol| protocol == JOINING));
        Arc::clone(match joins {
            true => &joining,
            false => &members,
        })
    }))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::Ipv4Addr;
    use std::sync::mpsc::{Sender, channel};

    use ronde_identity::{Authority, Validity};

    use super::*;
    use crate::secure::dial;

    /// A limit that only a failure reaches.
    const LIMIT: Duration = Duration::from_secs(120);
    const PENDING: usize = 4;

    struct Recorder(Sender<bool>);

    impl AcceptHandler for Recorder {
        fn greet(&self, accepted: AcceptedConnection) {
            let is_join = matches!(accepted.way, Authentication::JoinToken);
            self.0.send(is_join).unwrap();
        }

        fn turn_away(&self, _: SocketAddr, _: String) {}
    }

    #[test]
    fn idle_connections_are_bounded_and_do_not_keep_a_client_out() {
        let authority =
            Authority::new("job", Validity::from_now(ronde_clock::date(), LIMIT)).unwrap();
        let validity = Validity::from_now(ronde_clock::date(), LIMIT);
        let member = ronde_identity::Member::Coordinator;
        let identity = authority.issue(&member, validity).unwrap();
        let token = authority.join_token().unwrap();
        let (sender, accepted) = channel();
        let limits = ListenLimits {
            handshake: Duration::from_secs(3_600),
            pending: PENDING,
            connections: 1_000,
        };
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let handler = Arc::new(Recorder(sender));
        let listener = TlsListener::start(socket, &identity, handler, limits).unwrap();
        let idle: Vec<TcpStream> = (0..10 * PENDING)
            .map(|_| TcpStream::connect(listener.address()).unwrap())
            .collect();
        // All but the newest are closed, although their time limit has not passed.
        for mut stream in &idle[..9 * PENDING] {
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            let closed = stream.read(&mut [0]);
            assert!(closed.is_ok_and(|read| read == 0));
        }
        let reply = dial::call::<String>(listener.address(), &token, &"line", LIMIT);
        assert!(reply.is_err(), "the handler sends no reply");
        assert!(accepted.recv_timeout(LIMIT).unwrap());
    }
}
