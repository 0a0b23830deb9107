//! [`RpcStream`]: a non-blocking socket, plain or with TLS 1.3.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_identity::rustls::pki_types::CertificateDer;
use ronde_wire::{TlsSession, TlsSocket};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

/// Socket buffers in bytes between two processes of one host: larger ones exceed the processor's cache.
const LOOPBACK_BYTES: (usize, usize) = (128 << 10, 1 << 20);
/// How long sent bytes may stay unacknowledged, and an idle connection is not probed.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// A connected, or connecting, socket that never blocks. Reads and writes may run on different threads.
pub(crate) struct RpcStream {
    socket: TcpStream,
    tls: Option<Mutex<TlsSocket>>,
    is_loopback: bool,
}

impl RpcStream {
    /// Begins to connect.
    pub(crate) fn dial(address: SocketAddr, tls: Option<TlsSession>) -> io::Result<Self> {
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
    pub(crate) fn accepted(socket: TcpStream, tls: Option<TlsSession>) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let is_loopback = socket.peer_addr()?.ip().is_loopback();
        if is_loopback {
            let options = SockRef::from(&socket);
            options.set_send_buffer_size(LOOPBACK_BYTES.0)?;
            options.set_recv_buffer_size(LOOPBACK_BYTES.1)?;
        }
        Self::new(socket, tls, is_loopback)
    }

    fn new(socket: TcpStream, tls: Option<TlsSession>, is_loopback: bool) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let options = SockRef::from(&socket);
        let probes = TcpKeepalive::new()
            .with_time(SILENCE_MAX / 2)
            .with_interval(SILENCE_MAX / 4);
        options.set_tcp_keepalive(&probes)?;
        options.set_tcp_user_timeout(Some(SILENCE_MAX))?;
        Ok(Self {
            socket,
            tls: tls.map(|session| Mutex::new(TlsSocket::new(session))),
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
        Some(lock(self.tls.as_ref()?).certificate()?.clone())
    }

    /// Returns whether bytes may be readable although the socket has none.
    pub(crate) fn has_more(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| lock(tls).has_more())
    }

    /// Returns whether encrypted bytes wait for the socket.
    pub(crate) fn has_unsent(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| lock(tls).has_unsent())
    }

    /// Reads up to the length of `into`; `WouldBlock` if nothing is there, 0 at the end of the stream.
    pub(crate) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            None => (&self.socket).read(into),
            Some(tls) => lock(tls).read(&self.socket, into),
        }
    }

    /// Writes some of `pieces`, in their order; `WouldBlock` if the socket takes nothing.
    pub(crate) fn write(&self, pieces: &mut [IoSlice<'_>]) -> io::Result<usize> {
        match &self.tls {
            None => (&self.socket).write_vectored(pieces),
            Some(tls) => lock(tls).write(&self.socket, pieces),
        }
    }

    /// Writes encrypted bytes that wait for the socket.
    pub(crate) fn flush(&self) -> io::Result<()> {
        match &self.tls {
            None => Ok(()),
            Some(tls) => lock(tls).flush(&self.socket),
        }
    }
}

fn lock(tls: &Mutex<TlsSocket>) -> MutexGuard<'_, TlsSocket> {
    tls.lock().unwrap_or_else(PoisonError::into_inner)
}
