//! [`Presence`]: a locked file by which others on the same file system see that a coordinator lives. The
//! system takes the lock away when the process ends, however it does, and not before.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

use ronde_elastic::CoordinatorId;

/// Held for as long as a coordinator lives.
pub(crate) struct Presence {
    path: PathBuf,
    _locked: File,
}

impl Presence {
    /// Shows that this coordinator lives. `None` where files cannot be locked: then its end is not seen, and
    /// others wait until its lease is over.
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

impl Drop for Presence {
    fn drop(&mut self) {
        // One that is left is not locked any more, and says the same.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether a coordinator is known to have ended; false when nothing is known of it here.
pub(crate) fn has_ended(folder: &Path, coordinator: CoordinatorId) -> bool {
    let path = file(folder, coordinator);
    let found = OpenOptions::new().write(true).open(&path);
    found.is_ok_and(|file| match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => false,
    })
}

/// A coordinator that has ended is followed by another one: nothing is to be said of it any more.
pub(crate) fn forget(folder: &Path, coordinator: CoordinatorId) {
    // Left over, it harms nobody.
    let _ = std::fs::remove_file(file(folder, coordinator));
}

fn file(folder: &Path, coordinator: CoordinatorId) -> PathBuf {
    folder.join(format!("coordinator-{}.lock", coordinator.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_lives_is_not_taken_for_dead_and_whoever_is_not_known_neither() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let (one, other) = (CoordinatorId(1), CoordinatorId(2));
        let here = Presence::show(folder, one).unwrap();
        assert!(!has_ended(folder, one) && !has_ended(folder, other));
        // As after kill -9: the file is there, the lock is not.
        std::fs::write(file(folder, other), "").unwrap();
        assert!(has_ended(folder, other));
        assert!(has_ended(folder, other), "asking changes nothing");
        forget(folder, other);
        assert!(!has_ended(folder, other));
        drop(here);
        assert!(!file(folder, one).exists());
    }
}
