//! [`RankLogs`]: writes the output of each rank of a run to a file in the folder of the run.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ronde_cluster::{LogSink, OutputStream};
use ronde_core::Rank;

use crate::command::run::run_folder::LOGS_FOLDER;

/// Size at which a file is renamed to `rank-N.1.log`, which replaces the previous one.
const FILE_BYTES_MAX: u64 = 8 << 20;

/// Writes the output of each rank to `logs/rank-N.log` in the folder of a run, and passes it on. A rank without output has no
/// file. Output that cannot be written is only passed on.
pub(crate) struct RankLogs {
    folder: PathBuf,
    /// The number in the job of this host's first rank.
    first: u32,
    /// `None`: the file of the rank cannot be written.
    files: Mutex<BTreeMap<Rank, Option<LogFile>>>,
    next: Arc<dyn LogSink>,
}

struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl RankLogs {
    pub(crate) fn new(run: &Path, first: u32, next: Arc<dyn LogSink>) -> Self {
        Self {
            folder: run.join(LOGS_FOLDER),
            first,
            files: Mutex::default(),
            next,
        }
    }
}

impl LogFile {
    fn open(folder: &Path, rank: Rank) -> std::io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("rank-{rank}.log"));
        if path.is_symlink() {
            return Err(std::io::Error::other("it is a symbolic link"));
        }
        let file = OpenOptions::new().create(true).append(true).open(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, file, bytes })
    }

    fn write(&mut self, line: &str) -> std::io::Result<()> {
        if self.bytes >= FILE_BYTES_MAX {
            std::fs::rename(&self.path, self.path.with_extension("1.log"))?;
            self.file = File::create_new(&self.path)?;
            self.bytes = 0;
        }
        let line = format!("{line}\n");
        self.bytes += line.len() as u64;
        self.file.write_all(line.as_bytes())
    }
}

impl LogSink for RankLogs {
    fn line(&self, rank: Rank, stream: OutputStream, line: &str) {
        {
            let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            let number = Rank(self.first.saturating_add(rank.0));
            let file = files
                .entry(rank)
                .or_insert_with(|| LogFile::open(&self.folder, number).ok());
            if file.as_mut().is_some_and(|file| file.write(line).is_err()) {
                *file = None;
            }
        }
        self.next.line(rank, stream, line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct LineCounter(Mutex<usize>);

    impl LogSink for LineCounter {
        fn line(&self, _rank: Rank, _stream: OutputStream, _line: &str) {
            *self.0.lock().unwrap() += 1;
        }
    }

    #[test]
    fn output_is_written_by_rank_bounded_and_passed_on() {
        let dir = tempfile::tempdir().unwrap();
        let next = Arc::new(LineCounter::default());
        let logs = RankLogs::new(dir.path(), 0, next.clone());
        let folder = dir.path().join(LOGS_FOLDER);
        assert!(!folder.exists(), "no folder without output");
        logs.line(Rank(0), OutputStream::Stdout, "one");
        logs.line(Rank(0), OutputStream::Stderr, "two");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert_eq!(read("rank-0.log"), "one\ntwo\n");
        let long = "x".repeat(1 << 20);
        (0..9).for_each(|_| logs.line(Rank(1), OutputStream::Stdout, &long));
        assert!(read("rank-1.log").len() < read("rank-1.1.log").len());
        std::os::unix::fs::symlink("/dev/full", folder.join("rank-2.log")).unwrap();
        logs.line(Rank(2), OutputStream::Stdout, "not written");
        assert_eq!(*next.0.lock().unwrap(), 12);
    }
}
