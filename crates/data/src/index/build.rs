//! Building an [`Index`]: threads that divide files among each other and among processes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::claim::Kept;
use super::stored::FileIndex;
use super::{BAD_LISTED_MAX, DataFile, Index, IndexProgress, IndexSettings, Layout, OnBadRecord};
use crate::DataError;
use crate::clock::{Stopwatch, pause};
use crate::format::{BadRecord, Format, RecordFile};

/// How long is waited before locks of others are tried again.
const PAUSE: Duration = Duration::from_millis(20);
/// What a scan gets through at the least, for the patience with others.
const BYTES_PER_SECOND_MIN: u64 = 10_000_000;

/// Indexes files that are one record each: nothing is read.
pub(super) fn whole(
    files: &[Arc<dyn DataFile>],
    format: &dyn Format,
    settings: &IndexSettings,
) -> Result<Index, DataError> {
    let mut hasher = identity_hasher(format);
    let (mut numbers, mut lengths, mut index) = (Vec::new(), Vec::new(), empty());
    for (number, file) in files.iter().enumerate() {
        if !format.takes(file.location()) {
            continue;
        }
        let problem = match file.bytes() {
            0 => Some("it is empty".to_owned()),
            bytes if bytes > crate::format::RECORD_BYTES_MAX => {
                Some(format!("it has {bytes} bytes"))
            }
            _ => None,
        };
        if let Some(problem) = problem {
            let bad = BadRecord {
                file: file.location().to_owned(),
                offset: 0,
                record: None,
                problem,
            };
            index.refuse(settings, vec![bad], 1)?;
            continue;
        }
        let name = last_components(file.location());
        hasher.update(&(name.len() as u64).to_le_bytes());
        hasher.update(name.as_bytes());
        hasher.update(&file.bytes().to_le_bytes());
        numbers.push(u32::try_from(number).map_err(|_| too_many())?);
        lengths.push(file.bytes());
        index.bytes = index.bytes.saturating_add(file.bytes());
    }
    index.samples = lengths.len() as u64;
    index.block_samples = 1;
    index.layout = Layout::Whole {
        files: numbers,
        bytes: lengths,
    };
    index.identify(&mut hasher);
    Ok(index)
}

fn too_many() -> DataError {
    DataError::Schema {
        key: "train".to_owned(),
        problem: "more than 4,294,967,295 files".to_owned(),
    }
}

/// Folder and name of a file.
fn last_components(location: &str) -> &str {
    let mut slashes = location.rmatch_indices('/').map(|(at, _)| at);
    slashes.nth(1).map_or(location, |at| &location[at + 1..])
}

fn empty() -> Index {
    Index {
        layout: Layout::Files(Vec::new()),
        samples: 0,
        bytes: 0,
        block_samples: 1,
        identity: String::new(),
        bad: Vec::new(),
        bad_count: 0,
        warnings: Vec::new(),
    }
}

fn identity_hasher(format: &dyn Format) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new_derive_key("ronde records, version 1");
    let name = format.identity();
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name.as_bytes());
    hasher
}

impl Index {
    fn refuse(
        &mut self,
        settings: &IndexSettings,
        bad: Vec<BadRecord>,
        count: u64,
    ) -> Result<(), DataError> {
        if let (OnBadRecord::Error, Some(first)) = (settings.on_bad_record, bad.first()) {
            return Err(DataError::Record(first.clone()));
        }
        let room = BAD_LISTED_MAX - self.bad.len().min(BAD_LISTED_MAX);
        self.bad.extend(bad.into_iter().take(room));
        self.bad_count += count;
        Ok(())
    }

    fn identify(&mut self, hasher: &mut blake3::Hasher) {
        // Orders depend on these, too.
        hasher.update(&self.block_samples.to_le_bytes());
        hasher.update(&self.bytes.to_le_bytes());
        self.identity = format!(
            "records version 1: blake3:{}, {} samples",
            hasher.finalize().to_hex(),
            self.samples
        );
    }
}

/// Indexes files that have to be looked at.
pub(super) fn scanned(
    files: &[Arc<dyn DataFile>],
    format: &dyn Format,
    settings: &IndexSettings,
    progress: &(dyn Fn(IndexProgress) + Sync),
) -> Result<Index, DataError> {
    let found = find(files, format, settings, progress)?;
    let mut hasher = identity_hasher(format);
    let mut index = empty();
    let mut all = Vec::with_capacity(files.len());
    for file in found.0 {
        let file = file.expect("all files are done when none is left and there was no error");
        let records = file.extents.records();
        if records > 0 {
            hasher.update(&file.hash);
            hasher.update(&records.to_le_bytes());
        }
        index.refuse(settings, file.bad, file.bad_count)?;
        index.bytes = index.bytes.saturating_add(file.extents.bytes());
        index.block_samples = index.block_samples.max(file.extents.records_max());
        all.push((index.samples, file.extents));
        index.samples = index.samples.checked_add(records).ok_or_else(too_many)?;
    }
    index.layout = Layout::Files(all);
    index.warnings = found.1;
    index.identify(&mut hasher);
    Ok(index)
}

/// What is shared by the threads.
struct Work<'a> {
    files: &'a [Arc<dyn DataFile>],
    format: &'a dyn Format,
    settings: &'a IndexSettings,
    progress: &'a (dyn Fn(IndexProgress) + Sync),
    is_over: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// Numbers of files that nobody here works on; behind each how long others have had it.
    pending: VecDeque<(usize, Option<Stopwatch>)>,
    found: Vec<Option<FileIndex>>,
    progress: IndexProgress,
    warnings: Vec<String>,
    /// With the number of its file, so that the first one is told.
    error: Option<(usize, DataError)>,
}

