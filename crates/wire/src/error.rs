//! [`WireError`]: why a connection cannot be used.

use std::io::{self, ErrorKind};

use ronde_identity::{explain, rustls};

/// The reason that one end of a TLS connection refuses the other. As an I/O error it has the kind `InvalidData`.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", explain(.0))]
pub struct TlsRefusal(pub(crate) rustls::Error);

impl TlsRefusal {
    /// Returns the refusal that an I/O error of a connection carries.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }
}

impl From<TlsRefusal> for io::Error {
    fn from(refusal: TlsRefusal) -> Self {
        Self::new(ErrorKind::InvalidData, refusal)
    }
}

/// The reason that a connection cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The deadline has passed.
    #[error("no answer in time")]
    Late,
    /// The peer closed the connection.
    #[error("the connection was closed")]
    Closed,
    /// The handshake or a record is not acceptable to one of the ends.
    #[error(transparent)]
    Refused(TlsRefusal),
    /// A line is too long.
    #[error("a line longer than {limit} bytes")]
    TooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// A line is not the expected message, or a message cannot be written as a line.
    #[error("invalid message: {0}")]
    Message(serde_json::Error),
    /// The network failed.
    #[error(transparent)]
    Io(io::Error),
}

impl From<io::Error> for WireError {
    fn from(error: io::Error) -> Self {
        match (TlsRefusal::of(&error), error.kind()) {
            (Some(refusal), _) => Self::Refused(refusal.clone()),
            (None, ErrorKind::TimedOut) => Self::Late,
            (None, ErrorKind::UnexpectedEof) => Self::Closed,
            (None, _) => Self::Io(error),
        }
    }
}

/// Converts `WouldBlock`, which a socket with a time limit returns, to a timeout error.
pub(crate) fn timed_out(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => ErrorKind::TimedOut.into(),
        _ => error,
    }
}

/// Repeats an operation that a signal has interrupted.
///
/// # Errors
/// Those of the operation.
pub fn retry_interrupted<T>(mut operation: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match operation() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}
