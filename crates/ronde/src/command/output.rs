//! The folder of a run's results: made, tried, and held by one run at a time.

use std::fs::File;
use std::path::{Path, PathBuf};

/// Held for the life of a run; the lock is gone when the process is, however it ends.
#[derive(Debug)]
pub(crate) struct OutputFolder {
    path: PathBuf,
    _lock: File,
}

impl OutputFolder {
    /// Makes the folder and takes it.
    ///
    /// # Errors
    /// A message with a hint: not to be made, not to be written, or taken by another run.
    pub(crate) fn take(path: &Path) -> Result<Self, String> {
        let hint = "choose another folder: --set run.output=FOLDER";
        let failed = |what: &str, error: &std::io::Error| {
            format!("{what} {}: {error}\n  hint: {hint}", path.display())
        };
        std::fs::create_dir_all(path)
            .map_err(|error| failed("cannot create the output folder", &error))?;
        let path = path
            .canonicalize()
            .map_err(|error| failed("cannot find the output folder", &error))?;
        // The lock is on the folder itself, so that it leaves no file behind.
        let lock =
            File::open(&path).map_err(|error| failed("cannot read the output folder", &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(std::fs::TryLockError::WouldBlock) => Err(format!(
                "another run writes to {} right now\n  hint: wait for it, or {hint}",
                path.display()
            )),
            Err(std::fs::TryLockError::Error(error)) => {
                Err(failed("cannot lock the output folder", &error))
            }
        }
    }

    /// The folder, absolute.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes what workers that were ended in the middle of a write have left.
    pub(crate) fn remove_temporary_files(&self) {
        for name in [
            ronde_train::export::MODEL_FILE,
            ronde_train::export::CONFIG_FILE,
            "run.toml",
        ] {
            // Mostly there is none.
            let _ = std::fs::remove_file(ronde_train::export::temporary(&self.path.join(name)));
        }
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        self.remove_temporary_files();
    }
}
