//! The connections between fixed members and rank 0: lines of JSON, plain or over TLS.

use std::net::TcpStream;
use std::time::Instant;

use ronde_core::Rank;
use ronde_identity::{Identity, Member};
use ronde_wire::{LineStream, TlsStream, WireError, WireStream};

/// The ALPN protocol of the meeting.
const PROTOCOL: &[u8] = b"ronde-meeting/1";

/// Returns the connection of a member to rank 0; with an identity, each has proved that it knows the secret. The error is a sentence.
pub(super) fn to_rank_0(
    socket: TcpStream,
    identity: Option<&Identity>,
    until: Instant,
) -> Result<LineStream, String> {
    let Some(identity) = identity else {
        return Ok(LineStream::new(WireStream::Plain(socket)));
    };
    let text = |error: ronde_identity::IdentityError| error.to_string();
    let config = identity.client_config(PROTOCOL).map_err(text)?;
    let name = identity.name_of(&Member::Rank(Rank(0))).map_err(text)?;
    over(TlsStream::dial(socket, config, name, until))
}

/// Does the same for a connection that rank 0 has accepted.
pub(super) fn from_member(
    socket: TcpStream,
    identity: Option<&Identity>,
    until: Instant,
) -> Result<LineStream, String> {
    let Some(identity) = identity else {
        return Ok(LineStream::new(WireStream::Plain(socket)));
    };
    let config = identity.server_config(PROTOCOL);
    let config = config.map_err(|error| error.to_string())?;
    over(TlsStream::accept(socket, config, until))
}

fn over(stream: std::io::Result<TlsStream>) -> Result<LineStream, String> {
    let stream = stream.map_err(|error| problem(&error.into()))?;
    Ok(LineStream::new(WireStream::Tls(Box::new(stream))))
}

/// Checks that the peer is this member.
pub(super) fn check_peer(
    stream: &LineStream,
    identity: &Identity,
    member: &Member,
) -> Result<(), String> {
    let Some(certificate) = stream.stream().certificate() else {
        return Err("the member has no certificate".to_owned());
    };
    let checked = identity.check_peer(certificate, member);
    checked.map_err(|error| error.to_string())
}

/// Returns the problem of a connection; one of the certificates means that the secrets differ.
pub(super) fn problem(error: &WireError) -> String {
    match error {
        WireError::Refused(refusal) => format!(
            "wrong token, or no token: {refusal}; help: RONDE_TOKEN must be equal for all processes"
        ),
        error => error.to_string(),
    }
}
