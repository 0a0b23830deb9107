//! [`MonitorError`]: errors of event sinks.

use std::path::PathBuf;

use ronde_core::Recovery;

/// An error of an event sink. None of them stops a run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MonitorError {
    /// The event file could not be created.
    #[error("cannot create event file {}: {cause}", path.display())]
    Create {
        /// Path of the file.
        path: PathBuf,
        /// The operating system's error.
        cause: std::io::Error,
    },
}

impl MonitorError {
    /// Returns how a caller can recover.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Create { .. } => Recovery::Abort,
        }
    }
}
