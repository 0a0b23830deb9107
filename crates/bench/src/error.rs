//! [`BenchError`]: errors of measuring.

use ronde_core::{CollectiveError, Recovery};

/// An error of measuring.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A setting is not valid.
    #[error("{what}: {problem}")]
    Setting {
        /// The setting: `--sizes`.
        what: &'static str,
        /// The problem and the valid values.
        problem: String,
    },
    /// An operation returned a wrong result.
    #[error(
        "wrong result: {case}, rank {rank}, element {element} of {len}: got {got}, expected {expected} \
         (allowed difference {tolerance})"
    )]
    WrongResult {
        /// Operation, bytes, ranks, transport, memory and algorithm.
        case: String,
        /// The rank with the wrong result.
        rank: u32,
        /// The index of the first wrong element.
        element: usize,
        /// The number of elements of the result.
        len: usize,
        /// The element that the operation returned.
        got: String,
        /// The expected element.
        expected: String,
        /// The allowed deviation.
        tolerance: String,
    },
    /// A result has a wrong length.
    #[error("wrong result: {case}, rank {rank}: {got} elements, expected {expected}")]
    WrongLength {
        /// As in [`BenchError::WrongResult`].
        case: String,
        /// The rank with the wrong result.
        rank: u32,
        /// The number of elements received.
        got: usize,
        /// The number of elements expected.
        expected: usize,
    },
    /// An operation failed.
    #[error("{case}: {source}")]
    Operation {
        /// The measured case.
        case: String,
        /// The cause.
        source: CollectiveError,
    },
    /// The ranks could not be connected as a case requires.
    #[error("cannot connect {what}: {source}")]
    Connect {
        /// Transport and algorithm.
        what: String,
        /// The cause.
        source: CollectiveError,
    },
    /// A buffer is not registered although it should be.
    #[error(
        "{case}: the group has no shared memory left for buffers of {bytes} bytes; measure smaller \
         sizes, or --memory any"
    )]
    NoSharedMemory {
        /// The measured case.
        case: String,
        /// The size of one buffer in bytes.
        bytes: usize,
    },
    /// Certificates for TLS could not be created.
    #[error("cannot create certificates for TLS: {0}")]
    Identity(#[from] ronde_identity::IdentityError),
    /// Communication with the supervisor or a worker failed.
    #[error("cannot {what}: {cause}")]
    Channel {
        /// The attempted operation.
        what: String,
        /// The cause.
        cause: String,
    },
    /// Gloo or Open MPI cannot be measured.
    #[error("{problem}\n  help: {hint}")]
    Competitor {
        /// The problem.
        problem: String,
        /// The suggested action.
        hint: String,
    },
    /// A file of results could not be written.
    #[error("cannot write {path}: {source}")]
    File {
        /// The path.
        path: String,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl BenchError {
    /// Returns the recovery action for the caller.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Operation { source, .. } | Self::Connect { source, .. } => source.recovery(),
            _ => Recovery::Abort,
        }
    }

    /// Returns whether the user's input or machine is the cause.
    #[must_use]
    pub fn is_user_error(&self) -> bool {
        matches!(
            self,
            Self::Setting { .. } | Self::Competitor { .. } | Self::File { .. }
        )
    }

    /// Returns whether this rank only observed the failure of another one.
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

pub(crate) fn missing(problem: &str, hint: &str) -> BenchError {
    BenchError::Competitor {
        problem: problem.to_owned(),
        hint: hint.to_owned(),
    }
}
