//! [`ResultsUpload`]: a thread that sends the files of a run to object storage while they change.

use std::fs::File;
use std::io::{Read, Take};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, UNIX_EPOCH};

use ronde_core::Recovery;
use ronde_store::{ObjectName, StoreError, StoreExt};

use super::due::SentFiles;
use super::{CHECKPOINTS, CHUNK_BYTES, JOB, LOGS, LocalFile, StoredResults};

/// Interval at which the folders are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The time after which the wait for the last files is reported.
const NOTE_AFTER: Duration = Duration::from_secs(2);
/// Pause after a failed upload.
const PAUSE: Duration = Duration::from_secs(5);
/// Attempts to send the last files at the end, each with the attempts of the store itself.
const LAST_ATTEMPTS: u32 = 3;
/// The largest output of a rank of an earlier attempt that is kept, in bytes; files are renamed at half of it.
const EARLIER_BYTES_MAX: u64 = 16 << 20;
/// The files of the model.
const MODEL: [&str; 4] = [
    ronde_saved_model::WEIGHTS_FILE,
    ronde_saved_model::TOKENIZER_FILE,
    ronde_saved_model::CARD_FILE,
    ronde_saved_model::MANIFEST_FILE,
];
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

/// Sends the files of a run. Two threads look for changes twice a second: one for the model, and one for everything else,
/// which begins with no file while the model is sent. Each file is one object, which is replaced; a file that grows is sent
/// the less often the longer it takes.
#[derive(Debug)]
pub struct ResultsUpload {
    address: String,
    model: UploadThread,
    rest: UploadThread,
}

impl ResultsUpload {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(results: StoredResults, sources: Vec<UploadSource>) -> Result<Self, String> {
        let is_model_due = Arc::new(AtomicBool::new(false));
        let thread = |part| {
            UploadThread::start(RunningUpload {
                results: results.clone(),
                sources: sources.clone(),
                part,
                is_model_due: Arc::clone(&is_model_due),
                sent: SentFiles::default(),
                has_begun: false,
            })
        };
        Ok(Self {
            address: results.address().to_string(),
            rest: thread(UploadPart::Rest)?,
            model: thread(UploadPart::Model)?,
        })
    }

    /// Sends all files that have changed, the model first, and ends the threads. A run also stores that it has ended, with the exit code of its
    /// launcher where that is known. Calls `tell` with a note if that takes longer than two seconds. Returns why the stored
    /// results are not complete; `None` if they are.
    #[must_use]
    pub fn finish(mut self, exit_code: Option<i32>, tell: &dyn Fn(&str)) -> Option<String> {
        self.end(exit_code, tell)
    }

    fn end(&mut self, exit_code: Option<i32>, tell: &dyn Fn(&str)) -> Option<String> {
        let address = &self.address;
        let note = |what| tell(&format!("note: sending {what} to {address}"));
        let model = self
            .model
            .finish(UploadEnd::default(), &|| note("the model"));
        let end = UploadEnd {
            exit_code,
            has_model: model.is_none(),
        };
        let rest = self.rest.finish(end, &|| note("logs and events"));
        model.or(rest)
    }
}

/// How the run has ended.
#[derive(Debug, Clone, Copy, Default)]
struct UploadEnd {
    exit_code: Option<i32>,
    /// Whether the model was sent, if there is one.
    has_model: bool,
}

/// A thread that sends files.
#[derive(Debug)]
struct UploadThread {
    /// Is dropped at the end of the run.
    end: Option<Sender<UploadEnd>>,
    /// Is closed at the end of the thread.
    done: Receiver<()>,
    thread: Option<JoinHandle<Option<String>>>,
}

impl UploadThread {
    fn start(mut upload: RunningUpload) -> Result<Self, String> {
        let (end, ended) = channel();
        let (running, done) = channel();
        let thread = std::thread::Builder::new()
            .name("ronde-results".to_owned())
            .spawn(move || {
                let problem = upload.run(&ended);
                drop(running);
                problem
            })
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self {
            end: Some(end),
            done,
            thread: Some(thread),
        })
    }

    /// Sends all files that have changed and ends the thread. Calls `slow` once if that takes long. Returns why not everything was sent.
    fn finish(&mut self, end: UploadEnd, slow: &dyn Fn()) -> Option<String> {
        if let Some(sender) = self.end.take() {
            // The thread is there until the sender is dropped.
            let _ = sender.send(end);
        }
        if self.done.recv_timeout(NOTE_AFTER) == Err(RecvTimeoutError::Timeout) {
            slow();
        }
        let joined = self.thread.take()?.join();
        joined.unwrap_or_else(|_| Some("a bug in ronde".to_owned()))
    }
}

