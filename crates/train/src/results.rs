//! Results of a run in object storage: sent while the run is under way ([`ResultsUpload`]), and read from another machine
//! ([`StoredResults`]).

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ronde_store::{Address, ObjectEntry, ObjectName, RemoteSettings, Store, StoreError, StoreExt};
use serde::{Deserialize, Serialize};

mod due;
mod stored_log;
mod upload;

pub use stored_log::StoredLog;
pub use upload::{ResultsUpload, UploadSource};

/// The folder of checkpoints below the address, which the workers write themselves.
const CHECKPOINTS: &str = "checkpoints";
/// The folder of an open job, which has its secrets.
const JOB: &str = "job";
/// The folder of the output of the ranks.
const LOGS: &str = "logs";
/// The files with the events of a run.
const EVENT_FILES: [&str; 2] = ["events.jsonl", "events.1.jsonl"];
/// Files and folders of a run besides its checkpoints, which a run that replaces it removes.
const RESULTS: [&str; 16] = [
    END_FILE,
    ronde_saved_model::WEIGHTS_FILE,
    ronde_saved_model::MANIFEST_FILE,
    ronde_saved_model::TOKENIZER_FILE,
    ronde_saved_model::CARD_FILE,
    "run.toml",
    EVENT_FILES[0],
    EVENT_FILES[1],
    "metrics.csv",
    "evaluations.csv",
    "loss.svg",
    LOGS,
    "flight",
    "mlflow",
    "tensorboard",
    "trace",
];
/// The note that the launcher of the run has ended.
const END_FILE: &str = "ended.json";
/// The files with the numbers of a run, which a run that resumes continues.
const NUMBER_FILES: [&str; 2] = ["metrics.csv", "evaluations.csv"];
/// The largest such note in bytes.
const END_BYTES_MAX: u64 = 4096;
/// Bytes that are copied at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The results of a run at an address.
#[derive(Debug, Clone)]
pub struct StoredResults {
    address: Address,
    store: Arc<dyn Store>,
}

impl StoredResults {
    /// Opens an address. Costs one request.
    ///
    /// # Errors
    /// The address or the settings are not valid, or the store cannot be reached.
    pub fn open(address: &Address, settings: &RemoteSettings) -> Result<Self, StoreError> {
        Ok(Self {
            address: address.clone(),
            store: ronde_store::open(address, settings)?,
        })
    }

    /// Returns the address.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns whether there is the model of a finished run. Costs one request.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn has_model(&self) -> Result<bool, StoreError> {
        match self
            .store
            .open(&ObjectName::new(ronde_saved_model::MANIFEST_FILE)?)
        {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether there is a checkpoint, complete or not. Costs one listing.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn has_checkpoint(&self) -> Result<bool, StoreError> {
        let folder = ObjectName::new(CHECKPOINTS)?;
        let listed = self.store.list(Some(&folder))?;
        Ok(listed
            .iter()
            .any(|entry| entry.name.last() == "manifest.json"))
    }

    /// Removes the results of an earlier run, except its checkpoints.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn remove(&self) -> Result<(), StoreError> {
        for entry in self.store.list(None)? {
            let first = entry.name.as_str().split('/').next();
            if first.is_some_and(|first| RESULTS.contains(&first)) {
                self.store.delete(&entry.name)?;
            }
        }
        Ok(())
    }

    /// Copies the events and the numbers of an earlier attempt to the folder of a run that has none, so that the run continues
    /// them.
    ///
    /// # Errors
    /// Errors of the store, or the folder cannot be written.
    pub fn restore_events(&self, folder: &Path) -> Result<(), StoreError> {
        if EVENT_FILES.iter().any(|name| folder.join(name).exists()) {
            return Ok(());
        }
        for name in EVENT_FILES.into_iter().chain(NUMBER_FILES) {
            let object = ObjectName::new(name)?;
            let path = folder.join(name);
            match self.copy_object(&object, &path) {
                Err(error) if error.is_not_found() => {}
                copied => copied?,
            }
        }
        Ok(())
    }

