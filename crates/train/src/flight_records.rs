//! [`FlightRecordWriter`]: writes the flight records of a worker's groups after a failure or on demand.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ronde_comm::{FailureHook, GroupConfig, ProcessGroup};

/// The writer of one worker's flight records. It follows the worker's group through all generations.
#[derive(Debug, Default)]
pub struct FlightRecordWriter {
    folder: OnceLock<PathBuf>,
    group: Mutex<Weak<ProcessGroup>>,
    /// Locked while a record is written; true after the last record.
    is_closed: Arc<Mutex<bool>>,
}

impl FlightRecordWriter {
    /// The name of the folder for flight records, inside the run's folder.
    pub const FOLDER: &str = "flight";

    /// Sets the folder for records; a second call has no effect.
    pub fn set_folder(&self, folder: PathBuf) {
        self.folder.get_or_init(|| folder);
    }

    /// Configures a group to write its record when it fails.
    pub fn prepare(&self, config: &mut GroupConfig) {
        config.on_failure = self.folder.get().cloned().map(|folder| {
            let is_closed = Arc::clone(&self.is_closed);
            FailureHook::new(move |record, _| {
                if !*lock(&is_closed) {
                    // The failure itself is the error to report, not that of writing the record.
                    drop(record.write_into(&folder));
                }
            })
        });
    }

    /// Sets the group whose record [`FlightRecordWriter::write`] writes.
    pub fn watch(&self, group: &Arc<ProcessGroup>) {
        *lock(&self.group) = Arc::downgrade(group);
    }

    /// Returns the current group, unless it was dropped.
    pub(crate) fn group(&self) -> Option<Arc<ProcessGroup>> {
        lock(&self.group).upgrade()
    }

    /// Writes the records of the current group and of its sub-groups, from any thread, without disturbing their operations. Returns
    /// the file of the group; `None` without a group or a folder.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> io::Result<Option<PathBuf>> {
        self.write_now(false)
    }

    /// Writes the last record of this process before it exits.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_last(&self) -> io::Result<Option<PathBuf>> {
        self.write_now(true)
    }

    fn write_now(&self, is_last: bool) -> io::Result<Option<PathBuf>> {
        let records = self.group().map(|group| group.flight_records());
        let mut is_closed = lock(&self.is_closed);
        let was_closed = *is_closed;
        *is_closed |= is_last;
        let (Some(folder), Some(records)) = (self.folder.get(), records) else {
            return Ok(None);
        };
        if was_closed {
            return Ok(None);
        }
        let mut written = None;
        for record in records {
            let path = record.write_into(folder)?;
            written.get_or_insert(path);
        }
        Ok(written)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use ronde_comm::FlightRecord;
    use ronde_core::{CollectivesExt, GroupRank};

    use super::*;

    #[test]
    fn the_record_of_the_current_group_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let flight_records = FlightRecordWriter::default();
        let mut config = GroupConfig::new("dp", "job", GroupRank(0));
        flight_records.prepare(&mut config);
        assert!(config.on_failure.is_none());
        flight_records.set_folder(directory.path().join(FlightRecordWriter::FOLDER));
        flight_records.prepare(&mut config);
        assert!(config.on_failure.is_some());
        assert_eq!(flight_records.write().unwrap(), None);
        let group = Arc::new(ProcessGroup::alone(config));
        flight_records.watch(&group);
        group.barrier().unwrap();
        let path = flight_records.write().unwrap().unwrap();
        let records = FlightRecord::read_all(path.parent().unwrap()).unwrap();
        assert_eq!((records.len(), records[0].group.as_str()), (1, "dp"));
        drop(group);
        assert_eq!(flight_records.write().unwrap(), None);
    }
}
