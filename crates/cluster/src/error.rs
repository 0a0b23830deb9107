//! [`ClusterError`]: why a worker cannot join its job, or a job cannot be led or reached.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ronde_core::Recovery;

/// Errors between workers, supervisors and coordinators.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The supervisor could not be reached in time.
    #[error("cannot reach the supervisor at {address} within {limit:.1?}: {cause}")]
    Connect {
        /// The supervisor's expected address.
        address: SocketAddr,
        /// The time limit.
        limit: Duration,
        /// The last error of the system.
        cause: std::io::Error,
    },
    /// The supervisor rejected this worker: wrong token, version or rank.
    #[error("the supervisor refused this worker: {reason}")]
    Refused {
        /// The supervisor's reason.
        reason: String,
    },
    /// An address is not valid.
    #[error("invalid address `{address}`: expected HOST:PORT, such as 10.0.0.1:4711")]
    Address {
        /// The invalid address.
        address: String,
    },
    /// The workers of another launcher did not meet.
    #[error("cannot meet the other workers at {address}: {problem}")]
    Rendezvous {
        /// The address of rank 0.
        address: String,
        /// The problem.
        problem: String,
    },
    /// The variables of this process do not specify its rank and job.
    #[error("{problem}\n  help: {help}")]
    Environment {
        /// The variables, their values and their problem.
        problem: String,
        /// What to do about it.
        help: String,
    },
    /// The connection to the supervisor failed, or the supervisor ended the job.
    #[error("lost the supervisor: {reason}")]
    Lost {
        /// The observed cause.
        reason: String,
    },
    /// A job's folder cannot be used.
    #[error("cannot use job {}: {problem}", path.display())]
    Job {
        /// The folder, or a file in it.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// The store with a job's record failed.
    #[error("cannot access the job's store: {source}")]
    Store {
        /// The store's error.
        source: Box<ronde_store::StoreError>,
    },
    /// The job is over, according to its record.
    #[error("job {job} {}", if *is_finished { "is finished: all steps are committed" } else { "was stopped" })]
    Over {
        /// The job's name.
        job: String,
        /// Whether all steps are committed; otherwise a stop was requested.
        is_finished: bool,
    },
    /// No coordinator of the job could be reached.
    #[error("cannot reach a coordinator of the job: {}", tried.join("; "))]
    NoCoordinator {
        /// The addresses that were tried, each with its error.
        tried: Vec<String>,
    },
    /// A coordinator cannot listen, or has no certificate.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        cause: std::io::Error,
    },
    /// A certificate is invalid.
    #[error(transparent)]
    Identity(#[from] ronde_identity::IdentityError),
    /// A message that no correct peer of this version sends.
    #[error("invalid control message: {problem}")]
    Protocol {
        /// The problem.
        problem: String,
    },
}

impl ClusterError {
    /// Returns the recommended recovery.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Connect { .. } | Self::NoCoordinator { .. } => Recovery::Retry,
            Self::Store { source } => source.recovery(),
            Self::Refused { .. }
            | Self::Address { .. }
            | Self::Rendezvous { .. }
            | Self::Environment { .. }
            | Self::Lost { .. }
            | Self::Protocol { .. }
            | Self::Job { .. }
            | Self::Over { .. }
            | Self::Listen { .. }
            | Self::Identity(_) => Recovery::Abort,
        }
    }
}

/// Converts an error of a store.
pub(crate) fn store_error(source: ronde_store::StoreError) -> ClusterError {
    ClusterError::Store {
        source: Box::new(source),
    }
}
