//! [`ProcessFolder`]: a detached `ronde` command with its arguments, output, process and exit code, in one folder.
//!
//! The process holds a lock until it ends for any reason, and reserves the space for its exit code when it starts. So the state of
//! a job needs no daemon, and is right after SIGKILL, on a full disk and after a restart of the host.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::copying;
use crate::disk;
use crate::error::SubmitError;
use crate::process_identity::ProcessIdentity;
use crate::session;

const COMMAND_FILE: &str = "command.json";
const LOCK_FILE: &str = "lock";
const PROCESS_FILE: &str = "process.json";
const EXIT_FILE: &str = "exit.json";
const OUTPUT_FILE: &str = "output.log";
/// Bytes that are written at the start, so that the exit code and its reason can be written when the disk is full.
const EXIT_BYTES: usize = 4096;
/// The maximum length of a reason in characters, which has at most six times as many bytes as JSON.
const REASON_MAX: usize = 600;
/// Time limit for a process to lock its folder after its start.
const START_MAX: Duration = Duration::from_secs(30);
/// Interval at which a process looks whether its folder still exists.
const DELETED_EVERY: Duration = Duration::from_secs(1);
/// Time limit for a lock that a reader holds for microseconds.
const LOCK_MAX: Duration = Duration::from_secs(1);

/// A command of `ronde` and the folder in which it runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessCommand {
    /// The words after `ronde`.
    pub arguments: Vec<String>,
    /// Its working directory.
    pub directory: PathBuf,
}

/// The state of the process of a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// No process has been started, or it has not locked the folder yet.
    NotStarted,
    /// The process runs.
    Running {
        /// Its number.
        pid: u32,
        /// Why it cannot store its output.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        problem: Option<String>,
    },
    /// The process has ended by itself.
    Exited {
        /// Its exit code.
        code: i32,
        /// When it ended, in milliseconds since 1970.
        at_ms: u64,
        /// Its last error, if that is not in its output.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The process was killed, or its host was started again.
    Lost,
}

#[derive(Serialize, Deserialize)]
struct ExitRecord {
    code: i32,
    at_ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<ExitRecord> for ProcessState {
    fn from(record: ExitRecord) -> Self {
        Self::Exited {
            code: record.code,
            at_ms: record.at_ms,
            reason: record.reason,
        }
    }
}

/// The folder of a detached process. Only its owner may read it.
#[derive(Debug, Clone)]
pub struct ProcessFolder {
    path: PathBuf,
}

/// The lock of a folder, which its process holds until it ends for any reason.
#[derive(Debug)]
pub struct ProcessGuard {
    folder: ProcessFolder,
    exit: File,
    _lock: File,
}

impl ProcessFolder {
    /// Names the folder, which need not exist.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Returns the path of the file with the output of the process.
    #[must_use]
    pub fn output(&self) -> PathBuf {
        self.path.join(OUTPUT_FILE)
    }

    /// Creates the folder with the command of a process. The process of an earlier command is forgotten.
    ///
    /// # Errors
    /// The folder cannot be written, or its process runs.
    pub fn prepare(&self, command: &ProcessCommand) -> Result<(), SubmitError> {
        create_private(&self.path)?;
        if let ProcessState::Running { pid, .. } = self.state()? {
            return Err(SubmitError::invalid(
                format!("process {pid} of {} still runs", self.path.display()),
                "cancel the job first",
            ));
        }
        for file in [EXIT_FILE, PROCESS_FILE] {
            remove_if_exists(&self.path.join(file))?;
        }
        copying::publish_json(&self.path.join(COMMAND_FILE), command)
    }

    /// Returns the command.
    ///
    /// # Errors
    /// The command is missing or damaged.
    pub fn command(&self) -> Result<ProcessCommand, SubmitError> {
        let path = self.path.join(COMMAND_FILE);
        read_json(&path)?.ok_or_else(|| SubmitError::damaged(&path, "there is no such file"))
    }

