//! Building an [`Index`]: scans files, divided among threads and processes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::counted::CountedObject;
use super::file_index::FileIndex;
use super::index_file::IndexFile;
use super::{
    BAD_LISTED_MAX, DataFile, Index, IndexLayout, IndexProgress, IndexSettings, OnBadRecord,
    SkippedRecords,
};
use crate::error::DataError;
use crate::file_tasks::{Cancellation, ClaimOutcome, FileTask, TaskClaim, run_file_tasks};
use crate::format::{BadRecord, Format, RecordFile};
use crate::read_limit::ReadLimit;

/// The bytes between two reports of the progress within a file.
const PROGRESS_BYTES: u64 = 1 << 20;
/// The assumed minimal speed of a scan, from which the waiting time for other processes follows.
const BYTES_PER_SECOND_MIN: u64 = 10_000_000;

/// Indexes files that are one record each, without reading them.
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
            0 => Some("the file is empty".to_owned()),
            bytes if bytes > crate::format::RECORD_BYTES_MAX => Some(format!(
                "the file has {bytes} bytes; the limit is {}",
                crate::format::RECORD_BYTES_MAX
            )),
            _ => None,
        };
        if let Some(problem) = problem {
            let bad = BadRecord::new(file.location(), 0, None, problem);
            let skipped = SkippedRecords {
                records: 1,
                bytes: file.bytes(),
            };
            index.refuse(settings, vec![bad], skipped)?;
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
    index.layout = IndexLayout::Whole {
        files: numbers,
        bytes: lengths,
    };
    index.identify(&mut hasher);
    Ok(index)
}

fn too_many() -> DataError {
    DataError::schema("train", "more than 4,294,967,295 files")
}

/// Returns folder and name of a file.
fn last_components(location: &str) -> &str {
    let mut slashes = location.rmatch_indices('/').map(|(at, _)| at);
    slashes.nth(1).map_or(location, |at| &location[at + 1..])
}

fn empty() -> Index {
    Index {
        layout: IndexLayout::Files(Vec::new()),
        samples: 0,
        bytes: 0,
        block_samples: 1,
        identity: String::new(),
        bad: Vec::new(),
        skipped: SkippedRecords::default(),
        warnings: Vec::new(),
        file_hashes: Vec::new(),
        unfinished: 0,
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
        skipped: SkippedRecords,
    ) -> Result<(), DataError> {
        if let (OnBadRecord::Error, Some(first)) = (settings.on_bad_record, bad.first()) {
            return Err(DataError::Record(first.clone()));
        }
        let room = BAD_LISTED_MAX - self.bad.len().min(BAD_LISTED_MAX);
        self.bad.extend(bad.into_iter().take(room));
        self.skipped.records += skipped.records;
        self.skipped.bytes = self.skipped.bytes.saturating_add(skipped.bytes);
        Ok(())
    }

    fn identify(&mut self, hasher: &mut blake3::Hasher) {
        // The shuffle order depends on these, too.
        hasher.update(&self.block_samples.to_le_bytes());
        hasher.update(&self.bytes.to_le_bytes());
        self.identity = format!(
            "records version 1: blake3:{}, {} samples",
            hasher.finalize().to_hex(),
            self.samples
        );
    }
}

/// Indexes files by scanning them.
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
    for file in found.files {
        let records = file.extents.records();
        index.file_hashes.push(file.hash);
        if records > 0 {
            hasher.update(&file.hash);
            hasher.update(&records.to_le_bytes());
        }
        let skipped = SkippedRecords {
            records: file.bad_count,
            bytes: file.bad_bytes,
        };
        index.refuse(settings, file.bad, skipped)?;
        index.bytes = index.bytes.saturating_add(file.extents.bytes());
        index.block_samples = index.block_samples.max(file.extents.records_max());
        all.push((index.samples, file.extents));
        index.samples = index.samples.checked_add(records).ok_or_else(too_many)?;
    }
    index.layout = IndexLayout::Files(all);
    index.warnings = found.warnings;
    index.unfinished = found.unfinished;
    index.identify(&mut hasher);
    Ok(index)
}

/// The scan of a list of files, except those with a stored index.
struct FileScans<'a> {
    files: &'a [Arc<dyn DataFile>],
    format: &'a dyn Format,
    identity: String,
    settings: &'a IndexSettings,
    progress: &'a (dyn Fn(IndexProgress) + Sync),
    state: Mutex<ScanState>,
}

struct ScanState {
    progress: IndexProgress,
    /// The bytes of each file that are part of the progress although the file is not completed.
    partial: Vec<u64>,
    warnings: Vec<String>,
    unfinished: usize,
}

/// The results of scanning files.
struct ScanResults {
    files: Vec<FileIndex>,
    warnings: Vec<String>,
    /// The number of files that were not scanned to their end.
    unfinished: usize,
}

fn find(
    files: &[Arc<dyn DataFile>],
    format: &dyn Format,
    settings: &IndexSettings,
    progress: &(dyn Fn(IndexProgress) + Sync),
) -> Result<ScanResults, DataError> {
    let mut warnings = Vec::new();
    if let Some(folder) = &settings.folder
        && let Err(error) = std::fs::create_dir_all(folder)
    {
        let folder = folder.display();
        warnings.push(format!(
            "cannot store the index: cannot create {folder}: {error}"
        ));
    }
    let scans = FileScans {
        files,
        format,
        identity: format.identity(),
        settings,
        progress,
        state: Mutex::new(ScanState {
            progress: IndexProgress {
                files_total: files.len(),
                bytes_total: files.iter().map(|file| file.bytes()).sum(),
                ..IndexProgress::default()
            },
            partial: vec![0; files.len()],
            warnings,
            unfinished: 0,
        }),
    };
    let files = run_file_tasks(&scans, files.len(), settings.threads, "index")?;
    let state = scans.state.into_inner();
    let state = state.unwrap_or_else(PoisonError::into_inner);
    Ok(ScanResults {
        files,
        warnings: state.warnings,
        unfinished: state.unfinished,
    })
}

