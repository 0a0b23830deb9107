//! Messages between a supervisor and its workers: JSON, one a line, versioned, bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ronde_core::{Assignment, Event, Generation, Rank, WorldSize};
use ronde_elastic::{WorkerReport, Settings, ToWorker};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock;

/// Version of these messages. Both sides are the same program as a rule; a mixture is refused.
pub(crate) const PROTOCOL: u32 = 3;
/// Longest line of a peer that has not shown the token yet.
pub(crate) const HELLO_BYTES_MAX: usize = 4 << 10;
/// Longest line of a worker.
pub(crate) const WORKER_BYTES_MAX: usize = 1 << 20;
/// Longest line of a supervisor: an assignment with its task and thousands of peers.
pub(crate) const SUPERVISOR_BYTES_MAX: usize = 16 << 20;

/// What a worker says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum FromWorker {
    /// The first line.
    Hello {
        protocol: u32,
        token: String,
        rank: u32,
        pid: u32,
        /// The name of the process in a job that goes on when workers die.
        #[serde(default)]
        worker: Option<u64>,
    },
    /// The data plane listens here.
    Ready { data_address: SocketAddr },
    /// Something happened.
    Event { body: Event },
    /// How the worker is, in a job that goes on when workers die.
    Report { body: WorkerReport },
}

/// What a supervisor says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub(crate) enum FromSupervisor {
    /// The answer to a good hello.
    Welcome {
        protocol: u32,
        /// For a job that goes on when workers die.
        terms: Option<Box<Terms>>,
        /// Certificate, authority and key, where the job has an authority.
        identity: Option<String>,
    },
    /// The answer to any other.
    Refused { reason: String },
    /// The place of the worker.
    Assignment(WireAssignment),
    /// To a worker of a job that goes on when workers die.
    Told { body: ToWorker },
    /// The job ends.
    /// `failed`: a worker has failed, and the others are asked what they know of it.
    Stop {
        reason: String,
        #[serde(default)]
        failed: bool,
    },
}

/// What a worker has to know of a job that goes on when workers die.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) job: String,
    pub(crate) task: String,
    pub(crate) host: String,
    /// The address at which workers of other hosts reach this one.
    pub(crate) interface: IpAddr,
    pub(crate) settings: Settings,
}

/// An [`Assignment`] as it travels.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct WireAssignment {
    job: String,
    generation: u64,
    rank: u32,
    world_size: u32,
    local_rank: u32,
    local_world_size: u32,
    peers: Vec<SocketAddr>,
    task: String,
}

impl From<Assignment> for WireAssignment {
    fn from(assignment: Assignment) -> Self {
        Self {
            job: assignment.job,
            generation: assignment.generation.0,
            rank: assignment.rank.0,
            world_size: assignment.world_size.get(),
            local_rank: assignment.local_rank,
            local_world_size: assignment.local_world_size,
            peers: assignment.peers,
            task: assignment.task,
        }
    }
}

impl TryFrom<WireAssignment> for Assignment {
    type Error = String;

    fn try_from(wire: WireAssignment) -> Result<Self, String> {
        let world_size =
            WorldSize::new(wire.world_size).ok_or("an assignment to an empty world")?;
        if wire.rank >= wire.world_size || wire.peers.len() != world_size.len() {
            return Err(format!(
                "rank {} and {} peers in a world of {}",
                wire.rank,
                wire.peers.len(),
                wire.world_size
            ));
        }
        Ok(Self {
            job: wire.job,
            generation: Generation(wire.generation),
            rank: Rank(wire.rank),
            world_size,
            local_rank: wire.local_rank,
            local_world_size: wire.local_world_size,
            peers: wire.peers,
            task: wire.task,
        })
    }
}

/// Writes one message as one line.
pub(crate) fn send(mut stream: &TcpStream, message: &impl Serialize) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Why no message came.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The peer closed the connection.
    Closed,
    /// The deadline passed.
    Late,
    /// The peer sent what is not a message.
    Broken(String),
    /// The connection broke.
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

/// Cuts a stream into lines and never holds more than one line's limit.
pub(crate) struct MessageReader<'a> {
    stream: &'a TcpStream,
    held: Vec<u8>,
    searched: usize,
}

impl<'a> MessageReader<'a> {
    pub(crate) fn new(stream: &'a TcpStream) -> Self {
        Self {
            stream,
            held: Vec::new(),
            searched: 0,
        }
    }

    /// The next message, at most `limit` bytes long, waiting until `deadline` if there is one.
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
        let wait = match deadline.map(|at| at.saturating_duration_since(clock::now())) {
            Some(Duration::ZERO) => return Err(ReadError::Late),
            wait => wait,
        };
        self.stream.set_read_timeout(wait).map_err(ReadError::Io)?;
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
