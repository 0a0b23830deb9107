//! Client connections to a coordinator, with a certificate or with a join token.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use ronde_identity::rustls::ClientConfig;
use ronde_identity::rustls::pki_types::ServerName;
use ronde_identity::{IdentityError, JoinToken};
use ronde_wire::{LineStream, TlsStream, WireError, WireStream};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::JOINING;

/// Why a coordinator could not be reached.
#[derive(Debug)]
pub(crate) enum DialError {
    /// A temporary failure.
    Later(String),
    /// No process listens at the address now.
    Absent(String),
    /// A permanent failure: the coordinator belongs to another job or rejects this client.
    Never(String),
}

impl From<WireError> for DialError {
    fn from(error: WireError) -> Self {
        let text = error.to_string();
        match error {
            WireError::Refused(_) | WireError::Message(_) | WireError::TooLong { .. } => {
                Self::Never(text)
            }
            WireError::Io(error) if error.kind() == ErrorKind::ConnectionRefused => {
                Self::Absent(text)
            }
            _ => Self::Later(text),
        }
    }
}

impl From<std::io::Error> for DialError {
    fn from(error: std::io::Error) -> Self {
        WireError::from(error).into()
    }
}

impl From<IdentityError> for DialError {
    fn from(error: IdentityError) -> Self {
        Self::Never(error.to_string())
    }
}

/// Connects and performs the handshake, within `limit`.
pub(crate) fn connect(
    address: SocketAddr,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    limit: Duration,
) -> Result<TlsStream, DialError> {
    let deadline = ronde_clock::deadline(limit);
    let socket = TcpStream::connect_timeout(&address, limit)?;
    socket.set_nodelay(true)?;
    Ok(TlsStream::dial(socket, config, name, deadline)?)
}

/// Sends one request with a join token and returns the reply.
pub(crate) fn call<A: DeserializeOwned>(
    address: SocketAddr,
    token: &JoinToken,
    question: &impl Serialize,
    limit: Duration,
) -> Result<A, DialError> {
    let deadline = ronde_clock::deadline(limit);
    let config = token.client_config(JOINING)?;
    let stream = connect(address, config, token.server_name()?, limit)?;
    let mut lines = LineStream::new(WireStream::Tls(Box::new(stream)));
    lines.send(question, deadline)?;
    Ok(lines.next(super::LINE_BYTES_MAX, deadline, &mut || {})?)
}