    /// Starts the command as `program __job run FOLDER` in a separate session, with its output in the folder, and
    /// waits until it has locked the folder. It survives the end of this process and of the terminal.
    ///
    /// # Errors
    /// The program cannot be started, or ends before it has locked the folder.
    pub fn start(&self, program: &Path) -> Result<(), SubmitError> {
        self.start_within(program, START_MAX)
    }

    fn start_within(&self, program: &Path, limit: Duration) -> Result<(), SubmitError> {
        let path = self.output();
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&path);
        let output = output.map_err(SubmitError::file("write", &path))?;
        let also = output
            .try_clone()
            .map_err(SubmitError::file("write", &path))?;
        let failed = |problem: String| SubmitError::Program {
            program: program.display().to_string(),
            problem,
        };
        let mut child = Command::new(program)
            .args(["__job", "run"])
            .arg(&self.path)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(also)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let mut state = ProcessState::NotStarted;
        let mut ended = None;
        ronde_clock::wait_until(limit, || {
            ended = child.try_wait().ok().flatten();
            state = self.state().unwrap_or(ProcessState::NotStarted);
            state != ProcessState::NotStarted || ended.is_some()
        });
        match (state, ended) {
            (ProcessState::NotStarted, Some(status)) => {
                Err(failed(format!("{status}:\n{}", self.last_output())))
            }
            (ProcessState::NotStarted, None) => {
                // It may start later, and the caller removes the job, so it must not be left.
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(format!("it did not start within {limit:?}")))
            }
            _ => Ok(()),
        }
    }

    /// Makes this process the one of the folder: locks it and writes the identity of the process.
    ///
    /// # Errors
    /// Another process has locked the folder, or it cannot be written.
    pub fn enter(&self) -> Result<ProcessGuard, SubmitError> {
        create_private(&self.path)?;
        let path = self.path.join(LOCK_FILE);
        let lock = File::create(&path).map_err(SubmitError::file("write", &path))?;
        let is_locked = ronde_clock::wait_until(LOCK_MAX, || lock.try_lock().is_ok());
        if !is_locked {
            return Err(SubmitError::invalid(
                format!("another process has locked {}", self.path.display()),
                "cancel the job first",
            ));
        }
        remove_if_exists(&self.path.join(EXIT_FILE))?;
        let unfinished = self.path.join(format!("{EXIT_FILE}.unfinished"));
        let mut exit =
            File::create(&unfinished).map_err(SubmitError::file("write", &unfinished))?;
        exit.write_all(&[b' '; EXIT_BYTES])
            .map_err(SubmitError::file("write", &unfinished))?;
        let path = self.path.join(PROCESS_FILE);
        let identity =
            ProcessIdentity::of_this_process().map_err(SubmitError::file("write", &path))?;
        copying::publish_json(&path, &identity)?;
        Ok(ProcessGuard {
            folder: self.clone(),
            exit,
            _lock: lock,
        })
    }

    /// Returns the state of the process. Costs a few system calls.
    ///
    /// # Errors
    /// A file cannot be read or is damaged.
    pub fn state(&self) -> Result<ProcessState, SubmitError> {
        let exit = || read_json::<ExitRecord>(&self.path.join(EXIT_FILE));
        if let Some(record) = exit()? {
            return Ok(record.into());
        }
        let Some(process) = self.process()? else {
            return Ok(ProcessState::NotStarted);
        };
        if self.is_locked()? {
            return Ok(ProcessState::Running {
                pid: process.pid,
                problem: disk::problem(&self.path),
            });
        }
        // It may have ended between the two looks.
        Ok(exit()?.map_or(ProcessState::Lost, ProcessState::from))
    }

    /// Waits until the folder of this process is deleted, and then ends this process and its session: a job without a folder
    /// cannot keep its results, and no command finds it. Never returns otherwise.
    pub fn end_when_deleted(&self) {
        let Ok(process) = ProcessIdentity::of_this_process() else {
            return;
        };
        let path = self.path.join(PROCESS_FILE);
        let is_deleted = || {
            let found = std::fs::symlink_metadata(&path);
            found.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
        };
        loop {
            ronde_clock::pause(DELETED_EVERY);
            if is_deleted() {
                session::end_own(&process);
            }
        }
    }

    /// Returns whether a process of this folder was started since it was prepared.
    #[must_use]
    pub(crate) fn was_started(&self) -> bool {
        self.path.join(PROCESS_FILE).exists()
    }

    /// Returns whether the process does not run, also if that is unknown.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !matches!(self.state(), Ok(ProcessState::Running { .. }))
    }

    /// Ends the process: with SIGTERM, and after `grace` with SIGKILL, together with every process of its session.
    /// Returns whether nothing is left.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn stop(&self, grace: Duration) -> Result<bool, SubmitError> {
        let Some(process) = self.process()? else {
            return Ok(true);
        };
        if !grace.is_zero() && self.is_locked()? {
            session::signal(&process, Signal::TERM);
            ronde_clock::wait_until(grace, || !matches!(self.is_locked(), Ok(true)));
        }
        Ok(session::kill(&process) == 0)
    }

    /// Removes the lock of a process that is lost, which its file system may keep. The next process makes a new one.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(crate) fn replace_lock(&self) -> Result<(), SubmitError> {
        remove_if_exists(&self.path.join(LOCK_FILE))
    }

    /// Writes the end of a process that is lost and cannot write it, unless there is one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn record_end(&self, code: i32, reason: &str) -> Result<(), SubmitError> {
        let record = ExitRecord {
            code,
            at_ms: ronde_clock::unix_ms(),
            reason: Some(reason.chars().take(REASON_MAX).collect()),
        };
        copying::publish_new_json(&self.path.join(EXIT_FILE), &record).map(|_| ())
    }

    /// Returns the last lines of the output, for a message.
    #[must_use]
    pub fn last_output(&self) -> String {
        copying::last_lines(&self.output())
    }

    fn process(&self) -> Result<Option<ProcessIdentity>, SubmitError> {
        read_json(&self.path.join(PROCESS_FILE))
    }

    /// The system releases the lock at the end of the process, also after SIGKILL and a restart of the host.
    fn is_locked(&self) -> Result<bool, SubmitError> {
        let path = self.path.join(LOCK_FILE);
        let locked = File::open(&path).and_then(|file| match file.try_lock_shared() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error),
        });
        match locked {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            locked => locked.map_err(SubmitError::file("read", &path)),
        }
    }
}

