//! [`OutputFolder`]: the folder of a run's results, created, checked and locked by one run at a time.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use ronde_core::{Event, Tracker};

use crate::created_folders::CreatedFolders;

/// The results of a run, besides a model card, which may be a file of the user.
const RESULTS: [&str; 15] = [
    ronde_saved_model::WEIGHTS_FILE,
    ronde_saved_model::MANIFEST_FILE,
    ronde_saved_model::TOKENIZER_FILE,
    "run.toml",
    "events.jsonl",
    "events.1.jsonl",
    "metrics.csv",
    "evaluations.csv",
    "loss.svg",
    "checkpoints",
    "flight",
    "logs",
    "mlflow",
    "tensorboard",
    "trace",
];
/// Where replaced results are until the new run has committed a step.
const REPLACED_FOLDER: &str = ".replaced";
/// Where they are while they are removed.
const REMOVED_FOLDER: &str = ".replaced-removed";
/// Number of further attempts to lock a folder.
const LOCK_RETRIES: u32 = 5;
/// Time between two attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// The locked output folder of a run. The lock ends with the process.
#[derive(Debug)]
pub struct OutputFolder {
    path: PathBuf,
    created: CreatedFolders,
    /// Whether the folder was empty when it was locked.
    was_empty: bool,
    /// The run has recorded an event, so its files stay.
    has_started: AtomicBool,
    /// The run has committed a step.
    has_step: AtomicBool,
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
        let created = CreatedFolders::create(path)
            .map_err(|error| failed("cannot create output folder", &error))?;
        let path = path
            .canonicalize()
            .map_err(|error| failed("cannot find output folder", &error))?;
        // The lock is on the folder itself, so that it leaves no file behind.
        let lock =
            File::open(&path).map_err(|error| failed("cannot read output folder", &error))?;
        match try_lock(&lock) {
            Ok(()) => {
                let entries = std::fs::read_dir(&path);
                let folder = Self {
                    was_empty: entries.is_ok_and(|mut entries| entries.next().is_none()),
                    path,
                    created,
                    has_started: AtomicBool::new(false),
                    has_step: AtomicBool::new(false),
                    _lock: lock,
                };
                // Of a run that was killed before its first step, or while it removed them.
                folder.restore_results();
                folder.finish_removal();
                Ok(folder)
            }
            Err(std::fs::TryLockError::WouldBlock) => Err(format!(
                "cannot use output folder {}: another run is writing to it\n  help: wait for that run, or {hint}",
                path.display()
            )),
            Err(std::fs::TryLockError::Error(error)) => {
                Err(failed("cannot lock output folder", &error))
            }
        }
    }

    /// Returns whether a run has locked a folder. It may end, or another one begin, at any time.
    #[must_use]
    pub fn is_locked(path: &Path) -> bool {
        let lock = File::open(path).map(|folder| try_lock(&folder));
        matches!(lock, Ok(Err(std::fs::TryLockError::WouldBlock)))
    }

    /// Returns whether a folder has the model of a finished run.
    #[must_use]
    pub fn has_results(folder: &Path) -> bool {
        let names = [
            ronde_saved_model::WEIGHTS_FILE,
            ronde_saved_model::MANIFEST_FILE,
        ];
        names.iter().any(|name| folder.join(name).exists())
    }

    /// Returns whether the folder has the model or the checkpoints of an earlier run.
    #[must_use]
    pub fn has_run(&self) -> bool {
        Self::has_results(&self.path) || self.path.join("checkpoints").is_dir()
    }

    /// Sets the results of an earlier run aside: model, run file, events, numbers for other tools, checkpoints, flight
    /// records and logs. They return if the new run ends before it has committed a step, and are removed afterwards:
    /// pass the events of the run to [`OutputFolder::record`].
    ///
    /// # Errors
    /// A message that names the file that cannot be moved.
    pub fn replace_results(&self) -> Result<(), String> {
        let replaced = self.path.join(REPLACED_FOLDER);
        let failed = |action: &str, path: &Path, error: &std::io::Error| {
            Err(format!("cannot {action} {}: {error}", path.display()))
        };
        if let Err(error) = std::fs::create_dir_all(&replaced) {
            return failed("create", &replaced, &error);
        }
        let card = ronde_saved_model::is_card(&self.path.join(ronde_saved_model::CARD_FILE));
        let card = card.then_some(ronde_saved_model::CARD_FILE);
        for name in RESULTS.into_iter().chain(card) {
            match std::fs::rename(self.path.join(name), replaced.join(name)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    self.restore_results();
                    return failed("move", &self.path.join(name), &error);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the results that were set aside, on a separate thread, since large checkpoints take a while.
    pub fn remove_replaced_results(&self) {
        let removed = self.path.join(REMOVED_FOLDER);
        // Only complete results return, also if this process is killed while it removes them.
        if std::fs::rename(self.path.join(REPLACED_FOLDER), &removed).is_ok() {
            std::thread::spawn(move || std::fs::remove_dir_all(removed));
        }
    }

    /// Removes the remaining results.
    fn finish_removal(&self) {
        // Usually there is nothing.
        let _ = std::fs::remove_dir_all(self.path.join(REMOVED_FOLDER));
    }

    /// Returns the results that were set aside to their place, which has the results of a run that has committed nothing.
    fn restore_results(&self) {
        let replaced = self.path.join(REPLACED_FOLDER);
        let Ok(entries) = std::fs::read_dir(&replaced) else {
            return;
        };
        let of_run = RESULTS.map(|name| self.path.join(name));
        of_run.iter().for_each(|path| remove(path));
        for entry in entries.flatten() {
            let _ = std::fs::rename(entry.path(), self.path.join(entry.file_name()));
        }
        let _ = std::fs::remove_dir(&replaced);
    }

    /// Removes the files of a run that was refused, and the folder if this process has created it.
    fn remove_refused_run(&self) {
        if self.has_started.load(SeqCst) {
            return;
        }
        if self.was_empty {
            for name in RESULTS {
                remove(&self.path.join(name));
            }
        }
        self.created.remove_empty();
    }

    /// Keeps the folder also if no event is recorded here, because the run is written by other processes.
    pub(crate) fn keep(&self) {
        self.has_started.store(true, SeqCst);
    }

    /// Returns the absolute path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the temporary files of workers that were ended during a write.
    pub fn remove_temporary_files(&self) {
        for name in [
            ronde_saved_model::WEIGHTS_FILE,
            ronde_saved_model::MANIFEST_FILE,
            ronde_saved_model::TOKENIZER_FILE,
            ronde_saved_model::CARD_FILE,
            "run.toml",
        ] {
            // Usually there is none.
            let _ = std::fs::remove_file(ronde_saved_model::temporary(&self.path.join(name)));
        }
    }
}

/// Removes a file or a folder, if it exists.
fn remove(path: &Path) {
    let _ = match path.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
}

/// Takes the lock. Retries for a moment: a display holds a shared lock for microseconds while it looks whether a run has it.
fn try_lock(folder: &File) -> Result<(), std::fs::TryLockError> {
    for _ in 0..LOCK_RETRIES {
        match folder.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) => ronde_clock::pause(LOCK_PAUSE),
            locked => return locked,
        }
    }
    folder.try_lock()
}

