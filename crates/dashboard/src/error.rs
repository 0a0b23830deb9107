//! [`DashboardError`]: errors of the displays.

use std::net::SocketAddr;
use std::path::PathBuf;

use ronde_core::Recovery;

/// An error of a display. None of them affects a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DashboardError {
    /// The folder cannot be read.
    #[error("cannot read folder {}: {cause}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The operating system's error.
        cause: std::io::Error,
    },
    /// The address cannot be used.
    #[error("cannot listen at {address}: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The operating system's error.
        cause: std::io::Error,
    },
    /// The system refuses a thread.
    #[error("cannot start the server: {cause}")]
    Start {
        /// The operating system's error.
        cause: std::io::Error,
    },
    /// The terminal cannot be used.
    #[error("cannot use the terminal: {cause}")]
    Terminal {
        /// The operating system's error.
        cause: std::io::Error,
    },
}

impl DashboardError {
    /// Returns how a caller can recover.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        Recovery::Abort
    }
}