impl FileTask for FileScans<'_> {
    type Output = FileIndex;

    fn stored(&self, number: usize) -> Option<FileIndex> {
        if !self.is_accepted(number) {
            return Some(FileIndex::new());
        }
        let file = &*self.files[number];
        self.or_warn(self.index_file(number)?.load(file)).flatten()
    }

    fn claim(&self, number: usize) -> ClaimOutcome {
        let claim = self
            .index_file(number)
            .map(|index_file| self.or_warn(index_file.claim()));
        match claim.flatten() {
            Some(Some(claim)) => ClaimOutcome::Claimed(claim),
            Some(None) => ClaimOutcome::Busy,
            None => ClaimOutcome::Unavailable,
        }
    }

    fn wait_limit(&self, number: usize) -> Duration {
        let bytes = self.files[number].bytes();
        let wait = self.settings.claim_timeout + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN);
        let limit = self.settings.limit.as_ref();
        limit.map_or(wait, |limit| wait.min(limit.left_for_opening()))
    }

    fn run(
        &self,
        number: usize,
        claim: Option<&TaskClaim>,
        cancellation: &Cancellation<'_>,
    ) -> Result<FileIndex, DataError> {
        let (index, is_whole) = self.scan(number, cancellation)?;
        if !is_whole {
            self.state().unfinished += 1;
            return Ok(index);
        }
        if let (Some(index_file), Some(claim)) = (self.index_file(number), claim) {
            self.or_warn(index_file.store(&index, claim));
        }
        Ok(index)
    }

    fn finished(
        &self,
        number: usize,
        index: &FileIndex,
        is_scanned: bool,
    ) -> Result<(), DataError> {
        if let (OnBadRecord::Error, Some(bad)) = (self.settings.on_bad_record, index.bad.first()) {
            return Err(DataError::Record(bad.clone()));
        }
        let progress = {
            let state = &mut *self.state();
            let progress = &mut state.progress;
            progress.files += 1;
            progress.scanned += usize::from(is_scanned && self.is_accepted(number));
            progress.bytes += self.files[number].bytes() - state.partial[number];
            progress.samples += index.extents.records();
            *progress
        };
        (self.progress)(progress);
        Ok(())
    }
}

impl FileScans<'_> {
    fn state(&self) -> MutexGuard<'_, ScanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_accepted(&self, number: usize) -> bool {
        self.format.takes(self.files[number].location())
    }

    fn index_file(&self, number: usize) -> Option<IndexFile> {
        let folder = self.settings.folder.as_ref()?;
        Some(IndexFile::new(folder, &*self.files[number], &self.identity))
    }

    /// Converts an error of the index folder to a warning, because it does not prevent training.
    fn or_warn<T>(&self, result: Result<T, DataError>) -> Option<T> {
        result
            .map_err(|error| {
                let warnings = &mut self.state().warnings;
                if warnings.is_empty() {
                    warnings.push(format!("cannot store the index: {error}"));
                }
            })
            .ok()
    }

    /// Reports that `bytes` of a file have been read.
    fn advance(&self, number: usize, bytes: u64) {
        let progress = {
            let state = &mut *self.state();
            let before = std::mem::replace(&mut state.partial[number], bytes);
            state.progress.bytes = state.progress.bytes - before + bytes;
            state.progress
        };
        (self.progress)(progress);
    }

    /// Scans a file. Also returns whether it was scanned to its end.
    fn scan(
        &self,
        number: usize,
        cancellation: &Cancellation<'_>,
    ) -> Result<(FileIndex, bool), DataError> {
        let limit = self.settings.limit.as_deref();
        let is_over = || limit.is_some_and(ReadLimit::is_opening_over);
        let file = &*self.files[number];
        let bytes = file.bytes();
        if bytes == 0 || is_over() {
            return Ok((FileIndex::new(), bytes == 0));
        }
        let read = Arc::default();
        let object = Arc::new(CountedObject::new(file.open()?, &read));
        let records: Box<dyn RecordFile> = self.format.open(object)?;
        let mut index = FileIndex::new();
        let mut next = PROGRESS_BYTES;
        let is_stopped = Cell::new(false);
        let scanned = records.scan(&mut |found| {
            cancellation.check(file.location())?;
            let read = AtomicU64::load(&read, Ordering::Relaxed).min(bytes);
            if read >= next {
                next = read + PROGRESS_BYTES;
                self.advance(number, read);
            }
            let failed = |problem: &str| DataError::format(file.location(), problem);
            if is_over() {
                is_stopped.set(true);
                return Err(failed("the time is over"));
            }
            index
                .add(found, bytes)
                .ok_or_else(|| failed("the file refers to records that exceed it or are too large"))
        });
        if !is_stopped.get() {
            index.hash = scanned?;
        }
        if let super::Extents::Listed(listed) = &mut index.extents {
            listed.close();
        }
        Ok((index, !is_stopped.get()))
    }
}
