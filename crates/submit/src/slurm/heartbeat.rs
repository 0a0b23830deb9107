//! The heartbeats of a job's launcher and agents: numbers in files of the job's folder that change while the processes run. A lock is
//! not enough: some file systems keep the lock of a node that has lost its power, and others have no locks between nodes.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::allocation::DRAINED_CODE;
use crate::error::SubmitError;
use crate::job_paths::JobPaths;
use crate::process_folder::{ProcessState, remove_if_exists};

/// The file with the number of the launcher.
const HEARTBEAT_FILE: &str = "heartbeat";
/// The beginning of the names of those of the agents, before the node.
const AGENT_PREFIX: &str = "heartbeat-";
/// The exit codes of agents that are not missed: the run is over, they cannot work on their node, or the node is drained.
pub(super) const LAST_CODES: [i32; 3] = [0, 2, DRAINED_CODE];
/// Interval between two changes of the number, and between two looks at it.
pub(super) const BEAT_EVERY: Duration = Duration::from_millis(500);
/// The age of the last change at which a launcher may be lost.
const SUSPECT_AFTER: Duration = Duration::from_secs(10);
/// How long the number of a suspected launcher is watched.
const CONFIRM_WITHIN: Duration = Duration::from_millis(1500);

/// Starts to write the heartbeat of the launcher until this process ends.
///
/// # Errors
/// The file cannot be written.
pub(super) fn start(folder: &Path) -> Result<(), SubmitError> {
    start_at(folder.join(HEARTBEAT_FILE), Arc::default())
}

/// The heartbeat of an agent; ends when it is dropped. Its file is then removed, unless the agent is missed.
#[derive(Debug)]
pub struct AgentHeartbeat {
    path: PathBuf,
    has_ended: Arc<Mutex<bool>>,
    is_missed: bool,
}

impl AgentHeartbeat {
    /// Starts to write the heartbeat of the agent on a node.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn start(folder: &Path, node: &str) -> Result<Self, SubmitError> {
        let started = Self {
            path: folder.join(format!("{AGENT_PREFIX}{node}")),
            has_ended: Arc::default(),
            is_missed: false,
        };
        start_at(started.path.clone(), Arc::clone(&started.has_ended))?;
        Ok(started)
    }

    /// Ends the heartbeat of an agent with its exit code. One that has lost its launcher is missed.
    pub fn end(mut self, code: i32) {
        self.is_missed = !LAST_CODES.contains(&code);
    }

    /// Returns whether the agent on a node that has ended is missed: it did not end because of the run, its node or its arguments.
    pub(super) fn is_missed(folder: &Path, node: &str) -> bool {
        folder.join(format!("{AGENT_PREFIX}{node}")).exists()
    }
}

