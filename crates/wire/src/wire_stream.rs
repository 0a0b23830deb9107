//! [`WireStream`]: a connection with or without TLS, whose every call ends at a deadline.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use ronde_identity::rustls::pki_types::CertificateDer;

use crate::error::{retry_interrupted, timed_out};
use crate::tls_socket::limit;
use crate::tls_stream::TlsStream;

/// A connection to another process of a job.
#[derive(Debug)]
pub enum WireStream {
    /// Without encryption.
    Plain(TcpStream),
    /// With TLS, or after it: see [`TlsStream::leave_tls`].
    Tls(Box<TlsStream>),
}

impl WireStream {
    /// Returns the socket.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }

    /// Returns the peer's certificate, if the connection has certificates.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(stream) => stream.certificate(),
        }
    }

    /// Returns whether both ends of the connection have one IP address and so are on one host, unless the connection is
    /// forwarded.
    #[must_use]
    pub fn has_one_address(&self) -> bool {
        let socket = self.socket();
        match (socket.local_addr(), socket.peer_addr()) {
            (Ok(mine), Ok(theirs)) => mine.ip() == theirs.ip(),
            _ => false,
        }
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// `TimedOut` after `end`; those of the connection.
    pub fn write_all(&mut self, mut bytes: &[u8], end: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = match self {
                Self::Plain(socket) => {
                    limit(socket, end)?;
                    retry_interrupted(|| socket.write(bytes))
                }
                Self::Tls(stream) => {
                    stream.limit(end)?;
                    stream.write(&mut [IoSlice::new(bytes)])
                }
            };
            match count.map_err(timed_out)? {
                0 => return Err(ErrorKind::WriteZero.into()),
                count => bytes = &bytes[count..],
            }
        }
        Ok(())
    }

    /// Reads some bytes; 0 at the end of the connection.
    ///
    /// # Errors
    /// `TimedOut` after `end`; those of the connection.
    pub fn read(&mut self, into: &mut [u8], end: Instant) -> io::Result<usize> {
        let count = match self {
            Self::Plain(socket) => {
                limit(socket, end)?;
                retry_interrupted(|| socket.read(into))
            }
            Self::Tls(stream) => {
                stream.limit(end)?;
                stream.read_some(into)
            }
        };
        count.map_err(timed_out)
    }

    /// Fills `into`, however slowly the bytes arrive.
    ///
    /// # Errors
    /// `TimedOut` after `end`, `UnexpectedEof` at the end of the connection; those of the connection.
    pub fn read_all(&mut self, mut into: &mut [u8], end: Instant) -> io::Result<()> {
        while !into.is_empty() {
            match self.read(into, end)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => into = &mut into[count..],
            }
        }
        Ok(())
    }
}
