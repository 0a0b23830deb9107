//! [`Format`]: how files hold records, and how they are taken apart.
//!
//! A file is read in three steps that are kept apart, so that each can be done where it is cheapest:
//!
//! 1. [`RecordFile::scan`], once for each file and kept in an index: which [`Extent`]s there are.
//! 2. [`RecordFile::ranges`] tells the bytes that an extent needs. Reading them is somebody else's work, who knows
//!    what else is needed and reads neighbours at once.
//! 3. [`RecordFile::parse`] takes bytes apart, on the thread that decodes them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use ronde_store::StoredObject;

use crate::DataError;

/// Bytes of a file that are read and taken apart together: one record, or some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Count of bytes.
    pub bytes: u64,
    /// Count of records; at least one.
    pub records: u32,
}

/// What one field of a record holds.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Value<'a> {
    /// Bytes: an encoded image, a text.
    Bytes(Cow<'a, [u8]>),
    /// Whole numbers.
    Integers(Cow<'a, [i64]>),
    /// Numbers.
    Floats(Cow<'a, [f32]>),
    /// Numbers of double precision.
    Doubles(Cow<'a, [f64]>),
}

/// The fields of one record that were asked for, by name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Record<'a> {
    /// Names and values, in the order of the file.
    pub fields: Vec<(Cow<'a, str>, Value<'a>)>,
}

impl<'a> Record<'a> {
    /// The value of a field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        let mut fields = self.fields.iter();
        fields.find(|(field, _)| field == name).map(|(_, v)| v)
    }
}

/// A part of a larger piece of memory, shared with its other parts.
#[derive(Debug, Clone)]
pub struct Piece {
    memory: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl Piece {
    /// The bytes `range` of `memory`; `None` where it has less.
    #[must_use]
    pub fn new(memory: Arc<Vec<u8>>, range: Range<usize>) -> Option<Self> {
        (range.start <= range.end && range.end <= memory.len()).then_some(Self { memory, range })
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

impl From<Vec<u8>> for Piece {
    fn from(memory: Vec<u8>) -> Self {
        let range = 0..memory.len();
        let memory = Arc::new(memory);
        Self { memory, range }
    }
}

/// A record that cannot be used, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRecord {
    /// Its file.
    pub file: String,
    /// First byte of it, or of the extent that it lies in.
    pub offset: u64,
    /// Number of it in the file, if it could be counted.
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

/// What a scan found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// An extent that can be read. They come in the order of the file and do not overlap.
    Extent(Extent),
    /// Something that cannot; the scan goes on behind it where that is possible.
    Bad(BadRecord),
}

/// A kind of files.
pub trait Format: fmt::Debug + Send + Sync {
    /// Looks at a file: its header or footer, where the format has one.
    ///
    /// # Errors
    /// A file that cannot be read or is not of this format.
    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError>;
}

/// One file of records.
pub trait RecordFile: Send + Sync {
    /// Goes through the file from its beginning and tells what there is. `found` may end it with an error. Returns a
    /// hash of the content: equal for equal records, wherever the file lies.
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
