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
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] WireError),
    /// The certificate or the token of this client cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

impl DialError {
    /// Returns whether no process listens at the address now.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Connection(WireError::Io(error)) if error.kind() == ErrorKind::ConnectionRefused)
    }

    /// Returns whether another attempt cannot succeed: the coordinator belongs to another job or rejects this client.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Connection(error) => matches!(
                error,
                WireError::Refused(_) | WireError::Message(_) | WireError::TooLong { .. }
            ),
            Self::Identity(_) => true,
        }
    }
}

impl From<std::io::Error> for DialError {
    fn from(error: std::io::Error) -> Self {
        Self::Connection(error.into())
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
