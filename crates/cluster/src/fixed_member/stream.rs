//! [`MeetingStream`]: a connection between a fixed member and rank 0, plain or over TLS, whose every wait ends at a deadline.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ronde_core::Rank;
use ronde_identity::rustls::{ClientConnection, Connection, ServerConnection};
use ronde_identity::{Identity, Member, explain, rustls};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The ALPN protocol of the meeting.
const PROTOCOL: &[u8] = b"ronde-meeting/1";
/// The interval between two reports of a wait for a message.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Bytes that are read at once.
const READ_BYTES: usize = 16 << 10;

/// A connection of the meeting.
pub(super) struct MeetingStream {
    stream: TcpStream,
    tls: Option<Box<Connection>>,
    held: Vec<u8>,
}

/// A socket whose reads and writes end at a deadline.
struct TimedSocket<'a> {
    stream: &'a TcpStream,
    until: Instant,
}

impl TimedSocket<'_> {
    fn left(&self) -> std::io::Result<Duration> {
        match self.until.saturating_duration_since(ronde_clock::now()) {
            Duration::ZERO => Err(ErrorKind::TimedOut.into()),
            left => Ok(left),
        }
    }
}

impl Read for TimedSocket<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(into)
    }
}

impl Write for TimedSocket<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

impl MeetingStream {
    /// Uses a connection without encryption.
    pub(super) fn plain(stream: TcpStream) -> Self {
        Self {
            stream,
            tls: None,
            held: Vec::new(),
        }
    }

    /// Proves to rank 0 that this member knows the secret, and the reverse. The error is a sentence.
    pub(super) fn to_rank_0(
        stream: TcpStream,
        identity: &Identity,
        until: Instant,
    ) -> Result<Self, String> {
        let text = |error: ronde_identity::IdentityError| error.to_string();
        let config = identity.client_config(PROTOCOL).map_err(text)?;
        let name = identity.name_of(&Member::Rank(Rank(0))).map_err(text)?;
        let tls = ClientConnection::new(config, name).map_err(|error| explain(&error))?;
        Self::over(stream, tls.into(), until)
    }

    /// Accepts a member that knows the secret. The error is a sentence.
    pub(super) fn from_member(
        stream: TcpStream,
        identity: &Identity,
        until: Instant,
    ) -> Result<Self, String> {
        let config = identity.server_config(PROTOCOL);
        let config = config.map_err(|error| error.to_string())?;
        let tls = ServerConnection::new(config).map_err(|error| explain(&error))?;
        Self::over(stream, tls.into(), until)
    }

    fn over(stream: TcpStream, mut tls: Connection, until: Instant) -> Result<Self, String> {
        let mut socket = TimedSocket {
            stream: &stream,
            until,
        };
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)
                .map_err(|error| refused(&error))?;
        }
        Ok(Self {
            stream,
            tls: Some(Box::new(tls)),
            held: Vec::new(),
        })
    }

    /// Checks that the peer is this member, if the connection has certificates.
    pub(super) fn check_peer(&self, identity: &Identity, member: &Member) -> Result<(), String> {
        let certificates = self.tls.as_ref().and_then(|tls| tls.peer_certificates());
        let Some(certificate) = certificates.and_then(<[_]>::first) else {
            return Err("the member has no certificate".to_owned());
        };
        let checked = identity.check_peer(certificate, member);
        checked.map_err(|error| error.to_string())
    }

    /// Sends a message as a line of JSON. The error is a sentence.
    pub(super) fn send<M: Serialize>(&mut self, message: &M, until: Instant) -> Result<(), String> {
        let mut line = serde_json::to_vec(message).map_err(|error| error.to_string())?;
        line.push(b'\n');
        let mut socket = TimedSocket {
            stream: &self.stream,
            until,
        };
        let sent = match &mut self.tls {
            None => socket.write_all(&line),
            Some(tls) => write_tls(tls, &line, &mut socket),
        };
        sent.map_err(|error| error.to_string())
    }

    /// Returns the next message of at most `limit` bytes; calls `waiting` now and then before it arrives. The error is a
    /// sentence.
    pub(super) fn next<M: DeserializeOwned>(
        &mut self,
        limit: usize,
        until: Instant,
        waiting: &mut dyn FnMut(),
    ) -> Result<M, String> {
        loop {
            if let Some(end) = self.held.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.held.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| error.to_string());
            }
            if self.held.len() > limit {
                return Err(format!("a line longer than {limit} bytes"));
            }
            let mut bytes = vec![0; READ_BYTES];
            let mut socket = TimedSocket {
                stream: &self.stream,
                until: until.min(ronde_clock::now() + LOOK_EVERY),
            };
            let read = match &mut self.tls {
                None => socket.read(&mut bytes),
                Some(tls) => read_tls(tls, &mut bytes, &mut socket),
            };
            match read {
                Ok(0) => return Err("the connection was closed".to_owned()),
                Ok(count) => self.held.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if is_late(&error) && ronde_clock::now() < until => waiting(),
                Err(error) => return Err(refused(&error)),
            }
        }
    }
}

fn write_tls(
    tls: &mut Connection,
    bytes: &[u8],
    socket: &mut TimedSocket<'_>,
) -> std::io::Result<()> {
    // It accepts a limited amount before it is sent.
    let mut rest = bytes;
    while !rest.is_empty() {
        let count = tls.writer().write(rest)?;
        rest = &rest[count..];
        while tls.wants_write() {
            tls.write_tls(socket)?;
        }
    }
    Ok(())
}

/// Reads decrypted bytes; 0 at the end of the connection.
fn read_tls(
    tls: &mut Connection,
    into: &mut [u8],
    socket: &mut TimedSocket<'_>,
) -> std::io::Result<usize> {
    loop {
        match tls.reader().read(into) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
        if tls.read_tls(socket)? == 0 {
            return Ok(0);
        }
        let processed = tls.process_new_packets();
        processed.map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))?;
        while tls.wants_write() {
            tls.write_tls(socket)?;
        }
    }
}

fn is_late(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Returns the problem of a connection; one of the certificates means that the secrets differ.
fn refused(error: &std::io::Error) -> String {
    if is_late(error) {
        return "no answer in time".to_owned();
    }
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(problem) => format!(
            "wrong token, or no token: {}; help: RONDE_TOKEN must be equal for all processes",
            explain(problem)
        ),
        None => error.to_string(),
    }
}