impl Drop for ResultsUpload {
    fn drop(&mut self) {
        // A run that drops it without `finish` reports another error.
        let _ = self.end(None, &|_| {});
    }
}

/// The files that a thread sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UploadPart {
    Model,
    Rest,
}

impl UploadPart {
    fn has(self, name: &str) -> bool {
        MODEL.contains(&name) == (self == Self::Model)
    }
}

struct RunningUpload {
    results: StoredResults,
    sources: Vec<UploadSource>,
    part: UploadPart,
    /// Whether files of the model are being sent.
    is_model_due: Arc<AtomicBool>,
    sent: SentFiles,
    /// Whether the note about the end of an earlier attempt was removed.
    has_begun: bool,
}

impl RunningUpload {
    fn run(&mut self, ended: &Receiver<UploadEnd>) -> Option<String> {
        let mut pause = LOOK_EVERY;
        let end = loop {
            match ended.recv_timeout(pause) {
                Ok(end) => break end,
                Err(RecvTimeoutError::Disconnected) => break UploadEnd::default(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // A failure that lasts is reported at the end; the files stay where they are until then.
            pause = match self.send(false) {
                Ok(()) => LOOK_EVERY,
                Err(_) => PAUSE,
            };
        };
        let mut problem = None;
        for _ in 0..LAST_ATTEMPTS {
            match self.send(true).and_then(|()| self.store_end(end)) {
                Ok(()) => return None,
                Err(error) => problem = Some(error.to_string()),
            }
        }
        problem
    }

    /// Returns whether this process has the launcher of the run.
    fn leads(&self) -> bool {
        let mut sources = self.sources.iter();
        sources.any(|source| matches!(source, UploadSource::Run(_)))
    }

    /// Stores that the run has ended, once everything is there. Hosts that join it do not.
    fn store_end(&self, end: UploadEnd) -> Result<(), StoreError> {
        match self.part == UploadPart::Rest && end.has_model && self.leads() {
            true => self.results.put_end(end.exit_code),
            false => Ok(()),
        }
    }

    /// Sends the files that are due, or everything that has changed. A file that cannot be sent does not keep back the
    /// others, unless the store does not answer; the result is the first error.
    fn send(&mut self, all: bool) -> Result<(), StoreError> {
        if !self.has_begun && self.part == UploadPart::Rest && self.leads() {
            self.results.remove_end()?;
        }
        self.has_begun = true;
        let mut found = Vec::new();
        for source in &self.sources {
            source.scan(self.part, &mut found);
        }
        let mut first = None;
        for name in self.sent.gone(&found) {
            let deleted = ObjectName::new(name.as_str())
                .and_then(|object| self.results.store().delete(&object));
            match deleted {
                Ok(()) => self.sent.remove(&name),
                Err(error) => keep_first(&mut first, error)?,
            }
        }
        let due = self.sent.due(found, ronde_clock::seconds(), all);
        let is_model = self.part == UploadPart::Model;
        if is_model {
            self.is_model_due.store(!due.is_empty(), Relaxed);
        }
        let sent = self.send_files(due, all, &mut first);
        if is_model {
            self.is_model_due.store(false, Relaxed);
        }
        sent?;
        first.map_or(Ok(()), Err)
    }

    /// Sends files. While the run is under way, those of other parts wait for the model.
    fn send_files(
        &mut self,
        due: Vec<LocalFile>,
        all: bool,
        first: &mut Option<StoreError>,
    ) -> Result<(), StoreError> {
        for file in due {
            if self.part == UploadPart::Rest && !all && self.is_model_due.load(Relaxed) {
                break;
            }
            let start_s = ronde_clock::seconds();
            match self.put(&file) {
                Ok(true) => self.sent.add(&file, start_s, ronde_clock::seconds()),
                Ok(false) => {}
                Err(error) => keep_first(first, error)?,
            }
        }
        Ok(())
    }

    /// Stores the output of a rank of an earlier attempt under another name, before the first output of this attempt
    /// replaces it. Output that continues in the same file is not stored twice.
    fn keep_earlier(&self, file: &LocalFile, name: &ObjectName) -> Result<(), StoreError> {
        let is_log = file.name.starts_with(LOGS) && file.name.ends_with(".log");
        if !is_log || self.sent.has(&file.name) {
            return Ok(());
        }
        let earlier = match self.results.store().get(name, EARLIER_BYTES_MAX) {
            Err(error) if error.is_not_found() => return Ok(()),
            earlier => earlier?,
        };
        let mut begin = Vec::new();
        if let Ok(opened) = File::open(&file.path) {
            // An unreadable file counts as different.
            let _ = opened.take(earlier.len() as u64).read_to_end(&mut begin);
        }
        if begin == earlier {
            return Ok(());
        }
        let base = file.name.trim_end_matches(".log");
        let kept = format!("{base}.earlier-{}.log", ronde_clock::unix_ms());
        self.results.store().put(&ObjectName::new(kept)?, &earlier)
    }

    /// Sends a file as it is now, up to its length when it was found. Returns false if it was removed or cut meanwhile.
    fn put(&self, file: &LocalFile) -> Result<bool, StoreError> {
        let name = ObjectName::new(file.name.as_str())?;
        let Ok(opened) = File::open(&file.path) else {
            return Ok(false);
        };
        self.keep_earlier(file, &name)?;
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

/// Keeps the first error of a file. The error of a store that does not answer is returned at once.
fn keep_first(first: &mut Option<StoreError>, error: StoreError) -> Result<(), StoreError> {
    if error.recovery() == Recovery::Retry {
        return Err(error);
    }
    first.get_or_insert(error);
    Ok(())
}

impl UploadSource {
    /// Adds the files of the folder that belong to a part.
    fn scan(&self, part: UploadPart, found: &mut Vec<LocalFile>) {
        let (folder, prefix) = match self {
            Self::Run(folder) | Self::Workers(folder) => (folder, String::new()),
            Self::Logs(folder) => (folder, format!("{LOGS}/")),
        };
        let has = |name: &str| self.has(name) && part.has(name);
        scan(folder, &prefix, &has, DEPTH_MAX, found);
    }

    /// Returns whether a file or folder of the first level is sent.
    fn has(&self, name: &str) -> bool {
        match self {
            Self::Run(_) => ![CHECKPOINTS, JOB].contains(&name),
            Self::Workers(_) => MODEL.contains(&name) || ["flight", "trace"].contains(&name),
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

    /// Reads the sent files as another machine does.
    fn read_back(stored: &StoredResults, folder: &Path) {
        let path = |name: &str| folder.join(name);
        let mut shown = Vec::new();
        let mut rank = stored.rank_log(1);
        assert!(rank.read(&mut shown).unwrap());
        assert_eq!(shown, b"from 1\n");
        assert!(!stored.rank_log(7).read(&mut shown).unwrap());
        let mut lines = Vec::new();
        stored.event_log().read(&mut lines).unwrap();
        assert_eq!(lines, b"one\ntwo\n");
        assert!(stored.has_model().unwrap());
        assert_eq!(stored.copy_to(&path("copy")).unwrap(), 5);
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
            if stored.has_events().unwrap() {
                break;
            }
            ronde_clock::pause(Duration::from_millis(10));
        }
        assert!(stored.has_events().unwrap(), "sent before the end");
        write("run/events.jsonl", "one\ntwo\n");
        assert_eq!(stored.ended().unwrap(), None);
        assert_eq!(upload.finish(Some(3), &|_| {}), None);
        let end = stored.ended().unwrap().unwrap();
        assert_eq!(end.exit_code, Some(3));
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
                "ended.json",
                "events.jsonl",
                "logs/rank-0.log",
                "logs/rank-1.log",
                "model.json"
            ]
        );
        read_back(&stored, dir.path());
        stored.remove().unwrap();
        assert!(stored.list().unwrap().is_empty());
    }

    #[test]
    fn the_output_of_an_earlier_attempt_on_another_host_is_kept_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let write = |name: &str, text: &str| {
            std::fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            std::fs::write(path(name), text).unwrap();
        };
        let stored = results(&path("store"));
        let send = |folder: &str| {
            let source = UploadSource::Logs(path(folder));
            let upload = ResultsUpload::start(stored.clone(), vec![source]).unwrap();
            assert_eq!(upload.finish(None, &|_| {}), None);
            let listed = stored.list().unwrap();
            listed
                .iter()
                .map(|entry| entry.name.as_str().to_owned())
                .collect::<Vec<_>>()
        };
        write("first/rank-0.log", "the error\n");
        assert_eq!(send("first"), ["logs/rank-0.log"]);
        write("first/rank-0.log", "the error\nresumed\n");
        assert_eq!(send("first"), ["logs/rank-0.log"], "the file continues");
        write("second/rank-0.log", "on another host\n");
        let names = send("second");
        assert_eq!(names.len(), 2, "{names:?}");
        let kept = names.iter().find(|name| name.contains("earlier")).unwrap();
        let kept = ObjectName::new(kept.as_str()).unwrap();
        let kept = stored.store().get(&kept, 1000).unwrap();
        assert_eq!(kept, b"the error\nresumed\n");
        assert_eq!(stored.ended().unwrap(), None, "only a launcher ends a run");
    }
}
