//! The heartbeat of a job's launcher: a number in a file of the job's folder that changes while the launcher runs. A lock is
//! not enough: some file systems keep the lock of a node that has lost its power, and others have no locks between nodes.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::clock;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::process_folder::ProcessState;

/// The file with the number.
const HEARTBEAT_FILE: &str = "heartbeat";
/// Interval between two changes of the number, and between two looks at it.
pub(super) const BEAT_EVERY: Duration = Duration::from_millis(500);
/// The age of the last change at which a launcher may be lost.
const SUSPECT_AFTER: Duration = Duration::from_secs(10);
/// How long the number of a suspected launcher is watched.
const CONFIRM_WITHIN: Duration = Duration::from_millis(1500);

/// Starts to write the heartbeat until this process ends.
///
/// # Errors
/// The file cannot be written.
pub(super) fn start(folder: &Path) -> Result<(), SubmitError> {
    let path = folder.join(HEARTBEAT_FILE);
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = file.map_err(SubmitError::file("write", &path))?;
    // An earlier launcher may have ended at any number.
    let first = clock::unix_ms();
    write(&file, first).map_err(SubmitError::file("write", &path))?;
    std::thread::spawn(move || {
        for beat in first.saturating_add(1).. {
            clock::pause(BEAT_EVERY);
            // Opened again, so that the file system sends it to the server. The next beat may succeed where this one fails.
            let file = OpenOptions::new().write(true).open(&path);
            let _ = file.and_then(|file| write(&file, beat));
        }
    });
    Ok(())
}

/// Overwrites the number in place, which needs no space of a full disk.
fn write(file: &File, beat: u64) -> std::io::Result<()> {
    file.write_all_at(format!("{beat:020}\n").as_bytes(), 0)
}

/// A look at the heartbeat in each interval. Counts looks, so that a pause of this process is not one of the launcher.
pub(super) struct HeartbeatReader {
    path: PathBuf,
    last: Option<Vec<u8>>,
    unchanged: u32,
}

impl HeartbeatReader {
    pub(super) fn new(folder: &Path) -> Self {
        let path = folder.join(HEARTBEAT_FILE);
        Self {
            last: std::fs::read(&path).ok(),
            path,
            unchanged: 0,
        }
    }

    /// Returns how many looks in a row have found the same number. A folder that cannot be read proves nothing.
    pub(super) fn look(&mut self) -> u32 {
        let found = match std::fs::read(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        };
        match found {
            Ok(found) if found == self.last => self.unchanged = self.unchanged.saturating_add(1),
            Ok(found) => (self.last, self.unchanged) = (found, 0),
            Err(_) => self.unchanged = 0,
        }
        self.unchanged
    }
}

/// Returns for each job whose launcher has been started and does not respond how long it has been silent.
pub(super) fn silences(jobs: &[&JobPaths]) -> Vec<Option<Duration>> {
    let mut suspects: Vec<_> = jobs.iter().map(|paths| suspect(paths)).collect();
    if suspects.iter().any(Option::is_some) {
        // The clocks of hosts may differ, so only a number that does not change counts.
        clock::wait_until_every(CONFIRM_WITHIN, BEAT_EVERY / 5, || {
            for suspect in &mut suspects {
                suspect.take_if(|(reader, _)| reader.look() == 0);
            }
            suspects.iter().all(Option::is_none)
        });
    }
    let silences = suspects.into_iter();
    silences
        .map(|suspect| suspect.map(|(_, silence)| silence))
        .collect()
}

/// Returns whether the launcher of a job may be lost, without watching it.
pub(super) fn may_be_silent(paths: &JobPaths) -> bool {
    suspect(paths).is_some()
}

/// Returns a reader for a launcher that may be lost: its last heartbeat is old, or its lock is free.
fn suspect(paths: &JobPaths) -> Option<(HeartbeatReader, Duration)> {
    let is_unlocked = match paths.process(0).state() {
        Ok(ProcessState::Running { .. }) | Err(_) => false,
        Ok(ProcessState::Lost) => true,
        Ok(ProcessState::NotStarted | ProcessState::Exited { .. }) => return None,
    };
    let modified =
        std::fs::metadata(paths.folder().join(HEARTBEAT_FILE)).and_then(|file| file.modified());
    let silence = SystemTime::now()
        .duration_since(modified.ok()?)
        .unwrap_or_default();
    (is_unlocked || silence >= SUSPECT_AFTER)
        .then(|| (HeartbeatReader::new(paths.folder()), silence))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_folder::ProcessCommand;

    #[test]
    fn a_launcher_without_a_heartbeat_is_silent() {
        let dir = tempfile::tempdir().unwrap();
        let paths = JobPaths::new(dir.path());
        let mut reader = HeartbeatReader::new(dir.path());
        assert_eq!((reader.look(), reader.look()), (1, 2));
        let command = ProcessCommand {
            arguments: Vec::new(),
            directory: dir.path().to_owned(),
        };
        paths.process(0).prepare(&command).unwrap();
        let file = File::create(dir.path().join(HEARTBEAT_FILE)).unwrap();
        write(&file, 7).unwrap();
        assert_eq!(reader.look(), 0);
        assert_eq!(silences(&[&paths]), [None], "it was not started");
        let guard = paths.process(0).enter().unwrap();
        assert_eq!(silences(&[&paths]), [None], "its heartbeat is new");
        let earlier = SystemTime::now() - 2 * SUSPECT_AFTER;
        file.set_modified(earlier).unwrap();
        let silence = silences(&[&paths])[0].unwrap();
        assert!(silence >= 2 * SUSPECT_AFTER, "{silence:?}");
        // As one whose host has another clock.
        start(dir.path()).unwrap();
        file.set_modified(earlier).unwrap();
        assert_eq!(silences(&[&paths]), [None], "its heartbeat changes");
        guard.finish(0, None).unwrap();
        assert_eq!(silences(&[&paths]), [None], "it has ended");
    }
}
