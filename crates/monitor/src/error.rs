//! [`MonitorError`]: why a sink could not be made or did not keep all events.

use std::path::PathBuf;

use ronde_core::Recovery;

/// What can go wrong with a sink. None of it stops a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The event file could not be made.
    #[error("cannot write the event file {}: {cause}", path.display())]
    Create {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        cause: std::io::Error,
    },
}

impl MonitorError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Create { .. } => Recovery::Abort,
        }
    }
}
