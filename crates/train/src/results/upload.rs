//! [`ResultsUpload`]: a thread that sends the files of a run to object storage while they change.

use std::fs::File;
use std::io::{Read, Take};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use ronde_store::{ObjectName, StoreError};

use super::due::SentFiles;
use super::{CHECKPOINTS, CHUNK_BYTES, JOB, LOGS, LocalFile, StoredResults};
use crate::clock;

/// Interval at which the folders are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pause after a failed upload.
const PAUSE: Duration = Duration::from_secs(5);
/// Attempts to send what remains at the end, each with the attempts of the store itself.
const LAST_ATTEMPTS: u32 = 3;
/// The largest depth of folders.
const DEPTH_MAX: u32 = 8;

/// A folder whose files are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UploadSource {
    /// The folder of a run on the host of its launcher: all results.
    Run(PathBuf),
    /// The folder of a run on another host: what its workers write, such as the model by rank 0.
    Workers(PathBuf),
    /// The folder with the output of ranks.
    Logs(PathBuf),
}

/// Sends the files of a run. A thread looks for changes twice a second. Each file is one object, which is replaced; a large
/// file that grows is sent less often, at 4 MiB per second on average.
#[derive(Debug)]
pub struct ResultsUpload {
    /// Dropped at the end of the run.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<Option<String>>>,
}

impl ResultsUpload {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(results: StoredResults, sources: Vec<UploadSource>) -> Result<Self, String> {
        let (end, ended) = channel();
        let thread = std::thread::Builder::new()
            .name("ronde-results".to_owned())
            .spawn(move || {
                let mut upload = RunningUpload {
                    results,
                    sources,
                    sent: SentFiles::default(),
                };
                upload.run(&ended)
            })
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
        })
    }

    /// Sends what remains and ends the thread. Returns why the stored results are not complete; `None` if they are.
    #[must_use]
    pub fn finish(mut self) -> Option<String> {
        self.join()
    }

    fn join(&mut self) -> Option<String> {
        self.end = None;
        let joined = self.thread.take()?.join();
        joined.unwrap_or_else(|_| Some("a bug in ronde".to_owned()))
    }
}

impl Drop for ResultsUpload {
    fn drop(&mut self) {
        // A run that drops it without `finish` reports another error.
        let _ = self.join();
    }
}

struct RunningUpload {
    results: StoredResults,
    sources: Vec<UploadSource>,
    sent: SentFiles,
}

impl RunningUpload {
    fn run(&mut self, ended: &Receiver<()>) -> Option<String> {
        let mut pause = LOOK_EVERY;
        while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            // A failure that lasts is reported at the end; the files stay where they are until then.
            pause = match self.send(false) {
                Ok(()) => LOOK_EVERY,
                Err(_) => PAUSE,
            };
        }
        let mut problem = None;
        for _ in 0..LAST_ATTEMPTS {
            match self.send(true) {
                Ok(()) => return None,
                Err(error) => problem = Some(error.to_string()),
            }
        }
        problem
    }

    /// Sends the files that are due, or everything that has changed.
    fn send(&mut self, all: bool) -> Result<(), StoreError> {
        let mut found = Vec::new();
        for source in &self.sources {
            source.scan(&mut found);
        }
        for name in self.sent.gone(&found) {
            self.results
                .store()
                .delete(&ObjectName::new(name.as_str())?)?;
            self.sent.remove(&name);
        }
        for file in self.sent.due(found, clock::seconds(), all) {
            if self.put(&file)? {
                self.sent.add(&file, clock::seconds());
            }
        }
        Ok(())
    }

    /// Sends a file as it is now, up to its length when it was found. Returns false if it was removed or cut meanwhile.
    fn put(&self, file: &LocalFile) -> Result<bool, StoreError> {
        let name = ObjectName::new(file.name.as_str())?;
        let Ok(opened) = File::open(&file.path) else {
            return Ok(false);
        };
        let mut upload = self.results.store().create(&name)?;
        let mut rest: Take<File> = opened.take(file.bytes);
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut left = file.bytes;
        while left > 0 {
            let count = match rest.read(&mut chunk) {
                Ok(0) | Err(_) => return Ok(false),
                Ok(count) => count,
            };
            upload.write(&chunk[..count])?;
            left -= count as u64;
        }
        upload.publish()?;
        Ok(true)
    }
}