    /// Copies everything to a folder, and returns the number of files. An object that is replaced meanwhile is read again.
    ///
    /// # Errors
    /// Errors of the store, or the folder cannot be written.
    pub fn copy_to(&self, folder: &Path) -> Result<u64, StoreError> {
        let mut copied = 0;
        for entry in self.store.list(None)? {
            match self.copy_object(&entry.name, &folder.join(entry.name.as_str())) {
                // A run that is under way removes old checkpoints.
                Err(error) if error.is_not_found() => {}
                result => {
                    result?;
                    copied += 1;
                }
            }
        }
        Ok(copied)
    }

    /// Returns a reader of the output of a rank.
    #[must_use]
    pub fn rank_log(&self, rank: u32) -> StoredLog {
        let names = [format!("rank-{rank}.1.log"), format!("rank-{rank}.log")];
        let [rotated, current] = names.map(|name| format!("{LOGS}/{name}"));
        StoredLog::new(Arc::clone(&self.store), rotated, current)
    }

    /// Returns a reader of the lines of the events.
    #[must_use]
    pub fn event_log(&self) -> StoredLog {
        let [current, rotated] = EVENT_FILES.map(str::to_owned);
        StoredLog::new(Arc::clone(&self.store), rotated, current)
    }

    /// Returns whether the run has begun. Costs one request.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn has_events(&self) -> Result<bool, StoreError> {
        match self.store.open(&ObjectName::new(EVENT_FILES[0])?) {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns how the launcher of the run ended; `None` if it has not, or was killed. Costs one request.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn ended(&self) -> Result<Option<StoredEnd>, StoreError> {
        match self.store.get(&ObjectName::new(END_FILE)?, END_BYTES_MAX) {
            Err(error) if error.is_not_found() => Ok(None),
            // A damaged note is one of an end, too.
            found => Ok(Some(serde_json::from_slice(&found?).unwrap_or_default())),
        }
    }

    fn put_end(&self, exit_code: Option<i32>) -> Result<(), StoreError> {
        let end = StoredEnd { exit_code };
        let text = serde_json::to_vec(&end).unwrap_or_default();
        self.store.put(&ObjectName::new(END_FILE)?, &text)
    }

    fn remove_end(&self) -> Result<(), StoreError> {
        self.store.delete(&ObjectName::new(END_FILE)?)
    }

    fn copy_object(&self, name: &ObjectName, path: &Path) -> Result<(), StoreError> {
        let mut conflicts = 0;
        loop {
            match self.copy_once(name, path) {
                Err(error) if error.is_conflict() && conflicts < 5 => conflicts += 1,
                copied => return copied,
            }
        }
    }

    fn copy_once(&self, name: &ObjectName, path: &Path) -> Result<(), StoreError> {
        let object = self.store.open(name)?;
        let failed = |cause: std::io::Error| StoreError::Settings {
            operation: "write",
            location: path.display().to_string(),
            cause: cause.to_string(),
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        let unfinished = ronde_saved_model::temporary(path);
        let mut file = std::fs::File::create(&unfinished).map_err(failed)?;
        let (mut start, length) = (0, object.bytes());
        let mut chunk = vec![0; CHUNK_BYTES];
        while start < length {
            let bytes = usize::try_from(length - start)
                .unwrap_or(CHUNK_BYTES)
                .min(CHUNK_BYTES);
            object.read_at(start, &mut chunk[..bytes])?;
            file.write_all(&chunk[..bytes]).map_err(failed)?;
            start += bytes as u64;
        }
        std::fs::rename(&unfinished, path).map_err(failed)
    }

    /// Returns the names and sizes of all objects.
    ///
    /// # Errors
    /// Errors of the store.
    pub fn list(&self) -> Result<Vec<ObjectEntry>, StoreError> {
        self.store.list(None)
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }
}

/// The note that the launcher of a run has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StoredEnd {
    /// The exit code of the launcher; `None` if the program that trained is another one.
    pub exit_code: Option<i32>,
}

/// A file to send: its path, and its name below the address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LocalFile {
    path: PathBuf,
    name: String,
    bytes: u64,
    /// When it was changed, in nanoseconds since 1970.
    modified: u128,
}
