//! [`Index`]: the samples in a list of files, and the location of each of them.
//!
//! Each file is scanned once, by as many threads as requested, and the result is stored in a folder (`<key>.index`), so
//! that an interrupted scan resumes where it ended. The key is a hash of the file's address, length, stamp and format.
//! Several processes may use a folder at once: they divide the files by locks, which are released when a process ends.
//!
//! Memory: 12 bytes per extent, and 8 more where extents have several records; nothing for files whose extents follow
//! from a few numbers; 12 bytes per file that is one record.

mod build;
mod counted;
pub(crate) mod extents;
pub(crate) mod file_index;
mod index_file;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use extents::Extents;
pub(crate) use index_file::key_of;
use ronde_store::StoredObject;
use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::format::{BadRecord, Extent, Format};
use crate::read_limit::ReadLimit;

/// The largest number of bad records that are listed; all are counted.
pub const BAD_LISTED_MAX: usize = 100;

/// A file to be indexed.
pub trait DataFile: Send + Sync {
    /// Returns the full address.
    fn location(&self) -> &str;

    /// Returns the length in bytes.
    fn bytes(&self) -> u64;

    /// Returns a text that changes when the content does, such as a modification time or an ETag.
    fn stamp(&self) -> &str;

    /// Opens the file for reading.
    ///
    /// # Errors
    /// Returns the errors of the file's store.
    fn open(&self) -> Result<Arc<dyn StoredObject>, DataError>;
}

/// The reaction to a record that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnBadRecord {
    /// Training does not start, or ends, with the first such record as the error.
    #[default]
    Error,
    /// The record is skipped, counted and listed. The scan decides, so all workers skip the same records.
    Skip,
}

/// The settings of indexing.
#[derive(Debug, Clone)]
pub struct IndexSettings {
    /// The folder where indexes are stored; without it they are not stored.
    pub folder: Option<PathBuf>,
    /// The number of threads that scan; at least one.
    pub threads: usize,
    /// The reaction to records that cannot be used.
    pub on_bad_record: OnBadRecord,
    /// How long to wait for a file that another process scans, before it is scanned here, too. One second is added for
    /// every 10 MB.
    pub claim_timeout: Duration,
    /// How much is read to check files; absent for all. The index of a file that is not scanned to its end is not stored.
    pub limit: Option<Arc<ReadLimit>>,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self {
            folder: None,
            threads: 1,
            on_bad_record: OnBadRecord::Error,
            claim_timeout: Duration::from_secs(60),
            limit: None,
        }
    }
}

/// The progress of indexing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexProgress {
    /// Completed files.
    pub files: usize,
    /// Completed files that were scanned by this process.
    pub scanned: usize,
    /// The number of all files.
    pub files_total: usize,
    /// Bytes of the completed files, and those read so far of the others.
    pub bytes: u64,
    /// Bytes of all files.
    pub bytes_total: u64,
    /// Samples found so far.
    pub samples: u64,
}

/// The location of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleLocation {
    /// Index of the file in the list of files.
    pub file: usize,
    /// The extent in the file.
    pub extent: Extent,
    /// Number of the record in the extent.
    pub record: u32,
}

/// The samples in a list of files, and the location of each of them. Samples are numbered consecutively through the
/// files in the order of the list.
#[derive(Debug)]
pub struct Index {
    layout: IndexLayout,
    samples: u64,
    /// Total size of all extents.
    bytes: u64,
    block_samples: u64,
    identity: String,
    bad: Vec<BadRecord>,
    skipped: SkippedRecords,
    warnings: Vec<String>,
    /// The content hash of each file; empty if files are records.
    file_hashes: Vec<[u8; 32]>,
    /// The number of files that were not scanned to their end, because a limit was reached.
    unfinished: usize,
}

/// Number and size of the records that are skipped because they cannot be used.
///
/// Both matter: damage that makes the rest of a file unreadable counts as one record, but may be most of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SkippedRecords {
    /// The number of bad records that were found.
    pub records: u64,
    /// The number of bytes of the files that cannot be used because of them.
    pub bytes: u64,
}

#[derive(Debug)]
enum IndexLayout {
    /// Files, each with the number of its first sample.
    Files(Vec<(u64, Extents)>),
    /// Files that are one record each: their indexes and lengths.
    Whole { files: Vec<u32>, bytes: Vec<u64> },
}

impl Index {
    /// Indexes files. `progress` is called from time to time, from any thread.
    ///
    /// Cost: a file without a stored index is read once; for the others a few bytes per extent are read.
    ///
    /// # Errors
    /// Returns an error for files that cannot be read or are not of the format, and with [`OnBadRecord::Error`] for the
    /// first bad record.
    pub fn build(
        files: &[Arc<dyn DataFile>],
        format: &dyn Format,
        settings: &IndexSettings,
        progress: &(dyn Fn(IndexProgress) + Sync),
    ) -> Result<Self, DataError> {
        match format.is_file_a_record() {
            true => build::whole(files, format, settings),
            false => build::scanned(files, format, settings, progress),
        }
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the index of a sample's file, and the number of its record there; `None` past the last sample.
    #[must_use]
    pub fn record_of(&self, sample: u64) -> Option<(usize, u64)> {
        let place = self.locate(sample)?;
        let first = match &self.layout {
            IndexLayout::Files(files) => files.get(place.file)?.0,
            IndexLayout::Whole { .. } => sample,
        };
        Some((place.file, sample - first))
    }

    /// Returns the location of a sample; `None` past the last one. Cost: two binary searches.
    #[must_use]
    pub fn locate(&self, sample: u64) -> Option<SampleLocation> {
        match &self.layout {
            IndexLayout::Files(files) => {
                let file = files
                    .partition_point(|(first, _)| *first <= sample)
                    .checked_sub(1)?;
                let (first, extents) = &files[file];
                let (extent, record) = extents.locate(sample - first)?;
                Some(SampleLocation {
                    file,
                    extent,
                    record,
                })
            }
            IndexLayout::Whole { files, bytes } => {
                let sample = usize::try_from(sample).ok()?;
                Some(SampleLocation {
                    file: *files.get(sample)? as usize,
                    extent: Extent {
                        start: 0,
                        bytes: bytes[sample],
                        records: 1,
                    },
                    record: 0,
                })
            }
        }
    }

    /// Returns a text that identifies samples and their layout: equal for equal contents in the same order and format,
    /// independent of the location.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the content hash of each file, in the order of the list; empty for formats whose files are records.
    pub(crate) fn file_hashes(&self) -> &[[u8; 32]] {
        &self.file_hashes
    }

    /// Returns the first [`BAD_LISTED_MAX`] skipped records.
    #[must_use]
    pub fn bad(&self) -> &[BadRecord] {
        &self.bad
    }

    /// Returns the number of skipped records.
    #[must_use]
    pub fn bad_count(&self) -> u64 {
        self.skipped.records
    }

    /// Returns number and size of the skipped records.
    #[must_use]
    pub fn skipped(&self) -> SkippedRecords {
        self.skipped
    }

    /// Returns the number of files that were not scanned to their end, because [`IndexSettings::limit`] was reached.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        self.unfinished
    }

    /// Returns the average size of a sample in the files, in bytes; at least one.
    #[must_use]
    pub fn sample_bytes(&self) -> u64 {
        (self.bytes / self.samples.max(1)).max(1)
    }

    /// Returns the number of samples in the largest extent, the largest unit that is read at once.
    #[must_use]
    pub fn block_samples(&self) -> u64 {
        self.block_samples
    }

    /// Returns problems that do not prevent training, such as an index that could not be stored.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

#[cfg(test)]
mod tests;