impl Drop for AgentHeartbeat {
    fn drop(&mut self) {
        *lock(&self.has_ended) = true;
        if !self.is_missed {
            // The folder may be gone.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn lock(has_ended: &Mutex<bool>) -> MutexGuard<'_, bool> {
    has_ended.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the heartbeats of the agents of an earlier allocation.
pub(super) fn remove_of_agents(folder: &Path) -> Result<(), SubmitError> {
    of_agents(folder)
        .iter()
        .try_for_each(|(_, path)| remove_if_exists(path))
}

/// Returns the nodes of the agents that have a heartbeat, and its file.
fn of_agents(folder: &Path) -> Vec<(String, PathBuf)> {
    let listed = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<(String, PathBuf)> = listed
        .filter_map(|entry| {
            let name = entry.file_name();
            let node = name.to_str()?.strip_prefix(AGENT_PREFIX)?.to_owned();
            Some((node, entry.path()))
        })
        .collect();
    found.sort();
    found
}

fn start_at(path: PathBuf, has_ended: Arc<Mutex<bool>>) -> Result<(), SubmitError> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = file.map_err(SubmitError::file("write", &path))?;
    // An earlier process may have ended at any number.
    let first = ronde_clock::unix_ms();
    write(&file, first).map_err(SubmitError::file("write", &path))?;
    std::thread::spawn(move || {
        for beat in first.saturating_add(1).. {
            ronde_clock::pause(BEAT_EVERY);
            let has_ended = lock(&has_ended);
            if *has_ended {
                return;
            }
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
    /// Begins with the heartbeat of the launcher.
    pub(super) fn new(folder: &Path) -> Self {
        Self::of(folder.join(HEARTBEAT_FILE))
    }

    fn of(path: PathBuf) -> Self {
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

/// The processes of a job that have been started and do not respond.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SilentProcesses {
    /// How long the launcher has been silent.
    pub(super) launcher: Option<Duration>,
    /// The nodes of the silent agents, each with that time. Only of a job whose launcher responds.
    pub(super) agents: Vec<(String, Duration)>,
}

/// Returns the silent processes of each job.
pub(super) fn silences(jobs: &[&JobPaths]) -> Vec<SilentProcesses> {
    let mut launchers: Vec<_> = jobs.iter().map(|paths| suspect(paths)).collect();
    let mut agents: Vec<_> = jobs.iter().map(|paths| suspected_agents(paths)).collect();
    if launchers.iter().any(Option::is_some) || agents.iter().any(|of_job| !of_job.is_empty()) {
        // The clocks of hosts may differ, so only a number that does not change counts.
        ronde_clock::wait_until_every(CONFIRM_WITHIN, BEAT_EVERY / 5, || {
            for suspect in &mut launchers {
                suspect.take_if(|(reader, _)| reader.look() == 0);
            }
            for of_job in &mut agents {
                of_job.retain_mut(|(_, reader, _)| reader.look() > 0);
            }
            launchers.iter().all(Option::is_none) && agents.iter().all(Vec::is_empty)
        });
    }
    let found = launchers.into_iter().zip(agents);
    found
        .map(|(launcher, agents)| {
            let agents = agents.into_iter().map(|(node, _, silence)| (node, silence));
            SilentProcesses {
                agents: match launcher {
                    Some(_) => Vec::new(),
                    None => agents.collect(),
                },
                launcher: launcher.map(|(_, silence)| silence),
            }
        })
        .collect()
}

/// Returns the agents that may be lost, with readers, while the launcher leads them.
fn suspected_agents(paths: &JobPaths) -> Vec<(String, HeartbeatReader, Duration)> {
    if !matches!(paths.process(0).state(), Ok(ProcessState::Running { .. })) {
        return Vec::new();
    }
    let found = of_agents(paths.folder()).into_iter();
    let aged = found.filter_map(|(node, path)| {
        let silence = age(&path)?;
        (silence >= SUSPECT_AFTER).then(|| (node, HeartbeatReader::of(path), silence))
    });
    aged.collect()
}

/// Returns the time since the last change of a file.
fn age(path: &Path) -> Option<Duration> {
    let modified = std::fs::metadata(path).and_then(|file| file.modified());
    let age = ronde_clock::date().duration_since(modified.ok()?);
    Some(age.unwrap_or_default())
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
    let silence = age(&paths.folder().join(HEARTBEAT_FILE))?;
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
        let silences = |paths: &JobPaths| silences(&[paths]).remove(0);
        let none = SilentProcesses::default;
        assert_eq!(silences(&paths), none(), "it was not started");
        let guard = paths.process(0).enter().unwrap();
        assert_eq!(silences(&paths), none(), "its heartbeat is new");
        let earlier = ronde_clock::date() - 2 * SUSPECT_AFTER;
        file.set_modified(earlier).unwrap();
        let silence = silences(&paths).launcher.unwrap();
        assert!(silence >= 2 * SUSPECT_AFTER, "{silence:?}");
        // As one whose host has another clock.
        start(dir.path()).unwrap();
        file.set_modified(earlier).unwrap();
        assert_eq!(silences(&paths), none(), "its heartbeat changes");
        let agent = AgentHeartbeat::start(dir.path(), "n2").unwrap();
        let of_lost = dir.path().join("heartbeat-n3");
        let lost = File::create(&of_lost).unwrap();
        lost.set_modified(earlier).unwrap();
        let found = silences(&paths);
        assert_eq!(found.launcher, None);
        let nodes: Vec<&str> = found.agents.iter().map(|(node, _)| node.as_str()).collect();
        assert_eq!(nodes, ["n3"]);
        drop(agent);
        remove_of_agents(dir.path()).unwrap();
        assert_eq!(of_agents(dir.path()), []);
        guard.finish(0, None).unwrap();
        assert_eq!(silences(&paths), none(), "it has ended");
    }
}