impl Tracker for OutputFolder {
    fn record(&self, event: Event) {
        if !matches!(event, Event::AttemptStarted { .. }) {
            self.has_started.store(true, SeqCst);
        }
        if matches!(event, Event::StepCommitted { .. }) && !self.has_step.swap(true, SeqCst) {
            self.remove_replaced_results();
        }
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        self.restore_results();
        self.finish_removal();
        self.remove_temporary_files();
        self.remove_refused_run();
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::{Epoch, Generation, Step};

    use super::*;

    fn finished_run(folder: &Path) {
        std::fs::create_dir_all(folder.join("checkpoints")).unwrap();
        std::fs::write(folder.join(ronde_saved_model::WEIGHTS_FILE), "old").unwrap();
        std::fs::write(folder.join("checkpoints/one"), "old").unwrap();
        std::fs::write(folder.join("notes.txt"), "of the user").unwrap();
    }

    fn old_results(folder: &Path) -> bool {
        let is_old = |name: &str| std::fs::read(folder.join(name)).is_ok_and(|text| text == b"old");
        is_old(ronde_saved_model::WEIGHTS_FILE) && is_old("checkpoints/one")
    }

    #[test]
    fn replaced_results_return_unless_the_new_run_commits_a_step() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        finished_run(path);
        let begun = || {
            let folder = OutputFolder::lock(path).unwrap();
            folder.replace_results().unwrap();
            assert!(!folder.has_run());
            std::fs::create_dir(path.join("checkpoints")).unwrap();
            std::fs::write(path.join("events.jsonl"), "new").unwrap();
            folder
        };
        drop(begun());
        assert!(old_results(path));
        assert!(!path.join("events.jsonl").exists());
        let folder = begun();
        folder.record(Event::StepCommitted {
            step: Step(0),
            epoch: Epoch(0),
            generation: Generation(1),
            loss: 1.0,
            samples: 1,
            targets: 1,
            skipped: 0,
            learning_rate: 0.1,
            gradient_norm: 1.0,
            skipped_update: None,
            duration_s: 0.1,
        });
        drop(folder);
        assert!(!path.join(ronde_saved_model::WEIGHTS_FILE).exists());
        assert!(path.join("events.jsonl").exists());
        assert!(path.join("notes.txt").exists());
    }

    #[test]
    fn a_refused_run_leaves_nothing_and_a_failed_one_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("runs/digits");
        let lock = || {
            let folder = OutputFolder::lock(&path).unwrap();
            std::fs::write(path.join("run.toml"), "x").unwrap();
            std::fs::create_dir_all(path.join("logs")).unwrap();
            folder
        };
        drop(lock());
        assert!(!dir.path().join("runs").exists());
        std::fs::create_dir_all(&path).unwrap();
        drop(lock());
        let left = std::fs::read_dir(&path).unwrap().count();
        assert_eq!(left, 0, "a folder of the user stays");
        let failed = lock();
        failed.record(Event::Notice {
            rank: None,
            message: String::new(),
        });
        drop(failed);
        drop(lock());
        assert!(path.join("run.toml").exists() && path.join("logs").exists());
    }

    #[test]
    fn results_that_a_killed_run_has_set_aside_return() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        finished_run(&path.join(REPLACED_FOLDER));
        std::fs::write(path.join(ronde_saved_model::WEIGHTS_FILE), "new").unwrap();
        drop(OutputFolder::lock(path).unwrap());
        assert!(old_results(path));
        assert!(!path.join(REPLACED_FOLDER).exists());
    }
}
