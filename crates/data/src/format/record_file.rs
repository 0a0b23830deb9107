//! [`Format`], [`RecordFile`] and [`Records`]: what every file format implements.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ronde_store::StoredObject;

use super::extent::{EvenLayout, Extent};
use super::record::Record;
use super::shared_bytes::SharedBytes;
use crate::bad_record::BadRecord;
use crate::error::DataError;

/// The largest size of one record, and of the unpacked contents of a compressed file: 1 GiB.
pub(crate) const RECORD_BYTES_MAX: u64 = 1 << 30;

/// The largest size of an extent: 4 GiB minus one byte.
pub const EXTENT_BYTES_MAX: u64 = u32::MAX as u64;

/// An item found by a scan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScanItem {
    /// A readable extent. Extents are reported in file order and do not overlap.
    Extent(Extent),
    /// All extents of the file, where a few numbers describe them. No other item is reported then.
    Even(EvenLayout),
    /// An unusable record. The scan continues after it where that is possible.
    Bad {
        /// The record and the cause.
        record: BadRecord,
        /// The number of bytes of the file that cannot be used because of it.
        bytes: u64,
    },
    /// Nothing yet. It is reported during long reads, so that the receiver can report progress and stop the scan.
    Progress,
}

/// The receiver of a scan's items; it may stop the scan with an error.
pub(crate) type ItemSink<'a> = dyn FnMut(ScanItem) -> Result<(), DataError> + 'a;

/// A file format.
pub trait Format: fmt::Debug + Send + Sync {
    /// Returns the format's name with all settings that determine which records a file has. It is part of the key of an
    /// index and of the identity of a data set.
    fn identity(&self) -> String;

    /// Opens a file and reads its header or footer, where the format has one.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not of this format.
    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError>;

    /// Returns whether a file at this location can be of the format. Other files in a folder are left out.
    fn takes(&self, _location: &str) -> bool {
        true
    }

    /// Returns whether the name of a field is its position, as in a table without a heading.
    fn is_position(&self, _field: &str) -> bool {
        false
    }

    /// Returns the names of the classes in the order of their numbers, if the format defines them.
    fn class_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns what the files are, for messages: "a table", "an image".
    fn file_kind(&self) -> &'static str {
        "a file of this format"
    }

    /// Returns whether the content hash covers all bytes of the records, and not only names and lengths.
    fn covers_content(&self) -> bool {
        true
    }

    /// Returns whether each file is one record, so that there is nothing to scan.
    fn is_file_a_record(&self) -> bool {
        false
    }
}

/// An open file of records.
pub trait RecordFile: Send + Sync {
    /// Scans the file from its beginning and reports each item to `found`, which may stop the scan with an error.
    /// Returns a hash of the content that is equal for equal records, independent of the file's location. Each format
    /// documents the contents of the hash.
    ///
    /// Cost: one pass over the file, or less if the format has a directory of its records.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, and any error of `found`.
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError>;

    /// Returns the byte ranges of the file that an extent needs, in ascending order.
    fn ranges(&self, extent: &Extent) -> Vec<Range<u64>> {
        std::iter::once(extent.start..extent.start + extent.bytes).collect()
    }

    /// Returns whether [`RecordFile::parse`] should run right after the bytes were read, while they are in the
    /// processor's cache. This holds where parsing verifies a checksum and copies nothing.
    fn is_checked_at_once(&self, _extent: &Extent) -> bool {
        false
    }

    /// Returns the line, from 1, of a record, for messages about formats of lines; `None` for other formats. `record` is its
    /// number in the file, from 0. Cost: reads the file up to there.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    fn line_of(&self, _record: u64) -> Result<Option<u64>, DataError> {
        Ok(None)
    }

    /// Parses the bytes of the ranges that [`RecordFile::ranges`] returned, one piece per range.
    ///
    /// # Errors
    /// Returns an error if the bytes differ from those that were scanned.
    fn parse(
        &self,
        extent: &Extent,
        pieces: Vec<SharedBytes>,
    ) -> Result<Box<dyn Records>, DataError>;
}

/// The records of one extent.
pub trait Records: Send + Sync {
    /// Returns a record by its number in the extent, from 0.
    ///
    /// # Errors
    /// Returns an error with the record's position if it cannot be used.
    fn record(&self, number: u32) -> Result<Record<'_>, DataError>;
}

/// Returns the error for bytes that differ from those that were scanned.
pub(super) fn changed(file: &str, extent: &Extent, problem: impl fmt::Display) -> DataError {
    let problem = format_args!("the file changed after it was scanned: {problem}");
    BadRecord::new(file, extent.start, None, problem).into()
}
