//! [`BenchError`]: all that can go wrong while measuring.

use ronde_core::{CollectiveError, Recovery};

/// All that can go wrong while measuring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// What the user asked for cannot be.
    #[error("{what}: {problem}")]
    Setting {
        /// Which setting: `--sizes`.
        what: &'static str,
        /// What is wrong with it and what would be right.
        problem: String,
    },
    /// An operation gave a wrong result.
    #[error(
        "wrong result: {case}, rank {rank}, element {element} of {len}: got {got}, expected {expected} \
         (allowed difference {tolerance})"
    )]
    WrongResult {
        /// Operation, bytes, ranks, transport, memory and algorithm.
        case: String,
        /// Whose result it is.
        rank: u32,
        /// First element that is wrong.
        element: usize,
        /// Elements of the result.
        len: usize,
        /// What the operation gave.
        got: String,
        /// What it should have given.
        expected: String,
        /// How far a right result may be from that.
        tolerance: String,
    },
    /// A result has another length than it must.
    #[error("wrong result: {case}, rank {rank}: {got} elements, expected {expected}")]
    WrongLength {
        /// As in [`BenchError::WrongResult`].
        case: String,
        /// Whose result it is.
        rank: u32,
        /// Elements that came.
        got: usize,
        /// Elements that must come.
        expected: usize,
    },
    /// An operation failed.
    #[error("{case}: {source}")]
    Operation {
        /// What was measured.
        case: String,
        /// Why it failed.
        source: CollectiveError,
    },
    /// The ranks could not be connected as a case needs it.
    #[error("connecting {what}: {source}")]
    Connect {
        /// Transport and algorithm.
        what: String,
        /// Why not.
        source: CollectiveError,
    },
    /// A buffer was to be registered and is not.
    #[error(
        "{case}: the group has no shared memory left for buffers of {bytes} bytes; measure smaller \
         sizes, or --memory any"
    )]
    NoSharedMemory {
        /// What was measured.
        case: String,
        /// Bytes of one buffer.
        bytes: usize,
    },
    /// Certificates for TLS could not be made.
    #[error("certificates for TLS: {0}")]
    Identity(#[from] ronde_identity::IdentityError),
    /// The supervisor or a worker was not to be talked to.
    #[error("{what}: {cause}")]
    Channel {
        /// What was tried.
        what: String,
        /// The system's answer.
        cause: String,
    },
    /// Gloo or Open MPI cannot be measured.
    #[error("{problem}\n  help: {hint}")]
    Competitor {
        /// What is missing or went wrong.
        problem: String,
        /// What to do.
        hint: String,
    },
    /// A file of results could not be written.
    #[error("cannot write {path}: {source}")]
    File {
        /// Which one.
        path: String,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl BenchError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Operation { source, .. } | Self::Connect { source, .. } => source.recovery(),
            _ => Recovery::Abort,
        }
    }

    /// Whether the user's input or machine is to blame.
    #[must_use]
    pub fn is_user_error(&self) -> bool {
        matches!(
            self,
            Self::Setting { .. } | Self::Competitor { .. } | Self::File { .. }
        )
    }

    /// Whether this rank only saw that another one went away or gave up.
    #[must_use]
    pub fn is_secondary(&self) -> bool {
        match self {
            Self::Operation { source, .. } | Self::Connect { source, .. } => matches!(
                source,
                CollectiveError::PeerLost { .. } | CollectiveError::Aborted { .. }
            ),
            _ => false,
        }
    }

    pub(crate) fn channel(what: impl Into<String>, cause: impl ToString) -> Self {
        Self::Channel {
            what: what.into(),
            cause: cause.to_string(),
        }
    }
}
