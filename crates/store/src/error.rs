//! [`StoreError`]: errors of stores, with the operation and the object's location.

use std::io;

use ronde_core::Recovery;

/// An error of a store operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The object does not exist.
    #[error("cannot {operation} {location}: it does not exist")]
    NotFound {
        /// The attempted operation, a verb.
        operation: &'static str,
        /// The full location of the object.
        location: String,
    },
    /// The condition of a put did not hold, or a remote object was replaced while it was read. The
    /// caller should read it again.
    #[error("{location}: {found}")]
    Conflict {
        /// The full location of the object.
        location: String,
        /// The difference that was found.
        found: &'static str,
    },
    /// Another process holds the lock for too long.
    #[error(
        "cannot lock {location}: another process holds the lock; waited {waited_s:.1} s, limit {limit_s:.1} s"
    )]
    Busy {
        /// The path of the lock.
        location: String,
        /// The seconds waited.
        waited_s: f64,
        /// The limit in seconds.
        limit_s: f64,
    },
    /// An operation of the operating system failed.
    #[error("cannot {operation} {location}: {source}{}", hint(source))]
    Disk {
        /// The attempted operation, a verb.
        operation: &'static str,
        /// The full path.
        location: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The settings prevent the use of a remote store: credentials, bucket, certificate.
    #[error("cannot {operation} {location}: {cause}")]
    Settings {
        /// The attempted operation, a verb.
        operation: &'static str,
        /// The full address.
        location: String,
        /// The cause, with the service's response.
        cause: String,
    },
    /// A remote store gave no usable response within the limit of retries.
    #[error("cannot {operation} {location}: {cause}")]
    Unavailable {
        /// The attempted operation, a verb.
        operation: &'static str,
        /// The full address.
        location: String,
        /// The last response.
        cause: String,
    },
    /// The contents of the object are not those that were written.
    #[error("{location} is damaged: {problem}")]
    Damaged {
        /// The full location of the object.
        location: String,
        /// The damage that was found.
        problem: String,
    },
    /// The object was encrypted with another master key.
    #[error(
        "cannot decrypt {location}: it was encrypted with another key (key id {theirs}; the given key has id {mine})"
    )]
    OtherKey {
        /// The full location of the object.
        location: String,
        /// The key id stored in the object.
        theirs: String,
        /// The id of the given key.
        mine: String,
    },
    /// A master key that cannot be read or is not valid.
    #[error("invalid encryption key: {problem}; create one with `openssl rand -hex 32`")]
    Key {
        /// The reason.
        problem: String,
    },
    /// An object name that is not valid.
    #[error("invalid object name `{name}`: {problem}")]
    Name {
        /// The name.
        name: String,
        /// The reason.
        problem: &'static str,
    },
    /// A file of a user's folder whose name cannot be used.
    #[error(
        "cannot read {location}: {problem}\n  help: rename the file, or move it to another folder"
    )]
    Unnameable {
        /// The full location of the file; a byte that is not UTF-8 is written as `\xE9`.
        location: String,
        /// The reason.
        problem: &'static str,
    },
    /// An address that is not valid.
    #[error("invalid address `{address}`: {problem}")]
    Address {
        /// The address.
        address: String,
        /// The reason.
        problem: String,
    },
}

impl StoreError {
    /// Returns the recovery action for the caller.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Busy { .. } | Self::Unavailable { .. } | Self::Conflict { .. } => Recovery::Retry,
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

    /// Returns whether the same operation can succeed later: the storage is not available now, or a person can free space or
    /// restore the access while the process waits.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Disk { source, .. } if may_pass(source.kind()) => true,
            _ => self.recovery() == Recovery::Retry,
        }
    }

    /// Returns whether the object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Returns whether another writer changed or created the object first.
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

/// Returns whether a write that failed with this error can succeed once a person has freed space or restored the access.
#[must_use]
pub fn may_pass(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::ReadOnlyFilesystem
            | io::ErrorKind::PermissionDenied
    )
}

/// Returns a suggestion for an error of the system.
fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => "; free some space or choose another folder",
        io::ErrorKind::QuotaExceeded => {
            "; the disk quota is exhausted: remove files or raise the quota"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; choose a writable folder",
        io::ErrorKind::Unsupported => {
            "; this file system does not support file locks: choose another folder"
        }
        _ => "",
    }
}
