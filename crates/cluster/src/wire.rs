//! Messages between a supervisor and its workers: one JSON object per line, versioned, bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use ronde_core::Event;
use ronde_protocol::{Settings, ToWorker, WorkerReport};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of these messages. Normally both sides are the same program; mixed versions are refused.
pub(crate) const PROTOCOL: u32 = 5;
/// Maximum line length of a peer that has not shown the token yet.
pub(crate) const HELLO_BYTES_MAX: usize = 4 << 10;
/// Maximum line length of a worker's messages.
pub(crate) const WORKER_BYTES_MAX: usize = 1 << 20;
/// Maximum line length of a supervisor's messages: an assignment with its task and thousands of
/// peers.
pub(crate) const SUPERVISOR_BYTES_MAX: usize = 16 << 20;

/// A message from a worker.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromWorker {
    /// The first message.
    Hello {
        protocol: u32,
        token: String,
        rank: u32,
        pid: u32,
        /// The worker's id.
        worker: u64,
    },
    /// A recorded event.
    Event { body: Event },
    /// The worker's status.
    Report { body: WorkerReport },
}

/// A message from a supervisor.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum FromSupervisor {
    /// Accepts a hello.
    Welcome {
        protocol: u32,
        /// The worker's information about its job.
        terms: Box<JobTerms>,
        /// Certificate, authority and key, if the job has an authority.
        identity: Option<String>,
    },
    /// Rejects a hello.
    Refused { reason: String },
    /// A coordinator's message to the worker.
    #[serde(rename = "told")]
    Coordinator { body: ToWorker },
    /// Ends the job. `failed`: another worker has failed, and this one reports its knowledge about
    /// it.
    Stop {
        reason: String,
        #[serde(default)]
        failed: bool,
    },
}

/// A worker's information about its job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JobTerms {
    pub(crate) job: String,
    pub(crate) task: String,
    pub(crate) host: String,
    /// The address at which workers of other hosts reach this one.
    pub(crate) interface: IpAddr,
    pub(crate) settings: Settings,
}

/// Writes one message as one line.
pub(crate) fn send(mut stream: &TcpStream, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Why no message was received.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The peer closed the connection.
    Closed,
    /// The deadline passed.
    Late,
    /// The peer sent an invalid message.
    Broken(String),
    /// The connection failed.
    Io(std::io::Error),
}

impl std::fmt::Display for ReadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("the connection was closed"),
            Self::Late => f.write_str("no answer in time"),
            Self::Broken(problem) => f.write_str(problem),
            Self::Io(error) => error.fmt(f),
        }
    }
}

/// Splits a stream into lines, holding at most one line within its limit.
pub(crate) struct MessageReader<'a> {
    stream: &'a TcpStream,
    held: Vec<u8>,
    searched: usize,
    /// The time limit of a read, as far as it was set.
    limit: Option<Option<Duration>>,
}

impl<'a> MessageReader<'a> {
    pub(crate) fn new(stream: &'a TcpStream) -> Self {
        Self {
            stream,
            held: Vec::new(),
            searched: 0,
            limit: None,
        }
    }

    /// Returns the next message of at most `limit` bytes, waiting until `deadline` if there is one.
    pub(crate) fn next<M: DeserializeOwned>(
        &mut self,
        limit: usize,
        deadline: Option<Instant>,
    ) -> Result<M, ReadError> {
        let line = self.line(limit, deadline)?;
        serde_json::from_slice(&line).map_err(|e| ReadError::Broken(e.to_string()))
    }

    fn line(&mut self, limit: usize, deadline: Option<Instant>) -> Result<Vec<u8>, ReadError> {
        loop {
            if let Some(at) = self.held[self.searched..].iter().position(|&b| b == b'\n') {
                let end = self.searched + at;
                let rest = self.held.split_off(end + 1);
                let mut line = std::mem::replace(&mut self.held, rest);
                self.searched = 0;
                line.truncate(end);
                return Ok(line);
            }
            self.searched = self.held.len();
            if self.held.len() > limit {
                return Err(ReadError::Broken(format!(
                    "a line longer than {limit} bytes"
                )));
            }
            self.fill(deadline)?;
        }
    }

    fn fill(&mut self, deadline: Option<Instant>) -> Result<(), ReadError> {
        let wait = match deadline.map(|at| at.saturating_duration_since(ronde_clock::now())) {
            Some(Duration::ZERO) => return Err(ReadError::Late),
            wait => wait,
        };
        if self.limit != Some(wait) {
            self.stream.set_read_timeout(wait).map_err(ReadError::Io)?;
            self.limit = Some(wait);
        }
        let mut piece = [0_u8; 16 << 10];
        match (&mut &*self.stream).read(&mut piece) {
            Ok(0) => Err(ReadError::Closed),
            Ok(n) => {
                self.held.extend_from_slice(&piece[..n]);
                Ok(())
            }
            Err(e) => match e.kind() {
                ErrorKind::Interrupted => Ok(()),
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(ReadError::Late),
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Err(ReadError::Closed),
                _ => Err(ReadError::Io(e)),
            },
        }
    }
}
