//! File locks, which the kernel releases when the holding process ends, however it ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::error::StoreError;
use crate::waits::Deadline;

/// The name prefix of temporary files.
pub(crate) const TEMPORARY_PREFIX: &str = ".tmp-ronde-";

/// A lock that is held until it is dropped.
pub(crate) struct FileLock(#[expect(dead_code, reason = "dropping it unlocks")] File);

/// Takes the lock file at `path`, waiting at most `limit`.
pub(crate) fn lock(path: &Path, limit: Duration) -> Result<FileLock, StoreError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(|error| StoreError::disk("open", path, error))?;
    let mut deadline = Deadline::after(limit);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(FileLock(file)),
            Err(TryLockError::Error(error)) => {
                return Err(StoreError::disk("lock", path, error));
            }
            Err(TryLockError::WouldBlock) => {}
        }
        if !deadline.pause() {
            return Err(StoreError::Busy {
                location: path.display().to_string(),
                waited_s: deadline.waited_s(),
                limit_s: limit.as_secs_f64(),
            });
        }
    }
}

/// Creates a temporary file in `folder` and locks it, so that no sweep removes it while this
/// process lives.
pub(crate) fn temporary(folder: &Path) -> std::io::Result<NamedTempFile> {
    use std::os::unix::fs::PermissionsExt;
    const ATTEMPTS: usize = 16;
    for _ in 0..ATTEMPTS {
        let file = tempfile::Builder::new()
            .prefix(TEMPORARY_PREFIX)
            .permissions(std::fs::Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        match file.as_file().try_lock() {
            // A sweep may have removed the file between its creation and the lock.
            Ok(()) if file.as_file().metadata()?.nlink() == 1 => return Ok(file),
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(std::io::Error::other(
        "temporary files are removed as soon as they are created",
    ))
}

/// Removes a temporary file if the process that created it has ended.
pub(crate) fn remove_if_abandoned(path: &Path) -> std::io::Result<bool> {
    // NFS grants an exclusive lock only to a file that is open for writing.
    let file = match File::options().read(true).write(true).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        other => other?,
    };
    match file.try_lock() {
        Ok(()) => match std::fs::remove_file(path) {
            // It was published under its final name after it was opened.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            other => other.map(|()| true),
        },
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}
