//! The output folder of a run: created, checked and locked by one run at a time.

use std::fs::File;
use std::path::{Path, PathBuf};

/// The locked output folder of a run. The lock ends with the process.
#[derive(Debug)]
pub(crate) struct OutputFolder {
    path: PathBuf,
    _lock: File,
}

impl OutputFolder {
    /// Creates and locks the folder.
    ///
    /// # Errors
    /// A message with a help line: the folder cannot be created, read, or another run has locked it.
    pub(crate) fn lock(path: &Path) -> Result<Self, String> {
        let hint = "choose another folder: --set run.output=FOLDER";
        let failed = |what: &str, error: &std::io::Error| {
            format!("{what} {}: {error}\n  help: {hint}", path.display())
        };
        std::fs::create_dir_all(path)
            .map_err(|error| failed("cannot create output folder", &error))?;
        let path = path
            .canonicalize()
            .map_err(|error| failed("cannot find output folder", &error))?;
        // The lock is on the folder itself, so that it leaves no file behind.
        let lock =
            File::open(&path).map_err(|error| failed("cannot read output folder", &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(std::fs::TryLockError::WouldBlock) => Err(format!(
                "cannot use output folder {}: another run is writing to it\n  help: wait for that run, or {hint}",
                path.display()
            )),
            Err(std::fs::TryLockError::Error(error)) => {
                Err(failed("cannot lock output folder", &error))
            }
        }
    }

    /// Returns the absolute path of the folder.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the temporary files of workers that were ended during a write.
    pub(crate) fn remove_temporary_files(&self) {
        for name in [
            ronde_train::export::MODEL_FILE,
            ronde_train::export::CONFIG_FILE,
            "run.toml",
        ] {
            // Usually there is none.
            let _ = std::fs::remove_file(ronde_train::export::temporary(&self.path.join(name)));
        }
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        self.remove_temporary_files();
    }
}
