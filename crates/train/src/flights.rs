//! [`Flights`]: where the flight records of a worker's groups are written, at a failure or on demand.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use ronde_comm::{FailureHook, GroupConfig, ProcessGroup};

/// The flight records of one worker: of the group that it is in, whichever generation that is.
#[derive(Debug, Default)]
pub struct Flights {
    folder: OnceLock<PathBuf>,
    group: Mutex<Weak<ProcessGroup>>,
    /// Held while a record is written; true once nothing more may be.
    is_closed: Arc<Mutex<bool>>,
}

impl Flights {
    /// Name of the folder beside the results of a run.
    pub const FOLDER: &str = "flight";

    /// Records go into `folder` from now on; a second call changes nothing.
    pub fn go_to(&self, folder: PathBuf) {
        self.folder.get_or_init(|| folder);
    }

    /// The group will write its record when it fails.
    pub fn prepare(&self, config: &mut GroupConfig) {
        config.on_failure = self.folder.get().cloned().map(|folder| {
            let is_closed = Arc::clone(&self.is_closed);
            FailureHook::new(move |record, _| {
                if !*lock(&is_closed) {
                    // The failure itself is what people have to hear of.
                    drop(record.write_into(&folder));
                }
            })
        });
    }

    /// The group that [`Flights::write`] is about.
    pub fn watch(&self, group: &Arc<ProcessGroup>) {
        *lock(&self.group) = Arc::downgrade(group);
    }

    /// Writes the record of the present group, from any thread; its operations go on. Returns the file;
    /// `None` when there is no group or no folder yet.
    ///
    /// # Errors
    /// The folder does not take it.
    pub fn write(&self) -> io::Result<Option<PathBuf>> {
        self.write_now(false)
    }

    /// The same as the last record of this process, which ends now.
    ///
    /// # Errors
    /// The folder does not take it.
    pub fn write_last(&self) -> io::Result<Option<PathBuf>> {
        self.write_now(true)
    }

    fn write_now(&self, is_last: bool) -> io::Result<Option<PathBuf>> {
        let group = lock(&self.group).upgrade();
        let record = group.map(|group| group.flight_record());
        let mut is_closed = lock(&self.is_closed);
        let was_closed = *is_closed;
        *is_closed |= is_last;
        match (self.folder.get(), record) {
            (Some(folder), Some(record)) if !was_closed => record.write_into(folder).map(Some),
            _ => Ok(None),
        }
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
    fn a_record_is_written_of_the_group_that_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let flights = Flights::default();
        let mut config = GroupConfig::new("dp", "job", GroupRank(0));
        flights.prepare(&mut config);
        assert!(config.on_failure.is_none());
        flights.go_to(directory.path().join(Flights::FOLDER));
        flights.prepare(&mut config);
        assert!(config.on_failure.is_some());
        assert_eq!(flights.write().unwrap(), None);
        let group = Arc::new(ProcessGroup::alone(config));
        flights.watch(&group);
        group.barrier().unwrap();
        let path = flights.write().unwrap().unwrap();
        let records = FlightRecord::read_all(path.parent().unwrap()).unwrap();
        assert_eq!((records.len(), records[0].group.as_str()), (1, "dp"));
        drop(group);
        assert_eq!(flights.write().unwrap(), None);
    }
}
