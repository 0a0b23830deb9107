//! The socket between the command and the measuring processes: rows from rank 0, turns for Gloo and
//! Open MPI.
//!
//! JSON lines over a unix socket in a folder that only this user can enter. Each process sends its
//! identity first. Rank 0 of ronde coordinates: it sends rows, and requests turns of the
//! competitors, which block in a read meanwhile. So only the process whose turn it is uses a core.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::report::MeasurementRow;
use crate::settings::Competitor;

/// The time limit of a competitor's turn.
pub(crate) const TURN_MAX: Duration = Duration::from_secs(10 * 60);
/// The maximum length of a line in bytes: the timings of a turn.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// The request for a competitor's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CompetitorTurn {
    /// The competitor.
    pub(crate) backend: Competitor,
    /// The size of the buffer in bytes.
    pub(crate) bytes: usize,
    /// The number of operations.
    pub(crate) iterations: usize,
    /// The number of buffers used in rotation.
    pub(crate) buffers: usize,
    /// The number of uses of each before it gets new data.
    pub(crate) reuses: usize,
}

/// The reply to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum CompetitorReply {
    /// The seconds of each operation at rank 0 of the competitor, and of the turn.
    Done { seconds: Vec<f64>, wall_s: f64 },
    /// The turn failed.
    Failed { problem: String, hint: String },
}

/// The first line of each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "who", rename_all = "snake_case")]
pub(crate) enum Hello {
    /// Rank 0 of ronde.
    Ronde,
    /// A rank of the comparison script.
    Other { rank: usize },
}

/// A message of rank 0 of ronde.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Rank0Message {
    Rows(Vec<MeasurementRow>),
    Note(String),
    Turn(CompetitorTurn),
}

/// One end of a connection.
pub(crate) struct LineConnection {
    reader: BufReader<UnixStream>,
}

impl LineConnection {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self {
            reader: BufReader::new(stream),
        }
    }

    pub(crate) fn stream(&self) -> &UnixStream {
        self.reader.get_ref()
    }

    pub(crate) fn send(&mut self, message: &impl Serialize) -> std::io::Result<()> {
        let mut text = serde_json::to_string(message)?;
        text.push('\n');
        self.reader.get_mut().write_all(text.as_bytes())
    }

    /// Returns the next message; `None` at the end. `go_on` is called whenever the read limit of
    /// the stream passes, and ends the wait with [`ErrorKind::TimedOut`].
    pub(crate) fn receive<T: DeserializeOwned>(
        &mut self,
        mut go_on: impl FnMut() -> bool,
    ) -> std::io::Result<Option<T>> {
        let mut line = Vec::new();
        loop {
            let room = LINE_BYTES_MAX.saturating_sub(line.len() as u64);
            let mut limited = std::io::Read::take(&mut self.reader, room);
            match limited.read_until(b'\n', &mut line) {
                Ok(_) if line.ends_with(b"\n") => return Ok(Some(serde_json::from_slice(&line)?)),
                Ok(_) if line.is_empty() => return Ok(None),
                Ok(_) => {
                    let problem = format!("a line of {} bytes without an end", line.len());
                    return Err(std::io::Error::new(ErrorKind::InvalidData, problem));
                }
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
                {
                    if !go_on() {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Rank 0's end of the connection.
pub(crate) struct Reporter {
    line: LineConnection,
}

impl Reporter {
    pub(crate) fn connect(socket: &Path) -> Result<Self, BenchError> {
        let failed = |error| BenchError::channel(format!("report to {}", socket.display()), error);
        let stream = UnixStream::connect(socket).map_err(failed)?;
        stream.set_read_timeout(Some(TURN_MAX)).map_err(failed)?;
        let mut line = LineConnection::new(stream);
        line.send(&Hello::Ronde).map_err(failed)?;
        Ok(Self { line })
    }

    pub(crate) fn rows(&mut self, rows: Vec<MeasurementRow>) -> Result<(), BenchError> {
        self.say(&Rank0Message::Rows(rows))
    }

    pub(crate) fn note(&mut self, note: &str) -> Result<(), BenchError> {
        self.say(&Rank0Message::Note(note.to_owned()))
    }

    fn say(&mut self, what: &Rank0Message) -> Result<(), BenchError> {
        let sent = self.line.send(what);
        sent.map_err(|error| BenchError::channel("report", error))
    }

    /// Requests a turn of a competitor; returns its rank 0's timings and the seconds of the whole
    /// turn.
    pub(crate) fn their_turn(
        &mut self,
        turn: CompetitorTurn,
    ) -> Result<(Vec<f64>, f64), BenchError> {
        self.say(&Rank0Message::Turn(turn))?;
        let what = || format!("run a turn of {}", turn.backend);
        match self.line.receive(|| false) {
            Ok(Some(CompetitorReply::Done { seconds, wall_s })) => Ok((seconds, wall_s)),
            Ok(Some(CompetitorReply::Failed { problem, hint })) => {
                Err(BenchError::Competitor { problem, hint })
            }
            Ok(None) => Err(BenchError::channel(
                what(),
                "the supervisor has disconnected",
            )),
            Err(error) => Err(BenchError::channel(what(), error)),
        }
    }
}
