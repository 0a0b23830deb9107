//! [`BadRecord`]: a record that cannot be used.

use std::fmt;

/// A record that cannot be used, with the cause.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadRecord {
    /// The file's location.
    pub file: String,
    /// The offset of its first byte, or of the extent that contains it. In compressed files, an offset in the unpacked
    /// bytes.
    pub offset: u64,
    /// Its number in the file, from 0, if known.
    pub record: Option<u64>,
    /// The cause.
    pub problem: String,
}

impl BadRecord {
    /// Creates the description of a record.
    pub(crate) fn new(
        file: impl Into<String>,
        offset: u64,
        record: Option<u64>,
        problem: impl fmt::Display,
    ) -> Self {
        Self {
            file: file.into(),
            offset,
            record,
            problem: problem.to_string(),
        }
    }
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
