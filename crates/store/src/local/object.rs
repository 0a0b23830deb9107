//! [`LocalObject`]: a file that is open for reading.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::retry::{DiskRetry, is_temporary};
use super::walk::stamp_of;
use crate::error::StoreError;
use crate::regular::open_regular;
use crate::stamp::Stamp;
use crate::store::{StoredObject, Version};

/// A file that is open for reading.
pub(super) struct LocalObject {
    file: Mutex<Arc<File>>,
    bytes: u64,
    stamp: Stamp,
    /// The modification time of its contents, in seconds and nanoseconds.
    modified: (i64, i64),
    location: String,
    retry: DiskRetry,
}

impl LocalObject {
    /// Opens the file at `path`.
    pub(super) fn open(path: &Path, retry: &DiskRetry) -> Result<Self, StoreError> {
        let opened = retry.run(path, || open_regular(path));
        let (file, metadata) = opened.map_err(|error| StoreError::disk("read", path, error))?;
        Ok(Self {
            file: Mutex::new(Arc::new(file)),
            bytes: metadata.len(),
            stamp: stamp_of(&metadata),
            modified: modified(&metadata),
            location: path.display().to_string(),
            retry: retry.clone(),
        })
    }

    fn file(&self) -> Arc<File> {
        Arc::clone(&self.file.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether the contents have been changed in place. A file that is deleted, renamed or replaced by another one keeps
    /// its contents for this reader. Cost: one system call.
    fn is_written_to(&self) -> bool {
        let metadata = self.file().metadata();
        metadata.is_ok_and(|now| (modified(&now), now.len()) != (self.modified, self.bytes))
    }

    /// Opens the file again, because a stale handle stays stale. Returns false if it is another file now.
    fn reopen(&self) -> bool {
        let Ok((file, metadata)) = open_regular(Path::new(&self.location)) else {
            // It may be there at the next attempt.
            return true;
        };
        let is_same = stamp_of(&metadata) == self.stamp;
        if is_same {
            *self.file.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(file);
        }
        is_same
    }
}

/// Returns the modification time of a file.
fn modified(metadata: &Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}

impl StoredObject for LocalObject {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let damaged = |problem: String| StoreError::Damaged {
            location: self.location.clone(),
            problem,
        };
        let end = start.saturating_add(into.len() as u64);
        if end > self.bytes {
            return Err(damaged(format!(
                "it ends before byte {end}; it has {} bytes",
                self.bytes
            )));
        }
        let path = Path::new(&self.location);
        let mut was_replaced = false;
        let read = self.retry.run(path, || {
            let read = self.file().read_exact_at(into, start);
            if read.as_ref().is_err_and(is_temporary) && !self.reopen() {
                was_replaced = true;
                // Not an error that may pass.
                return Err(io::ErrorKind::NotFound.into());
            }
            read
        });
        match read {
            // After the read, so that a write before or during it is seen.
            Ok(()) if self.is_written_to() => Err(damaged(
                "a program has written to it since it was opened; restore the file as it was"
                    .to_owned(),
            )),
            Err(_) if was_replaced => Err(StoreError::Conflict {
                location: self.location.clone(),
                found: "it was replaced while it was read",
            }),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(damaged(format!(
                "it had {} bytes and was truncated while it was read",
                self.bytes
            ))),
            other => other.map_err(|error| StoreError::disk("read", path, error)),
        }
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }

    fn version(&self) -> Result<Version, StoreError> {
        version_of(&self.file())
            .map_err(|error| StoreError::disk("read", Path::new(&self.location), error))
    }

    fn location(&self) -> &str {
        &self.location
    }
}

/// Returns the hash of a file's contents, whatever its read position.
pub(super) fn version_of(file: &File) -> io::Result<Version> {
    let mut hasher = blake3::Hasher::new();
    let mut piece = vec![0; 1 << 16];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut piece, at)?;
        if read == 0 {
            return Ok(Version(hasher.finalize().to_hex().to_string()));
        }
        hasher.update(&piece[..read]);
        at += read as u64;
    }
}
