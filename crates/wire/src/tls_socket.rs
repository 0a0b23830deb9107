//! [`TlsSocket`]: a session over a socket of the caller, which blocks exactly when the socket does.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use ronde_identity::rustls::pki_types::CertificateDer;

use crate::error::{TlsRefusal, retry_interrupted};
use crate::tls_session::TlsSession;

/// Bytes read from the socket at once.
const READ_BYTES: usize = 128 << 10;
/// Size of the header of a TLS record, in bytes.
const RECORD_HEADER: usize = 5;

/// A session and the encrypted bytes on their way to it. Every call has the same socket.
///
/// Bytes that the session has accepted but the socket has not are kept, at most 128 KiB and a little more, until the next write or
/// [`TlsSocket::flush`].
#[derive(Debug)]
pub struct TlsSocket {
    session: TlsSession,
    /// Reads no further than the end of a TLS record, because plain bytes may follow.
    by_record: bool,
    /// The deadline of the blocking calls, for which a record that arrives in many parts is read.
    deadline: Option<Instant>,
    /// The connection has left TLS.
    is_plain: bool,
    /// Encrypted bytes that the session has not processed: `incoming[at..end]`.
    incoming: Vec<u8>,
    at: usize,
    end: usize,
    has_more: bool,
    is_finishing: bool,
    /// The error after which nothing more can be read.
    broken: Option<ReadFailure>,
}

/// An error that is returned again.
#[derive(Debug)]
enum ReadFailure {
    Refused(TlsRefusal),
    Io(ErrorKind, String),
}

impl ReadFailure {
    fn of(error: &io::Error) -> Self {
        match TlsRefusal::of(error) {
            Some(refusal) => Self::Refused(refusal.clone()),
            None => Self::Io(error.kind(), error.to_string()),
        }
    }

    fn to_error(&self) -> io::Error {
        match self {
            Self::Refused(refusal) => refusal.clone().into(),
            Self::Io(kind, text) => io::Error::new(*kind, text.clone()),
        }
    }
}

impl TlsSocket {
    /// Begins a session; the handshake happens with the first reads and writes.
    #[must_use]
    pub fn new(session: TlsSession) -> Self {
        Self {
            session,
            by_record: false,
            deadline: None,
            is_plain: false,
            incoming: vec![0; READ_BYTES],
            at: 0,
            end: 0,
            has_more: true,
            is_finishing: false,
            broken: None,
        }
    }

    /// Sets whether reads end at the end of a TLS record, so that the connection can [leave TLS](TlsSocket::leave_tls).
    pub fn read_by_record(&mut self, by_record: bool) {
        self.by_record = by_record;
    }

    /// Returns the session.
    #[must_use]
    pub fn session(&self) -> &TlsSession {
        &self.session
    }