type AllFound = (Vec<Option<FileIndex>>, Vec<String>);

fn find(
    files: &[Arc<dyn DataFile>],
    format: &dyn Format,
    settings: &IndexSettings,
    progress: &(dyn Fn(IndexProgress) + Sync),
) -> Result<AllFound, DataError> {
    let mut warnings = Vec::new();
    if let Some(folder) = &settings.folder
        && let Err(error) = std::fs::create_dir_all(folder)
    {
        let folder = folder.display();
        warnings.push(format!("the index is not kept: make {folder}: {error}"));
    }
    let work = Work {
        files,
        format,
        settings,
        progress,
        is_over: AtomicBool::new(false),
        state: Mutex::new(State {
            pending: (0..files.len()).map(|file| (file, None)).collect(),
            found: files.iter().map(|_| None).collect(),
            progress: IndexProgress {
                files_total: files.len(),
                bytes_total: files.iter().map(|file| file.bytes()).sum(),
                ..IndexProgress::default()
            },
            warnings,
            error: None,
        }),
    };
    let threads = settings.threads.clamp(1, files.len().max(1));
    std::thread::scope(|scope| {
        for number in 1..threads {
            let thread = std::thread::Builder::new().name(format!("ronde-index-{number}"));
            // With fewer threads it only takes longer.
            let _ = thread.spawn_scoped(scope, || work.run());
        }
        work.run();
    });
    let state = work
        .state
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    match state.error {
        Some((_, error)) => Err(error),
        None => Ok((state.found, state.warnings)),
    }
}

impl Work<'_> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let next = self.state().pending.pop_front();
            let Some((number, waited)) = next else { return };
            if self.is_over.load(Ordering::Relaxed) {
                return;
            }
            let is_tried_again = waited.is_some();
            match self.one(number, waited.as_ref()) {
                Ok(Some((index, is_scanned))) => self.done(number, index, is_scanned),
                Ok(None) => {
                    let waited = waited.unwrap_or_else(Stopwatch::start);
                    self.state().pending.push_back((number, Some(waited)));
                    if is_tried_again {
                        pause(PAUSE);
                    }
                }
                Err(error) => self.fail(number, error),
            }
        }
    }

    fn fail(&self, number: usize, error: DataError) {
        let mut state = self.state();
        if state
            .error
            .as_ref()
            .is_none_or(|(first, _)| number < *first)
        {
            state.error = Some((number, error));
        }
        self.is_over.store(true, Ordering::Relaxed);
    }

    fn done(&self, number: usize, index: FileIndex, is_scanned: bool) {
        if let (OnBadRecord::Error, Some(bad)) = (self.settings.on_bad_record, index.bad.first()) {
            return self.fail(number, DataError::Record(bad.clone()));
        }
        let progress = {
            let mut state = self.state();
            let progress = &mut state.progress;
            progress.files += 1;
            progress.scanned += usize::from(is_scanned);
            progress.bytes += self.files[number].bytes();
            progress.samples += index.extents.records();
            let progress = *progress;
            state.found[number] = Some(index);
            progress
        };
        (self.progress)(progress);
    }

    /// What is known of a file, and whether it was scanned for that; `None` while another process scans it.
    fn one(
        &self,
        number: usize,
        waited: Option<&Stopwatch>,
    ) -> Result<Option<(FileIndex, bool)>, DataError> {
        let file = &*self.files[number];
        if !self.format.takes(file.location()) {
            return Ok(Some((FileIndex::new(), false)));
        }
        let Some(folder) = &self.settings.folder else {
            return Ok(Some((self.scan(file)?, true)));
        };
        let kept = Kept::new(folder, file, &self.format.identity());
        let known = || self.or_warn(kept.load(file)).flatten();
        if let Some(index) = known() {
            return Ok(Some((index, false)));
        }
        let seconds = Duration::from_secs(file.bytes() / BYTES_PER_SECOND_MIN);
        let is_over_due =
            waited.is_some_and(|waited| waited.elapsed() > self.settings.patience + seconds);
        match self.or_warn(kept.claim()) {
            Some(Some(claim)) => {
                if let Some(index) = known() {
                    return Ok(Some((index, false)));
                }
                let index = self.scan(file)?;
                self.or_warn(kept.store(&index, &claim));
                Ok(Some((index, true)))
            }
            Some(None) if !is_over_due => Ok(None),
            // Whoever has it hangs, or nothing can be locked here.
            Some(None) | None => Ok(Some((self.scan(file)?, true))),
        }
    }

    /// A problem with the folder does not keep anybody from training.
    fn or_warn<T>(&self, result: Result<T, DataError>) -> Option<T> {
        result
            .map_err(|error| {
                let warnings = &mut self.state().warnings;
                if warnings.is_empty() {
                    warnings.push(format!("the index is not kept: {error}"));
                }
            })
            .ok()
    }

    fn scan(&self, file: &dyn DataFile) -> Result<FileIndex, DataError> {
        let bytes = file.bytes();
        if bytes == 0 {
            return Ok(FileIndex::new());
        }
        let records: Box<dyn RecordFile> = self.format.open(file.open()?)?;
        let mut index = FileIndex::new();
        let broken_off = || DataError::Format {
            file: file.location().to_owned(),
            problem: "reading it was ended by an error in another file".to_owned(),
        };
        index.hash = records.scan(&mut |found| {
            if self.is_over.load(Ordering::Relaxed) {
                return Err(broken_off());
            }
            index.add(found, bytes).ok_or_else(|| DataError::Format {
                file: file.location().to_owned(),
                problem: "it tells of records outside of it, or of too large ones".to_owned(),
            })
        })?;
        if let super::Extents::Listed(listed) = &mut index.extents {
            listed.close();
        }
        Ok(index)
    }
}
