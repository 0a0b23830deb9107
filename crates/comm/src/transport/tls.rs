//! Streams over TLS 1.3: one connection per pair of members over non-blocking sockets.
//!
//! A connection within one host may continue without encryption once both ends have authenticated each
//! other, see [`TlsStream::leave_tls`].
//!
//! Bytes that TLS has accepted but the socket has not are kept here, at most [`PIECE_BYTES`] and a little
//! more per peer, and are sent in [`Transport::wait`].

use std::cell::Cell;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_identity::explain;
use ronde_identity::rustls::pki_types::{CertificateDer, ServerName};
use ronde_identity::rustls::{
    ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection,
};

use super::poller::Poller;
use super::tcp;
use super::unanswered::unanswered;
use super::{Interest, PeerStream, Transport, Waker};
use crate::connect::PeerConnection;

/// Bytes encrypted between two writes to the socket.
const PIECE_BYTES: usize = 128 << 10;
/// Bytes read from the socket at once.
const READ_BYTES: usize = 128 << 10;
/// Size of the header of a TLS record, in bytes.
const RECORD_HEADER: usize = 5;
/// How long a closing member tries to send its remaining bytes.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Maximum number of bytes read from a refused peer so that it receives the reason.
const DRAIN_BYTES_MAX: usize = 64 << 10;

/// A TLS connection and its socket; blocks exactly when the socket does.
#[derive(Debug)]
pub(crate) struct TlsStream {
    socket: TcpStream,
    connection: Connection,
    /// Reads no further than the end of a TLS record, because plain bytes may follow.
    by_record: bool,
    /// The deadline of the blocking calls, for which a record that arrives in many parts is read.
    deadline: Cell<Option<Instant>>,
    /// The connection has left TLS.
    plain: bool,
    /// Encrypted bytes that TLS has not processed: `incoming[at..end]`.
    incoming: Vec<u8>,
    at: usize,
    end: usize,
    /// TLS may hold readable bytes while the socket has none.
    more: bool,
    /// Nothing more will be written.
    finishing: bool,
    /// The error after which nothing more can be read.
    broken: Option<(ErrorKind, String)>,
}

impl TlsStream {
    /// Performs the handshake as the member that dialled.
    pub(crate) fn dial(
        socket: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
        end: Instant,
    ) -> io::Result<Self> {
        let connection = ClientConnection::new(config, name).map_err(refused)?;
        Self::shake_hands(socket, connection.into(), end)
    }

