//! [`PeerConnection`]: a plain or TLS connection while members join; blocking, with a deadline on every call.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ronde_core::CollectiveError;

use super::{GreetError, failed};
use crate::frame::number;
use crate::host::this_host;
use crate::security::TlsKeys;
use crate::transport::striped::Striped;
use crate::transport::tcp::{self, Tcp};
use crate::transport::tls::{Tls, TlsStream};
use crate::transport::{PeerStream, Transport};

/// Maximum size of the text of a verdict, in bytes.
const VERDICT_BYTES_MAX: usize = 1 << 10;

/// A connection to a possible member.
#[derive(Debug)]
pub(crate) enum PeerConnection {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl PeerConnection {
    /// Turns a dialled connection into one to `peer`, with TLS if there are keys.
    pub(super) fn dial(
        stream: TcpStream,
        keys: Option<&TlsKeys>,
        peer: u32,
        end: Instant,
    ) -> Result<Self, GreetError> {
        let Some(keys) = keys else {
            return Ok(Self::Plain(stream));
        };
        let name = keys.identity.name_of(&keys.member(peer));
        let name = name.map_err(|error| GreetError::NoHello(error.to_string()))?;
        TlsStream::dial(stream, keys.client.clone(), name, end)
            .map(|stream| Self::Tls(Box::new(stream)))
            .map_err(|error| GreetError::Io(timed_out(error)))
    }

    /// Turns an accepted connection into one to a member, with TLS if there are keys.
    pub(super) fn accept(
        stream: TcpStream,
        keys: Option<&TlsKeys>,
        end: Instant,
    ) -> Result<Self, GreetError> {
        let Some(keys) = keys else {
            return Ok(Self::Plain(stream));
        };
        TlsStream::accept(stream, keys.server.clone(), end)
            .map(|stream| Self::Tls(Box::new(stream)))
            .map_err(|error| GreetError::Io(timed_out(error)))
    }

    /// Returns why the peer's certificate does not belong to the group rank that it claims, if so.
    pub(super) fn certificate_problem(&self, keys: &TlsKeys, rank: u32) -> Option<String> {
        let Self::Tls(stream) = self else {
            return None;
        };
        let Some(certificate) = stream.certificate() else {
            return Some("it presented no certificate".to_owned());
        };
        let checked = keys.identity.check_peer(certificate, &keys.member(rank));
        let error = checked.err()?;
        Some(format!("it claims to be group rank {rank}, but {error}"))
    }

    /// Returns a number of the host if this connection may leave TLS because its peer is on the same host; the
    /// peer must return the same number. 0 if it may not.
    pub(super) fn plain_host(&self) -> u64 {
        match self {
            Self::Tls(_) if self.has_one_address() => this_host(),
            _ => 0,
        }
    }

    /// Returns whether both ends have the same address, so that they are on one host.
    pub(crate) fn has_one_address(&self) -> bool {
        match self {
            Self::Plain(stream) => matches!(
                (stream.local_addr(), stream.peer_addr()),
                (Ok(mine), Ok(theirs)) if mine.ip() == theirs.ip()
            ),
            Self::Tls(stream) => stream.has_one_address(),
        }
    }

    /// Prepares the socket for a transport.
    pub(crate) fn set_up(&self) -> io::Result<()> {
        match self {
            Self::Plain(stream) => tcp::set_up(stream),
            Self::Tls(stream) => stream.set_up(),
        }
    }

    /// Continues without encryption, see [`TlsStream::leave_tls`].
    pub(super) fn leave_tls(&mut self) {
        if let Self::Tls(stream) = self {
            stream.leave_tls();
        }
    }

    /// Notifies a peer that has dialled whether it is accepted; an empty `problem` means accepted.
    pub(super) fn send_verdict(&mut self, problem: &str, end: Instant) -> Result<(), GreetError> {
        let words = &problem.as_bytes()[..problem.len().min(VERDICT_BYTES_MAX)];
        let mut verdict = (words.len() as u16).to_le_bytes().to_vec();
        verdict.extend(words);
        self.write_all(&verdict, end).map_err(GreetError::Io)
    }

