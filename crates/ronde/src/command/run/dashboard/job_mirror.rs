//! [`JobMirror`]: the events of a job at an address, as the folder of a run that grows while the job is under way.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use ronde_cluster::{ClusterError, EventLines, Invitation, event_lines, status};
use tempfile::TempDir;

use crate::command::job::find;
use crate::command::run::run_folder::EVENT_FILE;

/// Time limit for an answer of the coordinator.
const LIMIT: Duration = Duration::from_secs(2);
/// Time between two requests when there are no more events.
const POLL: Duration = Duration::from_millis(500);
/// Time between two requests while there are.
const NEXT: Duration = Duration::from_millis(1);

/// A temporary folder with the events of a job, which a thread requests from its coordinator. While the coordinator answers, the
/// folder of the run inside it is locked like that of a run under way. Dropping it removes the folder.
pub(super) struct JobMirror {
    /// The thread ends without it, after its present request, which may wait for a coordinator that does not answer. It only
    /// appends to an open file, so the folder can be removed before.
    _stop: Sender<()>,
    folder: TempDir,
}

impl JobMirror {
    /// Connects to the coordinator at `HOST:PORT`.
    ///
    /// # Errors
    /// A message with a help line: the address or the token is not valid, no coordinator answers, or there is no room for the
    /// events.
    pub(super) fn start(address: &str, token_file: Option<&Path>) -> Result<Self, String> {
        let Some(token_file) = token_file else {
            return Err(
                "error: a coordinator's address requires the job's token\n  \
                 help: pass `--join-token-file FILE`; the token is in the file `token` of the job's folder"
                    .to_owned(),
            );
        };
        let invitation = Invitation {
            addresses: vec![find::address(address)?],
            token: find::read_token(token_file)?,
            folder: None,
        };
        let job = status(&invitation, LIMIT).map_err(|error| refused(address, &error))?;
        let first = event_lines(&invitation, 0, LIMIT).map_err(|error| refused(address, &error))?;
        let prepared = tempfile::Builder::new()
            .prefix("ronde-job-")
            .tempdir()
            .and_then(|folder| {
                let mut events = JobEvents::create(&folder.path().join(file_name(&job.job)))?;
                events.append(&first)?;
                let (stop, stopped) = mpsc::channel();
                std::thread::Builder::new()
                    .name("job-events".to_owned())
                    .spawn(move || events.follow(&invitation, &stopped))?;
                Ok(Self {
                    _stop: stop,
                    folder,
                })
            });
        prepared.map_err(|error| {
            format!(
                "error: cannot keep the events of the job in a temporary folder: {error}\n  \
                     help: set TMPDIR to a folder with free space"
            )
        })
    }

    /// Returns the folder that contains the folder of the run.
    pub(super) fn runs(&self) -> &Path {
        self.folder.path()
    }
}

/// Returns why a job cannot be shown.
fn refused(address: &str, error: &ClusterError) -> String {
    format!(
        "error: cannot show the job at {address}: {error}\n  \
         help: `ronde status FOLDER` on the host of the coordinator prints its address; the token is in the file `token` \
         of the job's folder"
    )
}

/// Returns a job's name as the name of a folder.
fn file_name(job: &str) -> String {
    let plain = |c: char| {
        if c.is_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    let name: String = job.chars().take(64).map(plain).collect();
    if name.is_empty() {
        "job".to_owned()
    } else {
        name
    }
}

/// The event file of a mirror.
struct JobEvents {
    folder: PathBuf,
    file: File,
    /// Number of bytes of the coordinator's file, and of this one, that are complete.
    whole: u64,
    lock: Option<File>,
}

impl JobEvents {
    fn create(folder: &Path) -> io::Result<Self> {
        std::fs::create_dir(folder)?;
        Ok(Self {
            folder: folder.to_owned(),
            file: File::create_new(folder.join(EVENT_FILE))?,
            whole: 0,
            lock: None,
        })
    }

    /// Copies the events until the sender of `stopped` is dropped.
    fn follow(mut self, invitation: &Invitation, stopped: &mpsc::Receiver<()>) {
        loop {
            let has_more = match event_lines(invitation, self.whole, LIMIT) {
                Ok(lines) => self.append(&lines).is_ok_and(|()| !lines.text.is_empty()),
                // The job is over, or another coordinator is about to lead.
                Err(_) => {
                    self.lock = None;
                    false
                }
            };
            let pause = if has_more { NEXT } else { POLL };
            if stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Appends lines and locks the folder. After an error, such as a full disk, the same lines are requested again.
    fn append(&mut self, lines: &EventLines) -> io::Result<()> {
        if let Err(error) = self.file.write_all(lines.text.as_bytes()) {
            self.file.set_len(self.whole)?;
            io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.whole))?;
            self.lock = None;
            return Err(error);
        }
        self.whole = lines.next;
        if self.lock.is_none() {
            let folder = File::open(&self.folder)?;
            folder.lock()?;
            self.lock = Some(folder);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_jobs_are_names_of_folders() {
        for (job, name) in [
            ("digits-3f", "digits-3f"),
            ("../up", "___up"),
            ("", "job"),
            (".", "_"),
            ("größe 1", "größe_1"),
        ] {
            assert_eq!(file_name(job), name);
        }
        assert_eq!(file_name(&"x".repeat(1_000)).len(), 64);
    }

    #[test]
    fn appended_lines_mark_the_folder_as_running() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("job");
        let mut events = JobEvents::create(&folder).unwrap();
        assert!(!ronde_tracking::is_running(&folder));
        for (text, next) in [("one\n", 4), ("two\n", 8)] {
            let text = text.to_owned();
            events.append(&EventLines { text, next }).unwrap();
        }
        assert!(ronde_tracking::is_running(&folder));
        let text = std::fs::read_to_string(folder.join(EVENT_FILE)).unwrap();
        assert_eq!((text.as_str(), events.whole), ("one\ntwo\n", 8));
        events.lock = None;
        assert!(!ronde_tracking::is_running(&folder));
    }
}
