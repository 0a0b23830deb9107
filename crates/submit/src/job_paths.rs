//! [`JobPaths`]: the files of a job where it runs.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::error::SubmitError;
use crate::log_reader::LogReader;
use crate::process_folder::{ProcessFolder, ProcessState};
use crate::target::LogRequest;

/// The folder of the results that has the job's record, authority and token.
pub(crate) const JOB_FOLDER: &str = "job";

/// The folder of a job on its target, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPaths {
    folder: PathBuf,
}

impl JobPaths {
    /// Names the folder, which need not exist.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self {
            folder: folder.into(),
        }
    }

    /// Returns the folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the output folder of the run.
    #[must_use]
    pub fn results(&self) -> PathBuf {
        self.folder.join("results")
    }

    /// Returns whether the run has begun: a coordinator listens, or for a run without one, there are events.
    #[must_use]
    pub fn has_begun(&self, has_coordinator: bool) -> bool {
        let results = self.results();
        match has_coordinator {
            true => {
                let coordinators = results.join(JOB_FOLDER).join("coordinators");
                let is_listed = std::fs::read_dir(coordinators);
                is_listed.is_ok_and(|mut entries| entries.next().is_some())
            }
            false => results.join("events.jsonl").exists(),
        }
    }

    /// Returns the folder of the process on the host with this number: the launcher on host 0, agents on the others.
    #[must_use]
    pub fn process(&self, host: usize) -> ProcessFolder {
        ProcessFolder::new(self.process_path(host))
    }

    /// Returns the path of [`JobPaths::process`].
    #[must_use]
    pub fn process_path(&self, host: usize) -> PathBuf {
        match host {
            0 => self.folder.join("launcher"),
            host => self.folder.join(format!("agent-{host}")),
        }
    }

    /// Returns the files that may have the output of a rank on the host with this number.
    fn rank_logs(&self, host: usize, rank: u32) -> [PathBuf; 2] {
        let name = format!("rank-{rank}.log");
        let folders = [self.results(), self.process_path(host)];
        folders.map(|folder| folder.join("logs").join(&name))
    }

    /// Writes the output of the process of a host to `out`, or that of a rank there; with `follow`, until the process is
    /// over.
    ///
    /// # Errors
    /// The rank has printed nothing on this host, or a file cannot be read.
    pub fn write_logs(
        &self,
        host: usize,
        request: LogRequest,
        out: &mut dyn Write,
    ) -> Result<(), SubmitError> {
        let process = self.process(host);
        let mut is_over = || {
            let state = process.state();
            !matches!(state, Ok(ProcessState::Running { .. }))
        };
        let path = match request.rank {
            None => process.output(),
            Some(rank) => {
                let logs = self.rank_logs(host, rank);
                let first = logs.into_iter().find(|path| path.exists());
                first.ok_or_else(|| {
                    SubmitError::invalid(
                        format!("rank {rank} has printed nothing"),
                        "`ronde logs JOB` without `--rank` shows progress and errors",
                    )
                })?
            }
        };
        let mut reader = LogReader::new(path);
        match request.follow {
            true => reader.follow(out, &mut is_over),
            false => reader.copy(out).map(|_| ()),
        }
    }
}
