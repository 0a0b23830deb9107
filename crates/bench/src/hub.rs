//! [`Hub`]: the command's end of the socket, which receives rows and forwards turns to Gloo and
//! Open MPI.

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::competitor::CompetitorProcess;
use crate::error::BenchError;
use crate::report::MeasurementRow;
use crate::turns::{
    CompetitorReply, CompetitorTurn, Hello, LineConnection, Rank0Message, TURN_MAX,
};

/// The time in which the competitors must start: PyTorch is large.
pub(crate) const START_MAX: Duration = Duration::from_secs(180);
/// The interval between polls of the listener.
const PAUSE: Duration = Duration::from_millis(5);
/// The interval of silence after which the callback decides whether to continue.
const LOOK: Duration = Duration::from_millis(100);

/// A message of rank 0.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum HubEvent {
    /// All cases of one size of an operation, complete.
    Rows(Vec<MeasurementRow>),
    /// A note for the user.
    Note(String),
}

/// The command's end of the socket.
#[derive(Debug)]
pub struct Hub {
    listener: UnixListener,
    socket: PathBuf,
    competitors: Option<CompetitorProcess>,
}

impl Hub {
    /// Listens in `folder`, which only the user may be able to enter: any process that can connect
    /// is accepted.
    ///
    /// # Errors
    /// [`BenchError::Channel`] with the error of the system.
    pub fn new(folder: &Path) -> Result<Self, BenchError> {
        let socket = folder.join("bench.socket");
        let failed = |error| BenchError::channel(format!("listen at {}", socket.display()), error);
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self {
            listener,
            socket,
            competitors: None,
        })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Adds the competitors and waits until all of their ranks are connected, as long as `go_on`
    /// returns true.
    ///
    /// # Errors
    /// [`BenchError::Competitor`] when one exits, or not all are connected within three minutes.
    pub fn compete(
        &mut self,
        mut competitors: CompetitorProcess,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), BenchError> {
        let deadline = ronde_clock::now() + START_MAX;
        while !competitors.are_complete() {
            competitors.check()?;
            if !go_on() {
                return Err(BenchError::channel("start the competitors", "interrupted"));
            }
            if ronde_clock::now() >= deadline {
                return Err(competitors.failure("mpirun did not start all ranks in three minutes"));
            }
            match self.accept()? {
                Some((Hello::Other { rank }, line)) => competitors.enter(rank, line)?,
                Some((Hello::Ronde, _)) => {}
                None => ronde_clock::pause(PAUSE),
            }
        }
        self.competitors = Some(competitors);
        Ok(())
    }

    /// Receives rank 0's messages until it disconnects, or `go_on` returns false.
    ///
    /// # Errors
    /// [`BenchError::Channel`] for invalid messages.
    pub fn serve(
        &mut self,
        on_news: &mut dyn FnMut(HubEvent),
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), BenchError> {
        let mut line = loop {
            match self.accept()? {
                Some((Hello::Ronde, line)) => break line,
                Some(_) => {}
                None if go_on() => ronde_clock::pause(PAUSE),
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
                        // The rank has exited; the supervisor reports the reason.
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    return Err(BenchError::channel("receive from rank 0", error));
                }
                // The rank has exited, or has finished.
                Err(_) => return Ok(()),
            }
        }
    }

    fn their_turn(&mut self, turn: CompetitorTurn, go_on: &dyn Fn() -> bool) -> CompetitorReply {
        let failed = |error: BenchError| match error {
            BenchError::Competitor { problem, hint } => CompetitorReply::Failed { problem, hint },
            other => CompetitorReply::Failed {
                problem: other.to_string(),
                hint: "run it again, or without --against to measure ronde alone".to_owned(),
            },
        };
        let Some(competitors) = &mut self.competitors else {
            let problem = format!("{} was not started", turn.backend);
            return failed(BenchError::channel("run a turn", problem));
        };
        let deadline = ronde_clock::now() + TURN_MAX;
        let go_on = || go_on() && ronde_clock::now() < deadline;
        competitors.turn(turn, &go_on).unwrap_or_else(failed)
    }

    /// Accepts a connection and returns its kind. Unknown processes are ignored.
    fn accept(&self) -> Result<Option<(Hello, LineConnection)>, BenchError> {
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(BenchError::channel("accept a connection", error)),
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::report::samples::row;
    use crate::settings::Competitor;
    use crate::turns::Reporter;

    #[test]
    fn rows_and_notes_arrive_and_unknown_processes_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let mut hub = Hub::new(folder.path()).unwrap();
        let socket = hub.socket().to_owned();
        let rank_0 = std::thread::spawn(move || {
            let mut unknown = UnixStream::connect(&socket).unwrap();
            unknown.write_all(b"GET / HTTP/1.0\n").unwrap();
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
        // No further connection arrives.
        hub.serve(&mut |_| (), &|| false).unwrap();
    }
}
