//! [`ClusterError`]: why a worker could not join its job, or a job could not be led or reached.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ronde_core::Recovery;

/// What can go wrong between a worker and its supervisor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The supervisor could not be reached in time.
    #[error("cannot reach the supervisor at {address} within {limit:.1?}: {cause}")]
    Connect {
        /// Where it should listen.
        address: SocketAddr,
        /// How long was tried.
        limit: Duration,
        /// The system's last answer.
        cause: std::io::Error,
    },
    /// The supervisor does not want this worker: wrong token, version or rank.
    #[error("the supervisor refused this worker: {reason}")]
    Refused {
        /// What it said.
        reason: String,
    },
    /// Not all ranks were ready in time.
    #[error("no assignment from the supervisor within {limit:.1?}")]
    RendezvousTimeout {
        /// How long was waited.
        limit: Duration,
    },
    /// The supervisor went away or ended the job.
    #[error("lost the supervisor: {reason}")]
    Lost {
        /// What was seen.
        reason: String,
    },
    /// A job's folder cannot be used.
    #[error("job {}: {problem}", path.display())]
    Job {
        /// The folder, or the file in it.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The store that holds a job's record.
    #[error("the job's store: {source}")]
    Store {
        /// What it said.
        source: Box<ronde_store::StoreError>,
    },
    /// The job is over, as its record says.
    #[error("job {job} {}", if *is_finished { "is finished: there is nothing left to do" } else { "was stopped" })]
    Over {
        /// Its name.
        job: String,
        /// All steps are committed; otherwise it was asked to stop.
        is_finished: bool,
    },
    /// No coordinator of the job could be talked to.
    #[error("no coordinator of the job answers: {}", tried.join("; "))]
    NoCoordinator {
        /// Where, and what came of it.
        tried: Vec<String>,
    },
    /// A coordinator cannot listen, or has no certificate.
    #[error("the coordinator cannot listen at {address}: {cause}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// A certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] ronde_identity::IdentityError),
    /// A message that no honest peer of this version sends.
    #[error("broken control message: {problem}")]
    Protocol {
        /// What is wrong with it.
        problem: String,
    },
}

impl ClusterError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Connect { .. } | Self::NoCoordinator { .. } => Recovery::Retry,
            Self::RendezvousTimeout { .. } => Recovery::Rejoin,
            Self::Store { source } => source.recovery(),
            Self::Refused { .. }
            | Self::Lost { .. }
            | Self::Protocol { .. }
            | Self::Job { .. }
            | Self::Over { .. }
            | Self::Listen { .. }
            | Self::Identity(_) => Recovery::Abort,
        }
    }
}
