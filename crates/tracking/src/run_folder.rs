//! The folder of a run: whether a run is writing to it.

use std::fs::{File, TryLockError};
use std::path::Path;

/// Returns whether a run of this host holds the lock of its folder. Costs one system call.
#[must_use]
pub fn is_running(folder: &Path) -> bool {
    let lock = File::open(folder).and_then(|folder| match folder.try_lock_shared() {
        Err(TryLockError::Error(error)) => Err(error),
        Err(TryLockError::WouldBlock) => Ok(true),
        Ok(()) => Ok(false),
    });
    lock.unwrap_or(false)
}
