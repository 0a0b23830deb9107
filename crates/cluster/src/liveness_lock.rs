//! [`LivenessLock`]: a locked file that shows other processes on the same file system that a
//! coordinator runs. The system releases the lock when the process ends for any reason, and not
//! before.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use ronde_protocol::CoordinatorId;

/// A lock that is held while a coordinator runs.
pub(crate) struct LivenessLock {
    path: PathBuf,
    _locked: File,
}

impl LivenessLock {
    /// Creates and locks the file. Returns `None` where files cannot be locked: the coordinator's
    /// end is then not detected, and others wait until its lease expires.
    pub(crate) fn show(folder: &Path, me: CoordinatorId) -> Option<Self> {
        let path = file(folder, me);
        let file = File::create(&path).ok()?;
        file.try_lock().ok()?;
        Some(Self {
            path,
            _locked: file,
        })
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        // A leftover file is not locked any more, which means the same.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns whether a coordinator is known to have ended; false if nothing is known about it here.
pub(crate) fn has_ended(folder: &Path, coordinator: CoordinatorId) -> bool {
    let path = file(folder, coordinator);
    let found = OpenOptions::new().write(true).open(&path);
    found.is_ok_and(|file| match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
    })
}

/// Removes the file of an ended coordinator that has a successor.
pub(crate) fn forget(folder: &Path, coordinator: CoordinatorId) {
    // A leftover file does no harm.
    let _ = std::fs::remove_file(file(folder, coordinator));
}

fn file(folder: &Path, coordinator: CoordinatorId) -> PathBuf {
    folder.join(format!("coordinator-{}.lock", coordinator.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_coordinator_whose_lock_was_released_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (one, other) = (CoordinatorId(1), CoordinatorId(2));
        let here = LivenessLock::show(folder, one).unwrap();
        assert!(!has_ended(folder, one) && !has_ended(folder, other));
        // As after kill -9: the file exists but is not locked.
        std::fs::write(file(folder, other), "").unwrap();
        assert!(has_ended(folder, other));
        assert!(has_ended(folder, other), "the check has no side effect");
        forget(folder, other);
        assert!(!has_ended(folder, other));
        drop(here);
        assert!(!file(folder, one).exists());
    }
}
