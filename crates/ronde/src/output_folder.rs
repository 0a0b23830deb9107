//! [`OutputFolder`]: the folder of a run's results, created, checked and locked by one run at a time.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Number of further attempts to lock a folder.
const LOCK_RETRIES: u32 = 5;
/// Time between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The locked output folder of a run. The lock ends with the process.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    _lock: File,
}

impl OutputFolder {
    /// Creates and locks the folder.
    ///
    /// # Errors
    /// A message with a help line: the folder cannot be created, read, or another run has locked it.
    pub fn lock(path: &Path) -> Result<Self, String> {
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
        match try_lock(&lock) {
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

    /// Returns whether a folder has the model of a finished run.
    #[must_use]
    pub fn has_results(folder: &Path) -> bool {
        let names = [ronde_model::WEIGHTS_FILE, ronde_model::MANIFEST_FILE];
        names.iter().any(|name| folder.join(name).exists())
    }

    /// Returns whether the folder has the model or the checkpoints of an earlier run.
    #[must_use]
    pub fn has_run(&self) -> bool {
        Self::has_results(&self.path) || self.path.join("checkpoints").is_dir()
    }

    /// Removes the results of an earlier run: model, run file, events, numbers for other tools, checkpoints, flight
    /// records and logs.
    ///
    /// # Errors
    /// A message that names the file that cannot be removed.
    pub fn remove_results(&self) -> Result<(), String> {
        let files = [
            ronde_model::WEIGHTS_FILE,
            ronde_model::MANIFEST_FILE,
            ronde_model::TOKENIZER_FILE,
            "run.toml",
            "events.jsonl",
            "events.1.jsonl",
            "metrics.csv",
            "evaluations.csv",
            "loss.svg",
        ];
        let card = self.path.join(ronde_model::CARD_FILE);
        if ronde_model::is_card(&card) {
            std::fs::remove_file(&card)
                .map_err(|error| format!("cannot remove {}: {error}", card.display()))?;
        }
        let folders = [
            "checkpoints",
            "flight",
            "logs",
            "mlflow",
            "tensorboard",
            "trace",
        ];
        let files = files.map(|name| (name, std::fs::remove_file(self.path.join(name))));
        let folders = folders.map(|name| (name, std::fs::remove_dir_all(self.path.join(name))));
        for (name, removed) in files.into_iter().chain(folders) {
            match removed {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let path = self.path.join(name);
                    return Err(format!("cannot remove {}: {error}", path.display()));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the absolute path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the temporary files of workers that were ended during a write.
    pub fn remove_temporary_files(&self) {
        for name in [
            ronde_model::WEIGHTS_FILE,
            ronde_model::MANIFEST_FILE,
            ronde_model::TOKENIZER_FILE,
            ronde_model::CARD_FILE,
            "run.toml",
        ] {
            // Usually there is none.
            let _ = std::fs::remove_file(ronde_model::temporary(&self.path.join(name)));
        }
    }
}

/// Takes the lock. Retries for a moment: a display holds a shared lock for microseconds while it looks whether a run has it.
#[expect(
    clippy::disallowed_methods,
    reason = "a bounded pause between a few attempts"
)]
fn try_lock(folder: &File) -> Result<(), std::fs::TryLockError> {
    for _ in 0..LOCK_RETRIES {
        match folder.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
            locked => return locked,
        }
    }
    folder.try_lock()
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        self.remove_temporary_files();
    }
}
