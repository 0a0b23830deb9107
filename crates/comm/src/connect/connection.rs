//! Connections between members while they join: the peer's identity, and whether it accepts this member.

use std::io::{self, ErrorKind};
use std::net::TcpStream;
use std::time::Instant;

use ronde_core::CollectiveError;
use ronde_core::byte_reader::number;
use ronde_identity::IdentityError;
use ronde_wire::{TlsStream, WireStream};

use super::{GreetError, failed};
use crate::host::this_host;
use crate::security::TlsKeys;
use crate::transport::striped::Striped;
use crate::transport::tcp::Tcp;
use crate::transport::tls::Tls;
use crate::transport::{PeerStream, Transport};

/// Maximum size of the text of a verdict, in bytes.
const VERDICT_BYTES_MAX: usize = 1 << 10;

/// Turns a dialled connection into one to `peer`, with TLS if there are keys.
pub(super) fn dial(
    socket: TcpStream,
    keys: Option<&TlsKeys>,
    peer: u32,
    end: Instant,
) -> Result<WireStream, GreetError> {
    let Some(keys) = keys else {
        return Ok(WireStream::Plain(socket));
    };
    let name = keys.identity.name_of(&keys.member(peer))?;
    let stream = TlsStream::dial(socket, keys.client.clone(), name, end)?;
    Ok(WireStream::Tls(Box::new(stream)))
}

/// Turns an accepted connection into one to a member, with TLS if there are keys.
pub(super) fn accept(
    socket: TcpStream,
    keys: Option<&TlsKeys>,
    end: Instant,
) -> Result<WireStream, GreetError> {
    let Some(keys) = keys else {
        return Ok(WireStream::Plain(socket));
    };
    let stream = TlsStream::accept(socket, keys.server.clone(), end)?;
    Ok(WireStream::Tls(Box::new(stream)))
}

/// The reason why a peer's certificate does not belong to the group rank that it claims.
#[derive(Debug, thiserror::Error)]
pub(super) enum CertificateProblem {
    #[error("it presented no certificate")]
    Missing,
    #[error("it claims to be group rank {rank}, but {cause}")]
    OtherRank { rank: u32, cause: IdentityError },
}

/// Checks that the peer's certificate belongs to the group rank that it claims.
pub(super) fn check_certificate(
    stream: &WireStream,
    keys: &TlsKeys,
    rank: u32,
) -> Result<(), CertificateProblem> {
    if matches!(stream, WireStream::Plain(_)) {
        return Ok(());
    }
    let certificate = stream.certificate().ok_or(CertificateProblem::Missing)?;
    let checked = keys.identity.check_peer(certificate, &keys.member(rank));
    checked.map_err(|cause| CertificateProblem::OtherRank { rank, cause })
}

/// Returns a number of the host if this connection may leave TLS because its peer is on the same host; the peer must return the
/// same number. 0 if it may not.
pub(super) fn plain_host(stream: &WireStream) -> u64 {
    match stream {
        WireStream::Tls(_) if stream.has_one_address() => this_host(),
        _ => 0,
    }
}

/// Continues without encryption, see [`TlsStream::leave_tls`].
pub(super) fn leave_tls(stream: &mut WireStream) {
    if let WireStream::Tls(stream) = stream {
        stream.leave_tls();
    }
}

/// Notifies a peer that has dialled whether it is accepted; an empty `problem` means accepted.
pub(super) fn send_verdict(
    stream: &mut WireStream,
    problem: &str,
    end: Instant,
) -> Result<(), GreetError> {
    let text = &problem.as_bytes()[..problem.len().min(VERDICT_BYTES_MAX)];
    let mut verdict = (text.len() as u16).to_le_bytes().to_vec();
    verdict.extend(text);
    Ok(stream.write_all(&verdict, end)?)
}

/// Reads whether the peer accepts this member.
pub(super) fn read_verdict(stream: &mut WireStream, end: Instant) -> Result<(), GreetError> {
    let mut len = [0; 2];
    stream.read_all(&mut len, end)?;
    let len = number(&len) as usize;
    if len > VERDICT_BYTES_MAX {
        return Err(GreetError::Verdict { bytes: len });
    }
    let mut text = vec![0; len];
    stream.read_all(&mut text, end)?;
    if text.is_empty() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&text);
    let problem = format!("it refused this member: {text}");
    Err(GreetError::Io(io::Error::new(
        ErrorKind::PermissionDenied,
        problem,
    )))
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

fn over_wires(wires: Vec<Option<WireStream>>, is_tls: bool) -> io::Result<Box<dyn Transport>> {
    if is_tls {
        let tls = wires.into_iter().map(|wire| match wire {
            Some(WireStream::Tls(stream)) => Some(*stream),
            _ => None,
        });
        return Ok(Box::new(Tls::new(tls.collect())?));
    }
    let plain = wires.into_iter().map(|wire| match wire {
        Some(WireStream::Plain(stream)) => Some(stream),
        _ => None,
    });
    Ok(Box::new(Tcp::new(plain.collect())?))
}
