//! The socket between the command and those who measure: rows from rank 0, turns for Gloo and Open MPI.
//!
//! JSON lines over a unix socket in a folder that only this user can enter. Whoever connects says who
//! it is. Rank 0 of ronde leads: it sends rows, and asks for turns of the others, who block in a read
//! until they are told. So nobody but the one whose turn it is uses a core.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::BenchError;
use crate::report::MeasurementRow;
use crate::settings::Competitor;

/// How long the others may take for a turn.
pub(crate) const TURN_MAX: Duration = Duration::from_secs(10 * 60);
/// Longest line in bytes: the timings of a turn.
const LINE_BYTES_MAX: u64 = 4 << 20;

/// What the others are told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CompetitorTurn {
    /// Who.
    pub(crate) backend: Competitor,
    /// Bytes of the buffer.
    pub(crate) bytes: usize,
    /// How many operations.
    pub(crate) iterations: usize,
    /// How many buffers go round.
    pub(crate) buffers: usize,
    /// How often each is used before it gets new data.
    pub(crate) reuses: usize,
}

/// What they answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum CompetitorReply {
    /// Seconds of each operation at their rank 0, and of the turn.
    Done { seconds: Vec<f64>, wall_s: f64 },
    /// It did not work.
    Failed { problem: String, hint: String },
}

/// The first line of everybody who connects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "who", rename_all = "snake_case")]
pub(crate) enum Hello {
    /// Rank 0 of ronde.
    Ronde,
    /// A rank of the comparison script.
    Other { rank: usize },
}

/// What rank 0 of ronde says.
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

    /// The next message; `None` at the end. `go_on` is asked whenever the read limit of the stream
    /// passes, and ends the wait with [`ErrorKind::TimedOut`].
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

/// Rank 0's end.
pub(crate) struct Reporter {
    line: LineConnection,
}

impl Reporter {
    pub(crate) fn connect(socket: &Path) -> Result<Self, BenchError> {
        let failed =
            |error| BenchError::channel(format!("reporting to {}", socket.display()), error);
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
        sent.map_err(|error| BenchError::channel("reporting", error))
    }

    /// Lets the others run; back come their rank 0's timings and the seconds of the whole turn.
    pub(crate) fn their_turn(
        &mut self,
        turn: CompetitorTurn,
    ) -> Result<(Vec<f64>, f64), BenchError> {
        self.say(&Rank0Message::Turn(turn))?;
        let what = || format!("the turn of {}", turn.backend);
        match self.line.receive(|| false) {
            Ok(Some(CompetitorReply::Done { seconds, wall_s })) => Ok((seconds, wall_s)),
            Ok(Some(CompetitorReply::Failed { problem, hint })) => {
                Err(BenchError::Competitor { problem, hint })
            }
            Ok(None) => Err(BenchError::channel(what(), "the supervisor is gone")),
            Err(error) => Err(BenchError::channel(what(), error)),
        }
    }
}
