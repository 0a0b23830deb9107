//! [`Rank0`]: the address at which rank 0 listens and the other members connect.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::long_wait::LongWait;
use crate::peer_address::PeerAddress;

/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// The same after the resolver has failed, so that name servers are not flooded.
const RESOLVE_PAUSE: Duration = Duration::from_millis(500);
/// Time limit for one attempt: the address may be out of date, or answer nothing.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);

/// The address of rank 0, until a deadline.
pub(super) struct Rank0<'a> {
    pub(super) address: &'a PeerAddress,
    pub(super) deadline: Instant,
}

/// Why an attempt failed, and whether another one may succeed.
enum AttemptError {
    Later(String, Duration),
    Never(String),
}

impl Rank0<'_> {
    /// Listens as rank 0. The name may get its address, or this host, only after the process has started.
    pub(super) fn listen(
        &self,
        notify: &mut dyn FnMut(String),
    ) -> Result<(TcpListener, SocketAddr), String> {
        let what = format!("the address {} of this host", self.address);
        self.repeat((what, "cannot listen in time"), notify, || {
            let mut problem = None;
            for at in self.resolve()? {
                match TcpListener::bind(at) {
                    Ok(listener) => return Ok((listener, at)),
                    Err(error) => problem = Some((at, error)),
                }
            }
            Err(match problem {
                Some((at, error)) => {
                    let text = format!("cannot listen at {at}: {error}");
                    let is_elsewhere = error.kind() == ErrorKind::AddrNotAvailable;
                    match is_elsewhere && self.address.is_name() {
                        true => AttemptError::Later(text, RESOLVE_PAUSE),
                        false => AttemptError::Never(text),
                    }
                }
                None => AttemptError::Never("the host has no address".to_owned()),
            })
        })
    }

    /// Connects to rank 0, which may not listen yet.
    pub(super) fn connect(&self, notify: &mut dyn FnMut(String)) -> Result<TcpStream, String> {
        let what = format!("rank 0 at {}", self.address);
        self.repeat((what, "cannot reach rank 0 in time"), notify, || {
            let mut problem = String::new();
            for at in self.resolve()? {
                let limit = self.left().min(ATTEMPT_MAX);
                match TcpStream::connect_timeout(&at, limit.max(Duration::from_millis(1))) {
                    Ok(stream) => return Ok(stream),
                    Err(error) => problem = format!("cannot connect to {at}: {error}"),
                }
            }
            Err(AttemptError::Later(problem, RETRY_PAUSE))
        })
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(ronde_clock::now())
    }

    fn resolve(&self) -> Result<Vec<SocketAddr>, AttemptError> {
        let found = self.address.resolve(self.left());
        found.map_err(|problem| AttemptError::Later(problem, RESOLVE_PAUSE))
    }

    /// Repeats an attempt until it succeeds, or until the deadline: then the error starts with `late`.
    fn repeat<T>(
        &self,
        (what, late): (String, &str),
        notify: &mut dyn FnMut(String),
        mut attempt: impl FnMut() -> Result<T, AttemptError>,
    ) -> Result<T, String> {
        let mut wait = LongWait::begin(what, self.deadline, notify);
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(AttemptError::Never(problem)) => return Err(problem),
                Err(AttemptError::Later(problem, pause)) => {
                    if ronde_clock::now() + pause >= self.deadline {
                        return Err(format!("{late}: {problem}"));
                    }
                    wait.continues(&problem);
                    ronde_clock::pause(pause);
                }
            }
        }
    }
}