impl UploadSource {
    /// Adds the files of the folder.
    fn scan(&self, found: &mut Vec<LocalFile>) {
        let (folder, prefix) = match self {
            Self::Run(folder) | Self::Workers(folder) => (folder, String::new()),
            Self::Logs(folder) => (folder, format!("{LOGS}/")),
        };
        scan(folder, &prefix, &|name| self.has(name), DEPTH_MAX, found);
    }

    /// Returns whether a file or folder of the first level is sent.
    fn has(&self, name: &str) -> bool {
        match self {
            Self::Run(_) => ![CHECKPOINTS, JOB].contains(&name),
            Self::Workers(_) => [
                ronde_model::WEIGHTS_FILE,
                ronde_model::MANIFEST_FILE,
                ronde_model::TOKENIZER_FILE,
                ronde_model::CARD_FILE,
                "flight",
                "trace",
            ]
            .contains(&name),
            Self::Logs(_) => true,
        }
    }
}

/// Adds the files below a folder; files and folders that cannot be read are left out.
fn scan(
    folder: &Path,
    prefix: &str,
    has: &dyn Fn(&str) -> bool,
    depth: u32,
    found: &mut Vec<LocalFile>,
) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let is_temporary =
            name.starts_with('.') || name.contains(".tmp-") || name.ends_with(".unfinished");
        let (Ok(kind), false) = (entry.file_type(), is_temporary) else {
            continue;
        };
        if !has(&name) {
            continue;
        }
        let name = format!("{prefix}{name}");
        if kind.is_dir() && depth > 0 {
            scan(
                &entry.path(),
                &format!("{name}/"),
                &|_| true,
                depth - 1,
                found,
            );
        } else if let (true, Ok(about)) = (kind.is_file(), entry.metadata()) {
            let modified = about.modified().ok();
            let since = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
            found.push(LocalFile {
                path: entry.path(),
                name,
                bytes: about.len(),
                modified: since.map_or(0, |since| since.as_nanos()),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use ronde_store::{Address, RemoteSettings};

    use super::*;

    fn results(folder: &Path) -> StoredResults {
        let address = Address::Folder(folder.to_owned());
        StoredResults::open(&address, &RemoteSettings::default()).unwrap()
    }

    #[test]
    fn files_are_sent_while_they_change_and_read_back_without_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let write = |name: &str, text: &str| {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), text).unwrap();
        };
        write("run/events.jsonl", "one\n");
        write("run/job/token", "secret");
        write("run/checkpoints/step-1/part", "state");
        write("run/model.json.tmp-ronde", "unfinished");
        write("run/logs/rank-0.log", "hello\n");
        write("agent/model.json", "{}");
        write("agent/events.jsonl", "of another host");
        write("other/rank-1.log", "from 1\n");
        let stored = results(&path("store"));
        let upload = ResultsUpload::start(
            stored.clone(),
            vec![
                UploadSource::Run(path("run")),
                UploadSource::Workers(path("agent")),
                UploadSource::Logs(path("other")),
            ],
        );
        let upload = upload.unwrap();
        for _ in 0..1_000 {
            if stored.events().unwrap().is_some() {
                break;
            }
            #[expect(clippy::disallowed_methods, reason = "a watchdog of a test waits")]
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(stored.events().unwrap().is_some(), "sent before the end");
        write("run/events.jsonl", "one\ntwo\n");
        assert_eq!(upload.finish(), None);
        let mut names: Vec<String> = stored
            .list()
            .unwrap()
            .iter()
            .map(|entry| entry.name.as_str().to_owned())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "events.jsonl",
                "logs/rank-0.log",
                "logs/rank-1.log",
                "model.json"
            ]
        );
        assert_eq!(stored.events().unwrap().unwrap(), b"one\ntwo\n");
        assert_eq!(stored.rank_log(1).unwrap().unwrap(), b"from 1\n");
        assert_eq!(stored.rank_log(7).unwrap(), None);
        assert!(stored.has_model().unwrap());
        assert_eq!(stored.copy_to(&path("copy")).unwrap(), 4);
        assert_eq!(
            std::fs::read_to_string(path("copy/logs/rank-0.log")).unwrap(),
            "hello\n"
        );
        std::fs::create_dir(path("again")).unwrap();
        stored.restore_events(&path("again")).unwrap();
        assert_eq!(
            std::fs::read_to_string(path("again/events.jsonl")).unwrap(),
            "one\ntwo\n"
        );
        stored.remove().unwrap();
        assert!(stored.list().unwrap().is_empty());
    }
}
