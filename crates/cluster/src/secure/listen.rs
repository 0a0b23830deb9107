//! [`Listener`]: who comes to a coordinator, as far as the first line.

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

/// How long a stranger may take to show who he is.
const GREETING_MAX: Duration = Duration::from_secs(5);
/// Connections at once; more are closed.
const CONNECTIONS_MAX: usize = 1_024;

/// How somebody came in.
pub(crate) enum Way {
    /// With a join token in the first line, which is not looked at yet.
    Joining,
    /// With this certificate of the job's authority.
    Member(CertificateDer<'static>),
}

/// Somebody whose first line is there.
pub(crate) struct Greeted {
    pub(crate) from: SocketAddr,
    pub(crate) way: Way,
    pub(crate) line: Vec<u8>,
    /// What came after the line.
    pub(crate) rest: Vec<u8>,
    pub(crate) tls: Connection,
    pub(crate) stream: TcpStream,
}

/// What is done with those who come; runs on a thread of the connection.
pub(crate) trait Reception: Send + Sync {
    /// Somebody has said a first line.
    fn greet(&self, greeted: Greeted);
    /// Somebody could not show that he belongs here.
    fn turn_away(&self, from: SocketAddr, why: String);
}

/// A listening socket, a thread for it and one for each connection.
pub(crate) struct Listener {
    address: SocketAddr,
    closing: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

struct Configs {
    joining: Arc<ServerConfig>,
    members: Arc<ServerConfig>,
}

impl Listener {
    /// Listens with the coordinator's certificate.
    pub(crate) fn start(
        socket: TcpListener,
        identity: &Identity,
        reception: Arc<dyn Reception>,
    ) -> Result<Self, std::io::Error> {
        let failed = |error: IdentityError| std::io::Error::other(error);
        let configs = Arc::new(Configs {
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

impl Drop for Listener {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::SeqCst);
        let mut here = self.address;
        if here.ip().is_unspecified() {
            here.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        // Wakes the accepting thread; where that fails it is left behind.
        let woken = TcpStream::connect_timeout(&here, Duration::from_secs(1)).is_ok();
        if let Some(thread) = self.accepting.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn accept(
    socket: &TcpListener,
    configs: &Arc<Configs>,
    reception: &Arc<dyn Reception>,
    closing: &AtomicBool,
) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let (stream, from) = match socket.accept() {
            Ok(accepted) => accepted,
            Err(_) if closing.load(Ordering::SeqCst) => return,
            Err(_) => {
                // Out of file descriptors, as a rule: that may pass.
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

/// Handshake and first line. `Err(None)`: nobody who wanted anything.
fn receive(
    stream: TcpStream,
    from: SocketAddr,
    configs: &Configs,
) -> Result<Greeted, Option<String>> {
    let deadline = clock::now() + GREETING_MAX;
    let lost = |error: std::io::Error| Some(error.to_string());
    stream.set_nodelay(true).map_err(lost)?;
    let mut tls = shake_hands(&stream, configs, deadline)?;
    let (mut held, mut open) = (Vec::new(), true);
    let end = loop {
        // The handshake may have brought the line with it.
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = tls.reader().read(&mut piece) {
            held.extend_from_slice(&piece[..read]);
        }
        if let Some(end) = held.iter().position(|byte| *byte == b'\n') {
            break end;
        }
        if held.len() > STRANGER_BYTES_MAX && tls.alpn_protocol() == Some(JOINING) {
            return Err(Some("its first line has no end".to_owned()));
        }
        if !open {
            // The other side did not like what it saw, or it only looked whether somebody is here.
            return Err(None);
        }
        open = step(&mut tls, &stream, deadline)?;
    };
    let rest = held.split_off(end + 1);
    held.truncate(end);
    let certificate = tls.peer_certificates().and_then(|all| all.first());
    let way = match certificate {
        Some(certificate) => Way::Member(certificate.clone().into_owned()),
        None => Way::Joining,
    };
    Ok(Greeted {
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
    configs: &Configs,
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
        return Err(Some("it did not say who it is in time".to_owned()));
    }
    let set = stream
        .set_read_timeout(Some(left))
        .and_then(|()| stream.set_write_timeout(Some(left)));
    set.map_err(|error| Some(error.to_string()))
}

/// Sends what has to be sent, reads once; false at the end of the stream.
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
        // The alert says why.
        let _ = tls.write_tls(&mut stream);
        return Err(Some(explain(&error)));
    }
    while tls.wants_write() {
        tls.write_tls(&mut stream).map_err(lost)?;
    }
    Ok(read > 0)
}