    /// Returns the peer's certificate, after the handshake.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.session.certificate()
    }

    /// Returns whether bytes may be readable although the socket has none.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Returns whether encrypted bytes wait for the socket.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.session.has_unsent()
    }

    /// Sets the deadline of the next calls on a blocking socket.
    ///
    /// # Errors
    /// `TimedOut` if it has passed.
    pub fn limit(&mut self, socket: &TcpStream, end: Instant) -> io::Result<()> {
        self.deadline = Some(end);
        limit(socket, end)
    }

    /// Performs the handshake on a blocking socket.
    ///
    /// # Errors
    /// Refusals, those of the socket, `TimedOut`.
    pub fn shake_hands(&mut self, socket: &TcpStream, end: Instant) -> io::Result<()> {
        while self.session.is_handshaking() || self.session.has_unsent() {
            self.limit(socket, end)?;
            if self.session.has_unsent() {
                self.flush(socket)?;
            } else if self.feed(socket)? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }

    /// Passes encrypted bytes to the session, from the socket when none are left; 0 at the end of the stream.
    fn feed(&mut self, socket: &TcpStream) -> io::Result<usize> {
        if let Some(broken) = &self.broken {
            return Err(broken.to_error());
        }
        let handshakes = self.session.is_handshaking();
        if !self.receive(socket)? {
            return Ok(1);
        }
        let received = self.session.receive(&self.incoming[self.at..self.end]);
        if handshakes || received.is_err() {
            // Answers of the handshake, or the reason of a refusal. The rest is sent later, or not at all.
            let _later = self.flush(socket);
        }
        let count = received?;
        self.at += count;
        Ok(count)
    }

    /// Reads encrypted bytes if none are left. Returns false while a record is not complete, so that a caller can check its
    /// deadline.
    fn receive(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        if self.at == self.end {
            (self.at, self.end) = (0, 0);
        }
        if !self.by_record {
            if self.at == self.end {
                self.end = retry_interrupted(|| socket.read(&mut self.incoming))?;
            }
            return Ok(true);
        }
        if self.at > 0 {
            return Ok(true);
        }
        if let Some(end) = self.deadline {
            limit(socket, end)?;
        }
        let len = self.record_len();
        let count = retry_interrupted(|| socket.read(&mut self.incoming[self.end..len]))?;
        self.end = match count {
            0 => 0,
            _ => self.end + count,
        };
        Ok(count == 0 || self.end == self.record_len())
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
    pub fn leave_tls(&mut self) {
        debug_assert!(self.at == self.end && !self.session.has_unsent());
        self.is_plain = true;
        self.has_more = false;
    }

    /// Fills `into` as far as bytes are there, and returns their number; 0 at the end of the stream. A blocking socket has no other
    /// limit than its time limit.
    ///
    /// # Errors
    /// `WouldBlock` if nothing is there; refusals; those of the socket.
    pub fn read(&mut self, socket: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
        let least = into.len();
        self.read_at_least(socket, into, least)
    }

    /// Does the same, but waits for no more bytes on a blocking socket once there are some.
    ///
    /// # Errors
    /// As for [`TlsSocket::read`].
    pub fn read_some(&mut self, socket: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
        self.read_at_least(socket, into, 1)
    }

    fn read_at_least(
        &mut self,
        mut socket: &TcpStream,
        into: &mut [u8],
        least: usize,
    ) -> io::Result<usize> {
        if self.is_plain {
            return retry_interrupted(|| socket.read(into));
        }
        let mut count = 0;
        self.has_more = true;
        while count < least.min(into.len()) {
            match self.session.read(&mut into[count..]) {
                Ok(0) => return Ok(count),
                Ok(read) => count += read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => match self.feed(socket) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        self.has_more = false;
                        return if count > 0 { Ok(count) } else { Err(error) };
                    }
                    Err(error) => {
                        self.broken = Some(ReadFailure::of(&error));
                        return if count > 0 { Ok(count) } else { Err(error) };
                    }
                },
                Err(_) if count > 0 => return Ok(count),
                Err(error) => return Err(error),
            }
        }
        Ok(count)
    }

    /// Writes `pieces` in their order, as far as the socket takes them, and returns the number of bytes.
    ///
    /// # Errors
    /// `WouldBlock` if it takes nothing; `BrokenPipe` after [`TlsSocket::finish`]; those of the socket.
    pub fn write(
        &mut self,
        mut socket: &TcpStream,
        mut pieces: &mut [IoSlice<'_>],
    ) -> io::Result<usize> {
        if self.is_finishing {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if self.is_plain {
            return retry_interrupted(|| socket.write_vectored(pieces));
        }
        let mut count = 0;
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            match self.flush(socket) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && count > 0 => break,
                Err(error) => return Err(error),
            }
            match self.session.write(pieces)? {
                // During the handshake, the session takes no more than its memory holds.
                0 if count == 0 => return Err(ErrorKind::WouldBlock.into()),
                0 => break,
                taken => {
                    count += taken;
                    IoSlice::advance_slices(&mut pieces, taken);
                }
            }
        }
        match self.flush(socket) {
            // It is sent later.
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    /// Writes the encrypted bytes that wait for the socket.
    ///
    /// # Errors
    /// `WouldBlock` if it does not take all of them; those of the socket.
    pub fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        self.session.send(&mut socket)?;
        if self.is_finishing {
            let _gone = socket.shutdown(Shutdown::Write);
        }
        Ok(())
    }

    /// Ends this direction of the connection after all bytes that were written; some may wait for a [`TlsSocket::flush`].
    pub fn finish(&mut self, socket: &TcpStream) {
        if !self.is_finishing {
            self.is_finishing = true;
            if !self.is_plain {
                self.session.close();
            }
            let _later = self.flush(socket);
        }
    }
}

/// Sets the time limits of a blocking socket.
pub(crate) fn limit(socket: &TcpStream, end: Instant) -> io::Result<()> {
    let left = ronde_clock::left(end);
    if left.is_zero() {
        return Err(ErrorKind::TimedOut.into());
    }
    socket.set_read_timeout(Some(left))?;
    socket.set_write_timeout(Some(left))
}
