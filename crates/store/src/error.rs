//! [`StoreError`]: what can go wrong with an object, with its place and the operation.

use std::io;

use ronde_core::Recovery;

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// There is no such object.
    #[error("{location} is not there ({operation})")]
    NotFound {
        /// What was tried.
        operation: &'static str,
        /// Full place of the object.
        location: String,
    },
    /// The condition of a put did not hold, or a remote object was replaced while it was read: look again.
    #[error("{location}: {found}")]
    Conflict {
        /// Full place of the object.
        location: String,
        /// What stands there instead.
        found: &'static str,
    },
    /// Another process holds the lock for too long.
    #[error(
        "{location} is locked by another process; waited {waited_s:.1} s, limit {limit_s:.1} s"
    )]
    Busy {
        /// The lock.
        location: String,
        /// Seconds waited.
        waited_s: f64,
        /// The limit in seconds.
        limit_s: f64,
    },
    /// The operating system refused.
    #[error("{operation} {location}: {source}{}", hint(source))]
    Disk {
        /// What was tried.
        operation: &'static str,
        /// Full path.
        location: String,
        /// The system's answer.
        source: io::Error,
    },
    /// Something in the settings keeps a remote store from being used: credentials, bucket, certificate.
    #[error("{operation} {location}: {cause}")]
    Settings {
        /// What was tried.
        operation: &'static str,
        /// Full address.
        location: String,
        /// What is wrong, with the service's answer.
        cause: String,
    },
    /// A remote store did not answer, or not usefully, after bounded retries.
    #[error("{operation} {location}: {cause}")]
    Passing {
        /// What was tried.
        operation: &'static str,
        /// Full address.
        location: String,
        /// The last answer.
        cause: String,
    },
    /// The object is not what was written.
    #[error("{location} is damaged: {problem}")]
    Damaged {
        /// Full place of the object.
        location: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The object was encrypted with another master key.
    #[error("{location} was encrypted with another key (key id {theirs}; this key's id is {mine})")]
    OtherKey {
        /// Full place of the object.
        location: String,
        /// Id in the object.
        theirs: String,
        /// Id of the key at hand.
        mine: String,
    },
    /// Text or bytes that are no master key.
    #[error("this is no encryption key: {problem}; `openssl rand -hex 32` makes one")]
    Key {
        /// What is wrong with it.
        problem: String,
    },
    /// A name that no object can have.
    #[error("{name:?} is no name of an object: {problem}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// An address that is none.
    #[error("{address:?} is no place for objects: {problem}")]
    Address {
        /// The address.
        address: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl StoreError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Busy { .. } | Self::Passing { .. } | Self::Conflict { .. } => Recovery::Retry,
            Self::Disk { source, .. } => match source.kind() {
                io::ErrorKind::Interrupted
                | io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::StaleNetworkFileHandle => Recovery::Retry,
                _ => Recovery::Abort,
            },
            _ => Recovery::Abort,
        }
    }

    /// Whether the object is simply absent.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Whether somebody else was there first.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Conflict { .. })
    }

    pub(crate) fn disk(operation: &'static str, path: &std::path::Path, source: io::Error) -> Self {
        let location = path.display().to_string();
        if source.kind() == io::ErrorKind::NotFound {
            return Self::NotFound {
                operation,
                location,
            };
        }
        Self::Disk {
            operation,
            location,
            source,
        }
    }
}

/// What a user can do about an answer of the system.
fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => "; free some space or choose another place",
        io::ErrorKind::QuotaExceeded => "; the quota is used up",
        io::ErrorKind::ReadOnlyFilesystem => "; choose a place that can be written to",
        io::ErrorKind::Unsupported => "; this file system cannot lock files: choose another place",
        _ => "",
    }
}
