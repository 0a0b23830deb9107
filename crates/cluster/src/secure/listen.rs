//! [`TlsListener`]: accepts connections to a coordinator up to their first line.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ronde_identity::rustls::pki_types::CertificateDer;
use ronde_identity::rustls::server::Acceptor;
use ronde_identity::rustls::{Connection, ServerConfig};
use ronde_identity::{Identity, IdentityError, explain};

use super::{JOINING, MEMBERS, STRANGER_BYTES_MAX};
use crate::clock;

/// Time limit for the handshake and the first line of a connection.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// Maximum number of simultaneous connections; further ones are closed.
const CONNECTIONS_MAX: usize = 1_024;

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
    pub(crate) tls: Connection,
    pub(crate) stream: TcpStream,
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

struct TlsConfigs {
    joining: Arc<ServerConfig>,
    members: Arc<ServerConfig>,
}

impl TlsListener {
    /// Listens with the coordinator's certificate.
    pub(crate) fn start(
        socket: TcpListener,
        identity: &Identity,
        reception: Arc<dyn AcceptHandler>,
    ) -> Result<Self, std::io::Error> {
        let failed = |error: IdentityError| std::io::Error::other(error);
        let configs = Arc::new(TlsConfigs {
            joining: identity.joining_server_config(JOINING).map_err(failed)?,
            members: identity.server_config(MEMBERS).map_err(failed)?,
        });
        let address = socket.local_addr()?;
        let closing = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&closing);
        let accepting = thread::spawn(move || accept(&socket, &configs, &reception, &ends));
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

fn accept(
    socket: &TcpListener,
    configs: &Arc<TlsConfigs>,
    reception: &Arc<dyn AcceptHandler>,
    closing: &AtomicBool,
) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let (stream, from) = match socket.accept() {
            Ok(accepted) => accepted,
            Err(_) if closing.load(Ordering::SeqCst) => return,
            Err(_) => {
                // Usually out of file descriptors, which may be temporary.
                clock::pause(Duration::from_millis(10));
                continue;
            }
        };
        if closing.load(Ordering::SeqCst) {
            return;
        }
        if open.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::SeqCst);
            continue;
        }
        let (configs, reception, open) = (configs.clone(), reception.clone(), open.clone());
        thread::spawn(move || {
            match receive(stream, from, &configs) {
                Ok(greeted) => reception.greet(greeted),
                Err(Some(why)) => reception.turn_away(from, why),
                Err(None) => {}
            }
            open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

/// Performs the handshake and reads the first line. `Err(None)`: the client closed the connection
/// without a request.
fn receive(
    stream: TcpStream,
    from: SocketAddr,
    configs: &TlsConfigs,
) -> Result<AcceptedConnection, Option<String>> {
    let deadline = clock::now() + GREETING_MAX;
    let lost = |error: std::io::Error| Some(error.to_string());
    stream.set_nodelay(true).map_err(lost)?;
    let mut tls = shake_hands(&stream, configs, deadline)?;
    let (mut held, mut open) = (Vec::new(), true);
    let end = loop {
        // The handshake may have included the line.
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = tls.reader().read(&mut piece) {
            held.extend_from_slice(&piece[..read]);
        }
        if let Some(end) = held.iter().position(|byte| *byte == b'\n') {
            break end;
        }
        if held.len() > STRANGER_BYTES_MAX && tls.alpn_protocol() == Some(JOINING) {
            return Err(Some("its first line is too long".to_owned()));
        }
        if !open {
            // The client rejected this side's certificate, or only checked whether the port is
            // open.
            return Err(None);
        }
        open = step(&mut tls, &stream, deadline)?;
    };
    let rest = held.split_off(end + 1);
    held.truncate(end);
    let certificate = tls.peer_certificates().and_then(|all| all.first());
    let way = match certificate {
        Some(certificate) => Authentication::Certificate(certificate.clone().into_owned()),
        None => Authentication::JoinToken,
    };
    Ok(AcceptedConnection {
        from,
        way,
        line: held,
        rest,
        tls,
        stream,
    })
}

fn shake_hands(
    stream: &TcpStream,
    configs: &TlsConfigs,
    deadline: Instant,
) -> Result<Connection, Option<String>> {
    let mut acceptor = Acceptor::default();
    let accepted = loop {
        limit(stream, deadline)?;
        match acceptor.read_tls(&mut &*stream) {
            Ok(0) => return Err(None),
            Ok(_) => {}
            Err(error) => return Err(Some(error.to_string())),
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => break accepted,
            Ok(None) => {}
            Err((error, mut alert)) => {
                let _ = alert.write_all(&mut &*stream);
                return Err(Some(explain(&error)));
            }
        }
    };
    let joins = accepted
        .client_hello()
        .alpn()
        .is_some_and(|mut asked| asked.any(|protocol| protocol == JOINING));
    let config = if joins {
        &configs.joining
    } else {
        &configs.members
    };
    let tls = accepted.into_connection(Arc::clone(config));
    let mut tls = Connection::from(tls.map_err(|(error, mut alert)| {
        let _ = alert.write_all(&mut &*stream);
        Some(explain(&error))
    })?);
    while tls.is_handshaking() {
        if !step(&mut tls, stream, deadline)? {
            return Err(None);
        }
    }
    Ok(tls)
}

fn limit(stream: &TcpStream, deadline: Instant) -> Result<(), Option<String>> {
    let left = deadline.saturating_duration_since(clock::now());
    if left.is_zero() {
        return Err(Some("no complete request within the time limit".to_owned()));
    }
    let set = stream
        .set_read_timeout(Some(left))
        .and_then(|()| stream.set_write_timeout(Some(left)));
    set.map_err(|error| Some(error.to_string()))
}

/// Sends pending data and reads once; returns false at the end of the stream.
fn step(
    tls: &mut Connection,
    mut stream: &TcpStream,
    deadline: Instant,
) -> Result<bool, Option<String>> {
    limit(stream, deadline)?;
    let lost = |error: std::io::Error| Some(error.to_string());
    while tls.wants_write() {
        tls.write_tls(&mut stream).map_err(lost)?;
    }
    let read = tls.read_tls(&mut stream).map_err(lost)?;
    if let Err(error) = tls.process_new_packets() {
        // The alert contains the reason.
        let _ = tls.write_tls(&mut stream);
        return Err(Some(explain(&error)));
    }
    while tls.wants_write() {
        tls.write_tls(&mut stream).map_err(lost)?;
    }
    Ok(read > 0)
}