    /// Reads whether the peer accepts this member.
    pub(super) fn read_verdict(&mut self, end: Instant) -> Result<(), GreetError> {
        let mut len = [0; 2];
        self.read_all(&mut len, end)?;
        let len = number(&len) as usize;
        if len > VERDICT_BYTES_MAX {
            return Err(GreetError::NoHello(format!("a verdict of {len} bytes")));
        }
        let mut words = vec![0; len];
        self.read_all(&mut words, end)?;
        if words.is_empty() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&words);
        let problem = format!("it refused this member: {words}");
        Err(GreetError::Io(io::Error::new(
            ErrorKind::PermissionDenied,
            problem,
        )))
    }

    pub(super) fn write_all(&mut self, mut bytes: &[u8], end: Instant) -> io::Result<()> {
        match self {
            Self::Plain(stream) => {
                let left = ronde_clock::left(end).max(Duration::from_millis(1));
                stream.set_write_timeout(Some(left))?;
                stream.write_all(bytes)
            }
            Self::Tls(stream) => {
                while !bytes.is_empty() {
                    stream.limit(end)?;
                    let count = stream.write(bytes, &[]).map_err(timed_out)?;
                    bytes = &bytes[count..];
                }
                Ok(())
            }
        }
    }

    /// Fills `into` before `end`, however slowly the bytes arrive.
    pub(super) fn read_all(&mut self, mut into: &mut [u8], end: Instant) -> Result<(), GreetError> {
        while !into.is_empty() {
            match self.read(into, end) {
                Ok(0) => return Err(GreetError::Io(ErrorKind::UnexpectedEof.into())),
                Ok(count) => into = &mut into[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(GreetError::Io(timed_out(error))),
            }
        }
        Ok(())
    }

    fn read(&mut self, into: &mut [u8], end: Instant) -> io::Result<usize> {
        match self {
            Self::Plain(stream) => {
                let left = ronde_clock::left(end);
                if left.is_zero() {
                    return Err(ErrorKind::TimedOut.into());
                }
                stream.set_read_timeout(Some(left))?;
                stream.read(into)
            }
            Self::Tls(stream) => {
                stream.limit(end)?;
                stream.read(into)
            }
        }
    }
}

/// Converts `WouldBlock`, which a socket with a timeout returns, to a timeout error.
fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    }
}

/// Returns an error if the bytes are a TLS record where a plain hello was expected.
pub(super) fn tls_in_plain(prefix: &[u8]) -> Option<GreetError> {
    let is_tls = matches!(prefix, [0x15 | 0x16, 3, 0..=4, ..]);
    is_tls.then(|| {
        let words = "it uses TLS, but this member is configured for plain connections";
        GreetError::Io(io::Error::new(ErrorKind::InvalidData, words))
    })
}

/// Returns the transport over the streams to other members by group rank, all of one kind, of `connections` each.
pub(crate) fn transport(
    streams: Vec<Option<PeerStream>>,
    is_tls: bool,
    connections: usize,
) -> Result<Box<dyn Transport>, CollectiveError> {
    let setting_up = |error: io::Error| failed("cannot set up connections".to_owned(), &error);
    let (mut wires, mut stripes) = (Vec::new(), Vec::new());
    for stream in streams {
        match stream {
            Some(mut stream) => {
                stream.set_up().map_err(setting_up)?;
                wires.extend(stream.connections.into_iter().map(Some));
                stripes.push(stream.stripes);
            }
            None => {
                wires.extend((0..connections).map(|_| None));
                stripes.push(None);
            }
        }
    }
    let inner = over_wires(wires, is_tls).map_err(setting_up)?;
    Ok(match connections {
        1 => inner,
        _ => Box::new(Striped::new(inner, connections, stripes)),
    })
}

fn over_wires(wires: Vec<Option<PeerConnection>>, is_tls: bool) -> io::Result<Box<dyn Transport>> {
    if is_tls {
        let tls = wires.into_iter().map(|wire| match wire {
            Some(PeerConnection::Tls(stream)) => Some(*stream),
            _ => None,
        });
        return Ok(Box::new(Tls::new(tls.collect())?));
    }
    let plain = wires.into_iter().map(|wire| match wire {
        Some(PeerConnection::Plain(stream)) => Some(stream),
        _ => None,
    });
    Ok(Box::new(Tcp::new(plain.collect())?))
}