impl ProcessGuard {
    /// Writes the exit code of the process, which ends now, and the error that has ended it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, code: i32, reason: Option<String>) -> Result<(), SubmitError> {
        let path = self.folder.path.join(EXIT_FILE);
        let unfinished = self.folder.path.join(format!("{EXIT_FILE}.unfinished"));
        let record = ExitRecord {
            code,
            at_ms: ronde_clock::unix_ms(),
            reason: reason.map(|reason| reason.chars().take(REASON_MAX).collect()),
        };
        let text = serde_json::to_string(&record).unwrap_or_default();
        let mut write = || {
            self.exit.seek(SeekFrom::Start(0))?;
            self.exit.write_all(text.as_bytes())?;
            std::fs::rename(&unfinished, &path)
        };
        write().map_err(SubmitError::file("write", &path))
    }
}

/// Creates a folder that only its owner may read, with its parents.
pub(crate) fn create_private(path: &Path) -> Result<(), SubmitError> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(path);
    created.map_err(SubmitError::file("create", path))
}

/// Removes a file that may not exist.
pub(crate) fn remove_if_exists(path: &Path) -> Result<(), SubmitError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(SubmitError::file("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// Reads a file of JSON; `None` if it does not exist.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, SubmitError> {
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(SubmitError::file("read", path))?,
    };
    let value = serde_json::from_slice(&text).map_err(|error| SubmitError::damaged(path, error))?;
    Ok(Some(value))
}

#[cfg(test)]
mod tests;
