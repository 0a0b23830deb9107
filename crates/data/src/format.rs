//! [`Format`]: how files hold records, and how they are taken apart.
//!
//! A file is read in three steps that are kept apart, so that each can be done where it is cheapest:
//!
//! 1. [`RecordFile::scan`], once for each file and kept in an index: which [`Extent`]s there are.
//! 2. [`RecordFile::ranges`] tells the bytes that an extent needs. Reading them is somebody else's work, who knows
//!    what else is needed and reads neighbours at once.
//! 3. [`RecordFile::parse`] takes bytes apart, on the thread that decodes them or on the one that read them.

mod choice;
mod csv_lines;
mod extent;
mod folder;
pub mod npy;
pub(crate) mod object;
#[cfg(feature = "full")]
mod parquet;
mod piece;
mod record;
#[cfg(test)]
pub(crate) mod testing;
mod text;
pub mod tfrecord;
mod tokens;
mod wanted;
pub mod webdataset;
mod window;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ronde_store::StoredObject;

use crate::DataError;
pub use choice::{FormatConfig, FormatKind, FormatTable};
pub use csv_lines::CsvLines;
pub use extent::{Even, Extent};
pub use folder::ImageFolder;
pub use npy::{Npy, Npz};
#[cfg(feature = "full")]
pub use parquet::Parquet;
pub use piece::Piece;
pub use record::{NumberType, Record, Value};
pub(crate) use text::Text;
pub use tfrecord::TfRecord;
pub use tokens::Tokens;
pub use wanted::{Wanted, WantedFields};
pub use webdataset::WebDataset;

/// Most bytes of one record, and of a compressed file that is taken apart as a whole, unpacked: 1 GiB.
pub(crate) const RECORD_BYTES_MAX: u64 = 1 << 30;

/// Most bytes of an extent: 4 GiB less one.
pub const EXTENT_BYTES_MAX: u64 = u32::MAX as u64;

/// A record that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRecord {
    /// Its file.
    pub file: String,
    /// First byte of it, or of the extent that it lies in; of compressed files in what they hold.
    pub offset: u64,
    /// Number of it in the file, from 0, if it could be counted.
    pub record: Option<u64>,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", self.file)?;
        if let Some(record) = self.record {
            write!(f, "record {record}, ")?;
        }
        write!(f, "at byte {}: {}", self.offset, self.problem)
    }
}

impl From<BadRecord> for DataError {
    fn from(bad: BadRecord) -> Self {
        Self::Record(bad)
    }
}

/// What a scan found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// An extent that can be read. They come in the order of the file and do not overlap.
    Extent(Extent),
    /// All extents of the file, where they follow from a few numbers. Nothing else is found then.
    Even(Even),
    /// Something that cannot be used; the scan goes on behind it where that is possible.
    Bad(BadRecord),
}

/// A kind of files.
pub trait Format: fmt::Debug + Send + Sync {
    /// Its name, with the settings on which it depends which records a file has. Part of the key of an index and of the
    /// identity of a set.
    fn identity(&self) -> String;

    /// Looks at a file: its header or footer, where the format has one.
    ///
    /// # Errors
    /// A file that cannot be read or is not of this format.
    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError>;

    /// Whether a file with this address can be of the format; others in a folder are passed over.
    fn takes(&self, _location: &str) -> bool {
        true
    }

    /// Whether each file is one record, so that there is nothing to scan.
    fn is_file_a_record(&self) -> bool {
        false
    }
}

/// One file of records.
pub trait RecordFile: Send + Sync {
    /// Goes through the file from its beginning and tells what there is. `found` may end it with an error. Returns a
    /// hash of the content: equal for equal records, wherever the file lies. What it covers is said by each format.
    ///
    /// Cost: one pass over the file, or less where it tells by itself what it holds.
    ///
    /// # Errors
    /// A file that cannot be read, or what `found` said.
    fn scan(
        &self,
        found: &mut dyn FnMut(Found) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError>;

    /// The bytes of the file that an extent needs, in rising order.
    fn ranges(&self, extent: &Extent) -> Vec<Range<u64>> {
        std::iter::once(extent.start..extent.start + extent.bytes).collect()
    }

    /// Whether [`RecordFile::parse`] is best done right after its bytes were read, while they are in the processor's cache:
    /// where it compares them with a sum, and copies nothing.
    fn is_checked_at_once(&self, _extent: &Extent) -> bool {
        false
    }

    /// Makes records out of the bytes that [`RecordFile::ranges`] told, one piece for each range.
    ///
    /// # Errors
    /// Bytes that are not what the scan found.
    fn parse(&self, extent: &Extent, pieces: Vec<Piece>) -> Result<Box<dyn Records>, DataError>;
}

/// The records of one extent.
pub trait Records: Send + Sync {
    /// A record, counted from 0 in the extent.
    ///
    /// # Errors
    /// A record that cannot be used, with its place.
    fn record(&self, number: u32) -> Result<Record<'_>, DataError>;
}
