//! [`TlsStream`]: a TLS connection and its socket.

use std::io::{self, IoSlice, Read};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_identity::rustls::pki_types::{CertificateDer, ServerName};
use ronde_identity::rustls::{ClientConfig, ServerConfig};

use crate::error::timed_out;
use crate::tls_session::{ChooseConfig, TlsSession};
use crate::tls_socket::{TlsSocket, limit};

/// How long an end that closes tries to send its remaining bytes.
const LAST_BYTES_MAX: Duration = Duration::from_secs(1);
/// Maximum number of bytes read from a refused peer so that it receives the reason.
const DRAIN_BYTES_MAX: usize = 64 << 10;

/// A TLS connection and its socket; blocks exactly when the socket does. The handshake is over.
#[derive(Debug)]
pub struct TlsStream {
    socket: TcpStream,
    tls: TlsSocket,
}

impl TlsStream {
    /// Performs the handshake as the end that dialled.
    ///
    /// # Errors
    /// Refusals, those of the socket, `TimedOut`.
    pub fn dial(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        end: Instant,
    ) -> io::Result<Self> {
        Self::over(socket, TlsSession::client(config, name)?, end)
    }

    /// Performs the handshake as the end that was dialled.
    ///
    /// # Errors
    /// As for [`TlsStream::dial`].
    pub fn accept(socket: TcpStream, config: Arc<ServerConfig>, end: Instant) -> io::Result<Self> {
        Self::over(socket, TlsSession::server(config)?, end)
    }

    /// Does the same with a configuration that depends on the first message of the peer.
    ///
    /// # Errors
    /// As for [`TlsStream::dial`].
    pub fn accept_by(socket: TcpStream, choose: ChooseConfig, end: Instant) -> io::Result<Self> {
        Self::over(socket, TlsSession::server_by(choose), end)
    }

    fn over(socket: TcpStream, session: TlsSession, end: Instant) -> io::Result<Self> {
        let mut stream = Self {
            socket,
            tls: TlsSocket::new(session),
        };
        stream.tls.read_by_record(true);
        match stream.tls.shake_hands(&stream.socket, end) {
            Ok(()) => Ok(stream),
            Err(error) => {
                stream.close_after_drain(end);
                Err(timed_out(error))
            }
        }
    }

    /// Closes in such a way that a peer whose bytes were not read still receives the reason.
    fn close_after_drain(&mut self, end: Instant) {
        let end = end.min(ronde_clock::deadline(LAST_BYTES_MAX));
        let _gone = self.limit(end).and_then(|()| self.flush());
        let _gone = self.socket.shutdown(Shutdown::Write);
        let (mut drained, mut piece) = (0, [0; 4096]);
        while drained < DRAIN_BYTES_MAX && limit(&self.socket, end).is_ok() {
            match (&self.socket).read(&mut piece) {
                Ok(count @ 1..) => drained += count,
                _ => return,
            }
        }
    }

    /// Returns the socket.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Returns the state of the connection beside its socket.
    #[must_use]
    pub fn tls(&self) -> &TlsSocket {
        &self.tls
    }

    /// Returns the peer's certificate.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.certificate()
    }

    /// Sets whether reads end at the end of a TLS record; they do after the handshake.
    pub fn read_by_record(&mut self, by_record: bool) {
        self.tls.read_by_record(by_record);
    }

    /// Sets the deadline of the next blocking calls.
    ///
    /// # Errors
    /// `TimedOut` if it has passed.
    pub fn limit(&mut self, end: Instant) -> io::Result<()> {
        self.tls.limit(&self.socket, end)
    }

    /// Does [`TlsSocket::leave_tls`].
    pub fn leave_tls(&mut self) {
        self.tls.leave_tls();
    }

    /// Does [`TlsSocket::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.tls.read(&self.socket, into)
    }

    /// Does [`TlsSocket::read_some`].
    ///
    /// # Errors
    /// As there.
    pub fn read_some(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.tls.read_some(&self.socket, into)
    }

    /// Does [`TlsSocket::write`].
    ///
    /// # Errors
    /// As there.
    pub fn write(&mut self, pieces: &mut [IoSlice<'_>]) -> io::Result<usize> {
        self.tls.write(&self.socket, pieces)
    }

    /// Does [`TlsSocket::flush`].
    ///
    /// # Errors
    /// As there.
    pub fn flush(&mut self) -> io::Result<()> {
        self.tls.flush(&self.socket)
    }

    /// Does [`TlsSocket::finish`].
    pub fn finish(&mut self) {
        self.tls.finish(&self.socket);
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        if self.tls.has_unsent() {
            let end = ronde_clock::deadline(LAST_BYTES_MAX);
            let _gone = self
                .socket
                .set_nonblocking(false)
                .and_then(|()| self.limit(end))
                .and_then(|()| self.flush());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use ronde_core::Rank;
    use ronde_identity::Member;

    use super::*;
    use crate::error::TlsRefusal;
    use crate::tls_session::tests::members;

    fn connected() -> [TcpStream; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [dialled, listener.accept().unwrap().0]
    }

    #[test]
    fn a_handshake_that_arrives_byte_by_byte_ends_at_its_deadline() {
        let [_, accepts] = members();
        let [mut dialled, accepted] = connected();
        let slow = thread::spawn(move || {
            // A handshake record of 16 KiB, with a byte every few milliseconds.
            let mut bytes = [22, 3, 1, 0x40, 0].into_iter().chain(std::iter::repeat(1));
            while dialled.write_all(&[bytes.next().unwrap_or(1)]).is_ok() {
                ronde_clock::pause(Duration::from_millis(5));
            }
        });
        let end = ronde_clock::deadline(Duration::from_millis(200));
        let server = accepts.server_config(b"test").unwrap();
        let error = TlsStream::accept(accepted, server, end).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        slow.join().unwrap();
    }

    #[test]
    fn both_ends_learn_that_their_jobs_differ() {
        let [dials, _] = members();
        let [_, accepts] = members();
        let [dialled, accepted] = connected();
        let end = ronde_clock::deadline(Duration::from_secs(60));
        let server = accepts.server_config(b"test").unwrap();
        let accepting = thread::spawn(move || TlsStream::accept(accepted, server, end).map(drop));
        let name = dials.name_of(&Member::Rank(Rank(1))).unwrap();
        let client = dials.client_config(b"test").unwrap();
        let dialling = TlsStream::dial(dialled, client, name, end).map(drop);
        for error in [
            dialling.unwrap_err(),
            accepting.join().unwrap().unwrap_err(),
        ] {
            assert!(TlsRefusal::of(&error).is_some(), "{error}");
        }
    }
}
