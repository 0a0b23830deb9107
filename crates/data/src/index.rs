//! [`Index`]: which samples a list of files has, and where each of them lies.
//!
//! Each file is scanned once, by as many threads as asked for, and what was found is kept in a file of a folder
//! (`<key>.index`), so that a scan that was broken off goes on where it ended. The key is made of the file's address,
//! its length, its stamp and the format. Several processes may use a folder at once: they divide the files among each
//! other by locks that end with the process that holds them.
//!
//! Memory: 12 bytes for each extent, and 8 more where extents have several records; nothing for files whose extents
//! follow from a few numbers; 12 bytes for each file that is one record.

mod build;
pub(crate) mod extents;
mod kept;
pub(crate) mod stored;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_store::StoredObject;
use serde::{Deserialize, Serialize};

use crate::DataError;
use crate::format::{BadRecord, Extent, Format};
use extents::Extents;
pub(crate) use kept::key_of;

/// Bad records that are listed; all are counted.
pub const BAD_LISTED_MAX: usize = 100;

/// A file that is to be indexed.
pub trait DataFile: Send + Sync {
    /// Its full address.
    fn location(&self) -> &str;

    /// Its length.
    fn bytes(&self) -> u64;

    /// What changes when its content does: a time, a tag.
    fn stamp(&self) -> &str;

    /// Opens it for reading.
    ///
    /// # Errors
    /// As its store has them.
    fn open(&self) -> Result<Arc<dyn StoredObject>, DataError>;
}

/// What is done about a record that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OnBadRecord {
    /// Training does not start, or ends; the first one is told.
    #[default]
    Error,
    /// It is left out, counted and listed: by the scan, so by all workers alike.
    Skip,
}

/// How files are indexed.
#[derive(Debug, Clone)]
pub struct IndexSettings {
    /// Where what was found is kept; nowhere without it.
    pub folder: Option<PathBuf>,
    /// Threads that scan; at least one.
    pub threads: usize,
    /// What is done about records that cannot be used.
    pub on_bad_record: OnBadRecord,
    /// How long a file that another process scans is waited for before it is scanned here, too; to this a second is
    /// added for every 10 MB.
    pub patience: Duration,
}

impl Default for IndexSettings {
    fn default() -> Self {
        Self {
            folder: None,
            threads: 1,
            on_bad_record: OnBadRecord::Error,
            patience: Duration::from_secs(60),
        }
    }
}

/// How far indexing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IndexProgress {
    /// Files that are done.
    pub files: usize,
    /// Those of them that were scanned by this process.
    pub scanned: usize,
    /// All files.
    pub files_total: usize,
    /// Bytes of the files that are done.
    pub bytes: u64,
    /// Bytes of all files.
    pub bytes_total: u64,
    /// Samples that were found.
    pub samples: u64,
}

/// Where a sample lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Number of the file in the list that was indexed.
    pub file: usize,
    /// The extent of the file.
    pub extent: Extent,
    /// Number of the record in the extent.
    pub record: u32,
}

/// Which samples a list of files has, and where each of them lies. Samples are counted through the files in the order
/// of the list.
#[derive(Debug)]
pub struct Index {
    layout: Layout,
    samples: u64,
    /// Bytes of all extents.
    bytes: u64,
    block_samples: u64,
    identity: String,
    bad: Vec<BadRecord>,
    bad_count: u64,
    warnings: Vec<String>,
}

#[derive(Debug)]
enum Layout {
    /// Files, each with its first sample.
    Files(Vec<(u64, Extents)>),
    /// Files that are one record: their numbers and lengths.
    Whole { files: Vec<u32>, bytes: Vec<u64> },
}

impl Index {
    /// Indexes files. `progress` is called now and then, from any thread.
    ///
    /// Cost: a file that was not scanned before is read once; of the others a few bytes for each extent.
    ///
    /// # Errors
    /// Files that cannot be read or are not of the format, and with [`OnBadRecord::Error`] the first bad record.
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

    /// Count of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Where a sample lies; `None` behind the last one. Cost: two binary searches.
    #[must_use]
    pub fn locate(&self, sample: u64) -> Option<Place> {
        match &self.layout {
            Layout::Files(files) => {
                let file = files
                    .partition_point(|(first, _)| *first <= sample)
                    .checked_sub(1)?;
                let (first, extents) = &files[file];
                let (extent, record) = extents.locate(sample - first)?;
                Some(Place {
                    file,
                    extent,
                    record,
                })
            }
            Layout::Whole { files, bytes } => {
                let sample = usize::try_from(sample).ok()?;
                Some(Place {
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

    /// What the samples are and how they lie together: equal for equal contents in the same order and format, wherever
    /// they lie.
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The first [`BAD_LISTED_MAX`] records that are left out.
    #[must_use]
    pub fn bad(&self) -> &[BadRecord] {
        &self.bad
    }

    /// Count of all records that are left out.
    #[must_use]
    pub fn bad_count(&self) -> u64 {
        self.bad_count
    }

    /// Bytes that a sample takes in the files, on the average; at least one.
    #[must_use]
    pub fn sample_bytes(&self) -> u64 {
        (self.bytes / self.samples.max(1)).max(1)
    }

    /// Samples that are read together at the least: those of the largest extent.
    #[must_use]
    pub fn block_samples(&self) -> u64 {
        self.block_samples
    }

    /// What went wrong without keeping anybody from training: an index that could not be kept.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

#[cfg(test)]
mod tests;
