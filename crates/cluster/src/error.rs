//! [`ClusterError`]: why a worker could not join its job.

use std::net::SocketAddr;
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
            Self::Connect { .. } => Recovery::Retry,
            Self::RendezvousTimeout { .. } => Recovery::Rejoin,
            Self::Refused { .. } | Self::Lost { .. } | Self::Protocol { .. } => Recovery::Abort,
        }
    }
}
