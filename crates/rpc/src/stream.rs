//! [`RpcStream`]: a non-blocking socket, plain or with TLS 1.3.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_identity::rustls::Connection as TlsConnection;
use ronde_identity::rustls::pki_types::CertificateDer;
use ronde_identity::{explain, rustls};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Bytes encrypted between two writes to the socket.
const TLS_BYTES: usize = 128 << 10;
/// Socket buffers in bytes between two processes of one host: larger ones exceed the processor's cache.
const LOOPBACK_BYTES: (usize, usize) = (128 << 10, 1 << 20);
/// How long sent bytes may stay unacknowledged, and an idle connection is not probed.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// A connected, or connecting, socket that never blocks. Reads and writes may run on different threads.
pub(crate) struct RpcStream {
    socket: TcpStream,
    tls: Option<Mutex<TlsState>>,
    is_loopback: bool,
}

struct TlsState {
    connection: TlsConnection,
    /// A read has left decrypted or undecrypted bytes inside.
    has_more: bool,
}

impl RpcStream {
    /// Begins to connect.
    pub(crate) fn dial(address: SocketAddr, tls: Option<TlsConnection>) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM.cloexec(),
            Some(Protocol::TCP),
        )?;
        socket.set_nonblocking(true)?;
        let is_loopback = address.ip().is_loopback();
        if is_loopback {
            socket.set_send_buffer_size(LOOPBACK_BYTES.0)?;
            socket.set_recv_buffer_size(LOOPBACK_BYTES.1)?;
        }
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
            Err(error) => return Err(error),
        }
        Self::new(socket.into(), tls, is_loopback)
    }

    /// Takes an accepted socket.
    pub(crate) fn accepted(socket: TcpStream, tls: Option<TlsConnection>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let is_loopback = socket.peer_addr()?.ip().is_loopback();
        if is_loopback {
            let options = SockRef::from(&socket);
            options.set_send_buffer_size(LOOPBACK_BYTES.0)?;
            options.set_recv_buffer_size(LOOPBACK_BYTES.1)?;
        }
        Self::new(socket, tls, is_loopback)
    }

    fn new(socket: TcpStream, tls: Option<TlsConnection>, is_loopback: bool) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let options = SockRef::from(&socket);
        let probes = TcpKeepalive::new()
            .with_time(SILENCE_MAX / 2)
            .with_interval(SILENCE_MAX / 4);
        options.set_tcp_keepalive(&probes)?;
        options.set_tcp_user_timeout(Some(SILENCE_MAX))?;
        let tls = tls.map(|mut connection| {
            connection.set_buffer_limit(Some(TLS_BYTES));
            Mutex::new(TlsState {
                connection,
                has_more: false,
            })
        });
        Ok(Self {
            socket,
            tls,
            is_loopback,
        })
    }

    /// Returns whether the peer runs on this host and nothing is encrypted.
    pub(crate) fn is_plain_on_host(&self) -> bool {
        self.is_loopback && self.tls.is_none()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the error of an attempt to connect that has ended.
    pub(crate) fn dial_error(&self) -> Option<io::Error> {
        self.socket.take_error().unwrap_or_else(Some)
    }

    pub(crate) fn shut_down(&self) {
        let _gone = self.socket.shutdown(Shutdown::Both);
    }

    /// Returns the peer's certificate, after the handshake.
    pub(crate) fn certificate(&self) -> Option<CertificateDer<'static>> {
        let tls = lock(self.tls.as_ref()?);
        Some(tls.connection.peer_certificates()?.first()?.clone())
    }

    /// Returns whether bytes may be readable although the socket has none.
    pub(crate) fn has_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| lock(tls).has_more)
    }

    /// Returns whether encrypted bytes wait for the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        let tls = self.tls.as_ref();
        tls.is_some_and(|tls| lock(tls).connection.wants_write())
    }

    /// Reads up to the length of `into`; `WouldBlock` if nothing is there, 0 at the end of the stream.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return (&self.socket).read(into);
        };
        let mut tls = lock(tls);
        let TlsState {
            connection,
            has_more,
        } = &mut *tls;
        loop {
            match connection.reader().read(into) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                outcome => {
                    *has_more = outcome.is_ok();
                    return outcome;
                }
            }
            match connection.read_tls(&mut &self.socket) {
                Ok(0) => return Ok(0),
                Ok(_) => {}
                Err(error) => {
                    *has_more = false;
                    return Err(error);
                }
            }
            let processed = connection.process_new_packets();
            // Answers of the handshake, or the alert with the reason.
            let flushed = flush(connection, &self.socket);
            processed.map_err(|error| refused(&error))?;
            match flushed {
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
        }
    }

    /// Writes some of `pieces`, in their order; `WouldBlock` if the socket takes nothing.
    pub(crate) fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &self.tls else {
            return (&self.socket).write_vectored(pieces);
        };
        let mut tls = lock(tls);
        let connection = &mut tls.connection;
        flush(connection, &self.socket)?;
        let count = connection.writer().write_vectored(pieces)?;
        match flush(connection, &self.socket) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            // During the handshake, TLS takes no more than its limit.
            _ if count == 0 => Err(ErrorKind::WouldBlock.into()),
            _ => Ok(count),
        }
    }

    /// Writes encrypted bytes that wait for the socket.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match &self.tls {
            None => Ok(()),
            Some(tls) => flush(&mut lock(tls).connection, &self.socket),
        }
    }
}

fn lock(tls: &Mutex<TlsState>) -> MutexGuard<'_, TlsState> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}

fn flush(connection: &mut TlsConnection, mut socket: &TcpStream) -> io::Result<()> {
    while connection.wants_write() {
        match connection.write_tls(&mut socket) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Converts a TLS error to an I/O error.
fn refused(error: &rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, explain(error))
}
