//! Client connections to a coordinator, with a certificate or with a join token.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ronde_identity::rustls::pki_types::ServerName;
use ronde_identity::rustls::{ClientConfig, ClientConnection, Connection};
use ronde_identity::{IdentityError, JoinToken, explain};
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

impl From<std::io::Error> for DialError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Self::Absent(error.to_string()),
            _ => Self::Later(error.to_string()),
        }
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
) -> Result<(Connection, TcpStream), DialError> {
    let deadline = ronde_clock::now() + limit;
    let stream = TcpStream::connect_timeout(&address, limit)?;
    stream.set_nodelay(true)?;
    let refused = |error| DialError::Never(explain(&error));
    let mut tls = Connection::from(ClientConnection::new(config, name).map_err(refused)?);
    while tls.is_handshaking() {
        set_limit(&stream, deadline)?;
        step(&mut tls, &stream)?;
    }
    while tls.wants_write() {
        tls.write_tls(&mut &stream)?;
    }
    Ok((tls, stream))
}

/// Sends one request with a join token and returns the reply.
pub(crate) fn call<A: DeserializeOwned>(
    address: SocketAddr,
    token: &JoinToken,
    question: &impl Serialize,
    limit: Duration,
) -> Result<A, DialError> {
    let deadline = ronde_clock::now() + limit;
    let config = token.client_config(JOINING)?;
    let (mut tls, stream) = connect(address, config, token.server_name()?, limit)?;
    let mut line = serde_json::to_vec(question).map_err(|e| DialError::Never(e.to_string()))?;
    line.push(b'\n');
    tls.writer().write_all(&line)?;
    let (mut answer, mut open) = (Vec::new(), true);
    loop {
        let mut piece = [0; 4096];
        while let Ok(read @ 1..) = tls.reader().read(&mut piece) {
            answer.extend_from_slice(&piece[..read]);
        }
        set_limit(&stream, deadline)?;
        while tls.wants_write() {
            tls.write_tls(&mut &stream)?;
        }
        if let Some(end) = answer.iter().position(|byte| *byte == b'\n') {
            let read = serde_json::from_slice(&answer[..end]);
            return read.map_err(|error| DialError::Never(format!("invalid reply: {error}")));
        }
        if answer.len() > super::LINE_BYTES_MAX {
            return Err(DialError::Never("the reply is too long".to_owned()));
        }
        if !open {
            return Err(DialError::Later(
                "it closed the connection without a reply".to_owned(),
            ));
        }
        open = step(&mut tls, &stream)?;
    }
}

fn set_limit(stream: &TcpStream, deadline: Instant) -> Result<(), DialError> {
    let left = deadline.saturating_duration_since(ronde_clock::now());
    if left.is_zero() {
        return Err(DialError::Later("no answer in time".to_owned()));
    }
    stream.set_read_timeout(Some(left))?;
    stream.set_write_timeout(Some(left))?;
    Ok(())
}

/// Sends pending data and reads once; returns false at the end of the stream.
fn step(tls: &mut Connection, mut stream: &TcpStream) -> Result<bool, DialError> {
    while tls.wants_write() {
        tls.write_tls(&mut stream)?;
    }
    let read = match tls.read_tls(&mut stream) {
        Ok(read) => read,
        Err(error) if error.kind() == ErrorKind::WouldBlock => {
            return Err(DialError::Later("no answer in time".to_owned()));
        }
        Err(error) => return Err(error.into()),
    };
    if let Err(error) = tls.process_new_packets() {
        // The alert contains the reason.
        let _ = tls.write_tls(&mut stream);
        return Err(DialError::Never(explain(&error)));
    }
    if read == 0 && tls.is_handshaking() {
        return Err(DialError::Later("it closed the connection".to_owned()));
    }
    Ok(read > 0)
}
