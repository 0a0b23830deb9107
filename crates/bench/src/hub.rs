//! [`Hub`]: the command's end of the socket: takes rows and passes turns on to Gloo and Open MPI.

use std::io::{ErrorKind, Read};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::competitor::CompetitorProcess;
use crate::report::MeasurementRow;
use crate::turns::{
    CompetitorReply, CompetitorTurn, Hello, LineConnection, Rank0Message, TURN_MAX,
};
use crate::{BenchError, clock};

/// How long the others may take to start: PyTorch is large.
const START_MAX: Duration = Duration::from_secs(180);
/// Between two looks at the listener.
const PAUSE: Duration = Duration::from_millis(5);
/// After this long without a word it is asked whether to go on.
const LOOK: Duration = Duration::from_millis(100);

/// What rank 0 has found out.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HubEvent {
    /// All cases of one size of an operation are complete.
    Rows(Vec<MeasurementRow>),
    /// Something to know.
    Note(String),
}

/// The command's end of the socket.
#[derive(Debug)]
pub struct Hub {
    listener: UnixListener,
    socket: PathBuf,
    others: Option<CompetitorProcess>,
}

impl Hub {
    /// Listens in `folder`, which must be the user's own: whoever can enter it can talk here.
    ///
    /// # Errors
    /// [`BenchError::Channel`] with the system's answer.
    pub fn new(folder: &Path) -> Result<Self, BenchError> {
        let socket = folder.join("bench.socket");
        let failed =
            |error| BenchError::channel(format!("listening at {}", socket.display()), error);
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            listener,
            socket,
            others: None,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Takes those who are measured beside ronde and waits until all of their ranks are connected,
    /// as long as `go_on` says so.
    ///
    /// # Errors
    /// [`BenchError::Competitor`] when one ends, or not all are there in three minutes.
    pub fn compete(
        &mut self,
        mut others: CompetitorProcess,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), BenchError> {
        let deadline = clock::now() + START_MAX;
        while !others.are_complete() {
            others.check()?;
            if !go_on() {
                return Err(BenchError::channel("starting the others", "asked to stop"));
            }
            if clock::now() >= deadline {
                return Err(others.failure("mpirun did not start all ranks in three minutes"));
            }
            match self.accept()? {
                Some((Hello::Other { rank }, line)) => others.enter(rank, line)?,
                Some((Hello::Ronde, _)) => {}
                None => clock::pause(PAUSE),
            }
        }
        self.others = Some(others);
        Ok(())
    }

    /// Takes what rank 0 says until it has left, or `go_on` says no.
    ///
    /// # Errors
    /// [`BenchError::Channel`] for nonsense on the socket.
    pub fn serve(
        &mut self,
        on_news: &mut dyn FnMut(HubEvent),
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), BenchError> {
        let mut line = loop {
            match self.accept()? {
                Some((Hello::Ronde, line)) => break line,
                Some(_) => {}
                None if go_on() => clock::pause(PAUSE),
                None => return Ok(()),
            }
        };
        loop {
            match line.receive(go_on) {
                Ok(Some(Rank0Message::Rows(rows))) => on_news(HubEvent::Rows(rows)),
                Ok(Some(Rank0Message::Note(note))) => on_news(HubEvent::Note(note)),
                Ok(Some(Rank0Message::Turn(turn))) => {
                    let answer = self.their_turn(turn, go_on);
                    if line.send(&answer).is_err() {
                        // It is gone; the supervisor tells why.
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(BenchError::channel("hearing rank 0", error));
                }
                // It is gone, or it is over.
                Err(_) => return Ok(()),
            }
        }
    }

    fn their_turn(&mut self, turn: CompetitorTurn, go_on: &dyn Fn() -> bool) -> CompetitorReply {
        let failed = |error: BenchError| match error {
            BenchError::Competitor { problem, hint } => CompetitorReply::Failed { problem, hint },
            other => CompetitorReply::Failed {
                problem: other.to_string(),
                hint: "run it again; leave --against out to measure ronde alone".to_owned(),
            },
        };
        let Some(others) = &mut self.others else {
            let problem = format!("{} was not started", turn.backend);
            return failed(BenchError::channel("taking turns", problem));
        };
        let deadline = clock::now() + TURN_MAX;
        let go_on = || go_on() && clock::now() < deadline;
        others.turn(turn, &go_on).unwrap_or_else(failed)
    }

    /// Whoever has connected, and who it is. Strangers are not listened to.
    fn accept(&self) -> Result<Option<(Hello, LineConnection)>, BenchError> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(BenchError::channel("accepting a connection", error)),
        };
        Ok(greet(stream).ok())
    }
}

/// Reads the first line.
fn greet(stream: UnixStream) -> std::io::Result<(Hello, LineConnection)> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LOOK))?;
    let mut line = LineConnection::new(stream);
    let mut patience = 50;
    let hello = line.receive(|| {
        patience -= 1;
        patience > 0
    })?;
    Ok((hello.ok_or(ErrorKind::UnexpectedEof)?, line))
}

/// The end of what a process says, for messages: at most `bytes`.
pub(crate) fn tail(mut from: impl Read, bytes: usize) -> String {
    let mut kept: Vec<u8> = Vec::new();
    let mut piece = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut piece) {
        kept.extend_from_slice(&piece[..n]);
        let surplus = kept.len().saturating_sub(bytes);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::report::samples::row;
    use crate::settings::Competitor;
    use crate::turns::Reporter;

    #[test]
    fn rows_and_notes_come_through_and_strangers_do_not_matter() {
        let folder = tempfile::tempdir().unwrap();
        let mut hub = Hub::new(folder.path()).unwrap();
        let socket = hub.socket().to_owned();
        let rank_0 = std::thread::spawn(move || {
            let mut stranger = UnixStream::connect(&socket).unwrap();
            stranger.write_all(b"GET / HTTP/1.0\n").unwrap();
            let mut reporter = Reporter::connect(&socket).unwrap();
            reporter.note("a note").unwrap();
            reporter.rows(vec![row(8, 2.0, "ring")]).unwrap();
            let turn = CompetitorTurn {
                backend: Competitor::Mpi,
                bytes: 8,
                iterations: 1,
                buffers: 1,
                reuses: 8,
            };
            reporter.their_turn(turn).unwrap_err().to_string()
        });
        let mut news = Vec::new();
        hub.serve(&mut |one| news.push(one), &|| true).unwrap();
        let expected = [
            HubEvent::Note("a note".to_owned()),
            HubEvent::Rows(vec![row(8, 2.0, "ring")]),
        ];
        assert_eq!(news, expected);
        assert!(rank_0.join().unwrap().contains("mpi was not started"));
        // Nobody comes any more.
        hub.serve(&mut |_| (), &|| false).unwrap();
    }

    #[test]
    fn the_end_of_a_long_text_is_kept() {
        let text = "x".repeat(10_000) + "the end";
        assert_eq!(tail(text.as_bytes(), 7), "the end");
        assert_eq!(tail(&b"short"[..], 7), "short");
    }
}