    /// Performs the handshake as the member that was dialled.
    pub(crate) fn accept(
        socket: TcpStream,
        config: Arc<ServerConfig>,
        end: Instant,
    ) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(refused)?;
        Self::shake_hands(socket, connection.into(), end)
    }

    fn shake_hands(socket: TcpStream, connection: Connection, end: Instant) -> io::Result<Self> {
        let mut stream = Self {
            socket,
            connection,
            by_record: true,
            deadline: Cell::new(None),
            plain: false,
            incoming: vec![0; READ_BYTES],
            at: 0,
            end: 0,
            more: true,
            finishing: false,
            broken: None,
        };
        stream.connection.set_buffer_limit(Some(PIECE_BYTES));
        while stream.connection.is_handshaking() || stream.connection.wants_write() {
            stream.limit(end)?;
            if stream.connection.wants_write() {
                stream.flush()?;
            } else if stream
                .feed()
                .inspect_err(|_| stream.close_after_drain(end))?
                == 0
            {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(stream)
    }

    /// Sets the deadline of the next blocking calls.
    pub(crate) fn limit(&self, end: Instant) -> io::Result<()> {
        let left = ronde_clock::left(end);
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.deadline.set(Some(end));
        self.socket.set_read_timeout(Some(left))?;
        self.socket.set_write_timeout(Some(left))
    }

    /// Closes in such a way that a peer whose bytes were not read still receives the reason.
    fn close_after_drain(&mut self, end: Instant) {
        let end = end.min(ronde_clock::deadline(LAST_WORDS));
        let _gone = self.limit(end).and_then(|()| self.flush());
        let _gone = self.socket.shutdown(Shutdown::Write);
        let mut drained = 0;
        while drained < DRAIN_BYTES_MAX && self.limit(end).is_ok() {
            match self.socket.read(&mut self.incoming) {
                Ok(count @ 1..) => drained += count,
                _ => return,
            }
        }
    }

    /// Prepares the connected socket for a transport.
    pub(crate) fn set_up(&self) -> io::Result<()> {
        tcp::set_up(&self.socket)
    }

    /// Returns the peer's certificate.
    pub(crate) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.connection.peer_certificates()?.first()
    }

    /// Passes encrypted bytes to TLS, from the socket when none are left; 0 at the end of the stream.
    fn feed(&mut self) -> io::Result<usize> {
        if let Some((kind, why)) = &self.broken {
            return Err(io::Error::new(*kind, why.clone()));
        }
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
        }
        if self.by_record && self.at == 0 {
            match self.receive_record()? {
                None => return Ok(1),
                Some(0) => self.end = 0,
                Some(_) => {}
            }
        } else if self.at == self.end {
            self.end = tcp::again(|| self.socket.read(&mut self.incoming))?;
        }
        let mut rest = &self.incoming[self.at..self.end];
        let count = self.connection.read_tls(&mut rest)?;
        self.at += count;
        if let Err(error) = self.connection.process_new_packets() {
            // The alert has the reason; what cannot be sent now is not worth waiting for.
            let _unheard = self.flush();
            return Err(refused(error));
        }
        Ok(count)
    }

    /// Reads from the socket once, at most to the end of the current record. Returns `None` while the record is not
    /// complete, so that a caller can check its deadline.
    fn receive_record(&mut self) -> io::Result<Option<usize>> {
        if let Some(end) = self.deadline.get() {
            self.limit(end)?;
        }
        let len = self.record_len();
        let count = tcp::again(|| self.socket.read(&mut self.incoming[self.end..len]))?;
        self.end += count;
        let is_complete = count == 0 || self.end == self.record_len();
        Ok(is_complete.then_some(count))
    }

    /// Returns the length of the record that starts the unprocessed bytes, or of its header if that is not complete.
    fn record_len(&self) -> usize {
        match self.incoming[..self.end] {
            [20..=23, 3, _, high, low, ..] => {
                RECORD_HEADER + usize::from(u16::from_be_bytes([high, low]))
            }
            // Incomplete, or not TLS, which TLS reports.
            _ => RECORD_HEADER,
        }
    }

    /// Continues without encryption. Both ends call it after the same message, the last one by TLS.
    pub(crate) fn leave_tls(&mut self) {
        debug_assert!(self.at == self.end && !self.connection.wants_write());
        self.plain = true;
        self.more = false;
    }

    /// Returns whether both ends of the connection have one IP address and so are on one host, unless the
    /// connection is forwarded.
    pub(crate) fn has_one_address(&self) -> bool {
        match (self.socket.local_addr(), self.socket.peer_addr()) {
            (Ok(mine), Ok(theirs)) => mine.ip() == theirs.ip(),
            _ => false,
        }
    }

    /// Reads as [`Transport::read`] does.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.plain {
            return tcp::again(|| self.socket.read(into));
        }
        let mut count = 0;
        self.more = true;
        while count < into.len() {
            match self.connection.reader().read(&mut into[count..]) {
                Ok(0) => return Ok(count),
                Ok(read) => count += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => match self.feed() {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.more = false;
                        return if count > 0 { Ok(count) } else { Err(error) };
                    }
                    Err(error) => {
                        self.broken = Some((error.kind(), error.to_string()));
                        return if count > 0 { Ok(count) } else { Err(error) };
                    }
                },
                Err(_) if count > 0 => return Ok(count),
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Writes as [`Transport::write`] does.
    pub(crate) fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<usize> {
        if self.finishing {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if self.plain {
            let pieces = [IoSlice::new(head), IoSlice::new(body)];
            return tcp::again(|| self.socket.write_vectored(&pieces));
        }
        let total = head.len() + body.len();
        let mut count = 0;
        while count < total {
            match self.flush() {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && count > 0 => break,
                Err(error) => return Err(error),
            }
            let pieces = [
                IoSlice::new(&head[count.min(head.len())..]),
                IoSlice::new(&body[count.saturating_sub(head.len())..]),
            ];
            count += self.connection.writer().write_vectored(&pieces)?;
        }
        match self.flush() {
            // It is sent in the next wait.
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    /// Writes the bytes that TLS holds.
    fn flush(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            let (connection, socket) = (&mut self.connection, &mut self.socket);
            if tcp::again(|| connection.write_tls(socket))? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        if self.finishing {
            let _gone = self.socket.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    fn finish(&mut self) {
        if !self.finishing {
            self.finishing = true;
            if !self.plain {
                self.connection.send_close_notify();
            }
            let _later = self.flush();
        }
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        if self.connection.wants_write() {
            let end = ronde_clock::deadline(LAST_WORDS);
            let _gone = self
                .socket
                .set_nonblocking(false)
                .and_then(|()| self.limit(end))
                .and_then(|()| self.flush());
        }
    }
}

/// Converts a TLS error to an I/O error.
fn refused(error: ronde_identity::rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, explain(&error))
}

/// Connections to all other members, by group rank.
#[derive(Debug)]
pub(crate) struct Tls {
    streams: Vec<Option<TlsStream>>,
    poller: Poller,
}

impl Tls {
    /// Takes connected streams that are set up; the member's own entry is `None`.
    pub(crate) fn new(mut streams: Vec<Option<TlsStream>>) -> io::Result<Self> {
        for stream in streams.iter_mut().flatten() {
            stream.by_record = false;
        }
        let poller = Poller::new(streams.len())?;
        Ok(Self { streams, poller })
    }

    fn stream(&mut self, peer: usize) -> io::Result<&mut TlsStream> {
        self.streams[peer]
            .as_mut()
            .ok_or_else(|| ErrorKind::NotConnected.into())
    }
}

impl Transport for Tls {
    fn read(&mut self, peer: usize, into: &mut [u8]) -> io::Result<usize> {
        self.stream(peer)?.read(into)
    }

    fn write(&mut self, peer: usize, head: &[u8], body: &[u8]) -> io::Result<usize> {
        self.stream(peer)?.write(head, body)
    }

    fn wait(&mut self, interest: &mut [Interest], limit: Option<Duration>) -> io::Result<()> {
        let wanted = interest.to_vec();
        let streams = self.streams.iter().zip(&wanted).enumerate();
        let streams = streams.filter_map(|(peer, (stream, wanted))| {
            let stream = stream.as_ref()?;
            Some((peer, stream, *wanted))
        });
        let at_once = (streams.clone()).any(|(_, stream, wanted)| wanted.read && stream.more);
        let limit = if at_once { Some(Duration::ZERO) } else { limit };
        let sockets = streams.map(|(peer, stream, wanted)| {
            let write = wanted.write || stream.connection.wants_write();
            (peer, stream.socket.as_fd(), Interest { write, ..wanted })
        });
        self.poller.wait(sockets, interest, limit)?;
        for (peer, stream) in self.streams.iter_mut().enumerate() {
            let Some(stream) = stream else { continue };
            let possible = interest[peer];
            // The next write or read returns the error again.
            let flushed = possible.write && stream.flush().is_ok();
            interest[peer] = Interest {
                read: wanted[peer].read && (possible.read || stream.more),
                write: wanted[peer].write
                    && possible.write
                    && (flushed || !stream.connection.wants_write()),
            };
        }
        Ok(())
    }

    fn finish(&mut self, peer: usize) {
        if let Some(stream) = &mut self.streams[peer] {
            stream.finish();
        }
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.poller.waker()
    }

    fn unanswered(&self) -> Vec<usize> {
        let streams = self.streams.iter().enumerate();
        unanswered(streams.filter_map(|(peer, stream)| Some((peer, &stream.as_ref()?.socket))))
    }

    fn release(&mut self, peer: usize) -> Option<PeerStream> {
        let stream = self.streams[peer].take()?;
        let socket = stream.socket.as_fd();
        self.poller.forget(peer, socket).ok()?;
        Some(PeerStream::released(PeerConnection::Tls(Box::new(stream))))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;
    use std::time::SystemTime;

    use ronde_core::Rank;
    use ronde_identity::{Authority, Member, Validity};

    use super::*;

    #[test]
    fn a_handshake_that_arrives_byte_by_byte_ends_at_its_deadline() {
        let validity = Validity::from_now(SystemTime::now(), Duration::from_secs(3600));
        let authority = Authority::new("job", validity).unwrap();
        let identity = authority.issue(&Member::Rank(Rank(0)), validity).unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut dialled = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let slow = thread::spawn(move || {
            // A handshake record of 16 KiB, of which a byte follows every few milliseconds.
            let mut bytes = [22, 3, 1, 0x40, 0].into_iter().chain(std::iter::repeat(1));
            while dialled.write_all(&[bytes.next().unwrap_or(1)]).is_ok() {
                ronde_clock::pause(Duration::from_millis(5));
            }
        });
        let end = ronde_clock::deadline(Duration::from_millis(200));
        let server = identity.server_config(b"test").unwrap();
        let error = TlsStream::accept(accepted, server, end).unwrap_err();
        let is_late = matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock);
        assert!(is_late, "{error}");
        slow.join().unwrap();
    }
}
