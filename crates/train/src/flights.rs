//! [`Flights`]: where the flight records of a worker's groups are written, at a failure or on demand.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use ronde_comm::{FailureHook, GroupConfig, ProcessGroup};

/// The flight records of one worker: of the group that it is in, whichever generation that is.
#[derive(Debug, Default)]
pub struct Flights {
    folder: OnceLock<PathBuf>,
    group: Mutex<Weak<ProcessGroup>>,
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
        config.on_failure = self.folder.get().map(FailureHook::write_into);
    }

    /// The group that [`Flights::write`] is about.
    pub fn watch(&self, group: &Arc<ProcessGroup>) {
        *self.group.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(group);
    }

    /// Writes the record of the present group, from any thread; its operations go on. Returns the file;
    /// `None` when there is no group or no folder yet.
    ///
    /// # Errors
    /// The folder does not take it.
    pub fn write(&self) -> io::Result<Option<PathBuf>> {
        let group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        let group = group.upgrade();
        match (self.folder.get(), group) {
            (Some(folder), Some(group)) => group.flight_record().write_into(folder).map(Some),
            _ => Ok(None),
        }
    }
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
