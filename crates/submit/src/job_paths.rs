//! [`JobPaths`]: the files of a job where it runs.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::SubmitError;
use crate::log_frames::write_frame;
use crate::log_reader::{LogPosition, LogReader};
use crate::process_folder::ProcessFolder;
use crate::target::LogRequest;

/// The folder of the results that has the job's record, authority and token.
pub(crate) const JOB_FOLDER: &str = "job";

/// Interval between two looks for the first output of a rank.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The folder of a job on its target, and its contents.
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

    /// Returns whether a rank has printed something on the host with this number.
    #[must_use]
    pub fn has_rank_log(&self, host: usize, rank: u32) -> bool {
        self.rank_logs(host, rank).iter().any(|path| has_log(path))
    }

    /// Returns the file with the join token of the job.
    #[must_use]
    pub fn token(&self) -> PathBuf {
        self.results().join(JOB_FOLDER).join("token")
    }

    /// Returns the address of the newest coordinator that has begun to listen since a time, in milliseconds since 1970.
    #[must_use]
    pub fn coordinator(&self, since_ms: u64) -> Option<String> {
        let folder = self.results().join(JOB_FOLDER).join("coordinators");
        let listed = std::fs::read_dir(folder).ok()?.flatten();
        let addresses = listed.filter_map(|entry| {
            let text = std::fs::read_to_string(entry.path()).ok()?;
            let (since, address) = text.trim().split_once(' ')?;
            let since = since.parse::<u64>().ok()?;
            (since >= since_ms).then(|| (since, address.to_owned()))
        });
        addresses.max().map(|(_, address)| address)
    }

    /// Returns whether the run has saved a checkpoint, by its events.
    #[must_use]
    pub fn has_checkpoint(&self) -> bool {
        let files = ["events.jsonl", "events.1.jsonl"].map(|name| self.results().join(name));
        files.iter().any(|file| {
            let lines = std::fs::File::open(file).map(|file| BufReader::new(file).lines());
            lines.is_ok_and(|mut lines| {
                lines.any(|line| line.is_ok_and(|line| line.contains("\"checkpoint_saved\"")))
            })
        })
    }

    /// Returns the host, one of these, on which a rank has printed something; with `follow`, waits for that until `is_over`.
    /// Returns the first host if there is none.
    pub fn host_of_rank(
        &self,
        hosts: &[usize],
        request: LogRequest,
        is_over: &mut dyn FnMut() -> bool,
    ) -> usize {
        let Some(rank) = request.rank else { return 0 };
        loop {
            // Looked at first, so that no output is missed.
            let over = !request.follow || is_over();
            let mut hosts_of_rank = hosts.iter().filter(|host| self.has_rank_log(**host, rank));
            match hosts_of_rank.next() {
                Some(host) => return *host,
                None if over => return hosts.first().copied().unwrap_or(0),
                None => ronde_clock::pause(LOOK_EVERY),
            }
        }
    }

    /// Writes the output of the process of a host to `out`, or that of a rank there; with `follow`, until `is_over`.
    ///
    /// # Errors
    /// The rank has printed nothing on this host, or a file cannot be read.
    pub fn write_logs(
        &self,
        host: usize,
        request: LogRequest,
        out: &mut dyn Write,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), SubmitError> {
        let mut reader = LogReader::new(self.log(host, request.rank)?);
        match request.follow {
            true => reader.follow(out, is_over),
            false => reader.copy(out).map(|_| ()),
        }
    }

    /// Writes the same with positions, from which a reader on another host can continue: until `is_over`, from the start or
    /// `after` a position.
    ///
    /// # Errors
    /// As [`JobPaths::write_logs`].
    pub fn send_logs(
        &self,
        host: usize,
        rank: Option<u32>,
        after: Option<LogPosition>,
        out: &mut dyn Write,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), SubmitError> {
        let path = self.log(host, rank)?;
        let mut reader = match after {
            Some(position) => LogReader::after(path, position),
            None => LogReader::new(path),
        };
        let mut frames = |position, bytes: &[u8]| write_frame(out, position, bytes);
        reader.follow_chunks(&mut frames, is_over)
    }

    /// Returns the file with the output of the process of a host, or that of a rank there.
    fn log(&self, host: usize, rank: Option<u32>) -> Result<PathBuf, SubmitError> {
        let Some(rank) = rank else {
            return Ok(self.process(host).output());
        };
        let logs = self.rank_logs(host, rank);
        let first = logs.into_iter().find(|path| has_log(path));
        first.ok_or_else(|| {
            SubmitError::invalid(
                format!("rank {rank} has printed nothing"),
                "`ronde logs JOB` without `--rank` shows progress and errors",
            )
        })
    }
}

/// Returns whether there is a file of output, also while it is replaced by the next one.
fn has_log(path: &Path) -> bool {
    path.exists() || path.with_extension("1.log").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_output_of_a_rank_is_waited_for_until_the_job_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let paths = JobPaths::new(dir.path());
        let request = |follow| LogRequest {
            rank: Some(3),
            follow,
            interrupted: |_| {},
        };
        let logs = paths.process_path(1).join("logs");
        std::fs::create_dir_all(&logs).unwrap();
        assert_eq!(
            paths.host_of_rank(&[0, 1], request(false), &mut || false),
            0
        );
        let mut looks = 0;
        let mut is_over = || {
            looks += 1;
            if looks == 2 {
                std::fs::write(logs.join("rank-3.log"), "late\n").unwrap();
            }
            looks == 2
        };
        let host = paths.host_of_rank(&[0, 1], request(true), &mut is_over);
        let mut out = Vec::new();
        paths
            .write_logs(host, request(true), &mut out, &mut || true)
            .unwrap();
        assert_eq!((host, out.as_slice()), (1, &b"late\n"[..]));
        let gone = JobPaths::new(dir.path().join("gone"));
        assert_eq!(gone.host_of_rank(&[0], request(true), &mut || true), 0);
    }
}
