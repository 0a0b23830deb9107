//! [`CsvLines`]: large files of comma-separated values, a record in each line.
//!
//! Fields may be quoted (`"a,b"`, `""` for a quote), also with line ends in them. A heading gives the fields their names,
//! without one they are numbered from 0; numbers name them in any case. Blank lines and a byte order mark are passed over;
//! a line with another count of fields than the first one is bad. An extent is about 64 KiB of lines; a file through gzip
//! is one extent, unpacked at once (1 GiB at most).
//!
//! The content hash covers all bytes.
//!
//! Source: RFC 4180.

mod lines;
mod scan;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use ronde_store::StoredObject;

use super::object::{ObjectReader, is_gzip, unpack};
use super::tfrecord::changed;
use super::{
    BadRecord, Extent, Format, Found, Piece, RECORD_BYTES_MAX, Record, RecordFile, Records, Value,
    Wanted,
};
use crate::DataError;
use lines::{End, fields, line, trimmed};

/// Most bytes of a line.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Most fields of a line.
const FIELDS_MAX: usize = 1 << 20;

/// Files of comma-separated values.
#[derive(Debug, Clone, Default)]
pub struct CsvLines {
    /// `None`: the first line is a heading when none of its fields is a number.
    header: Option<bool>,
    wanted: Arc<Wanted>,
}

impl CsvLines {
    /// Files of which these fields are wanted. Whether the first line is a heading is told, or seen: it is one when none of
    /// its fields is a number.
    #[must_use]
    pub fn new(header: Option<bool>, wanted: Wanted) -> Self {
        Self {
            header,
            wanted: Arc::new(wanted),
        }
    }
}

/// What the first line of a file tells.
#[derive(Debug, Clone)]
struct Heading {
    /// Bytes before the first record.
    bytes: u64,
    /// Names of all columns; numbers where there is no heading.
    names: Vec<String>,
}

impl Format for CsvLines {
    fn identity(&self) -> String {
        let header = match self.header {
            None => "heading if it looks so",
            Some(true) => "heading",
            Some(false) => "no heading",
        };
        format!("csv version 1, {header}")
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let mut magic = vec![0; file.bytes().min(3) as usize];
        file.read_at(0, &mut magic)?;
        let is_packed = is_gzip(&magic);
        let heading = scan::heading(&file, is_packed, self.header)?;
        let (columns, names) = match &*self.wanted {
            Wanted::All => ((0..heading.names.len()).collect(), heading.names.clone()),
            Wanted::Fields(fields) => columns(fields.names(), &heading.names).into_iter().unzip(),
        };
        Ok(Box::new(CsvFile {
            file,
            is_packed,
            heading,
            columns,
            names: Arc::new(names),
        }))
    }
}

type Stream = Box<dyn Read + Send>;

fn stream(file: &Arc<dyn StoredObject>, is_packed: bool) -> Stream {
    let plain = ObjectReader::new(file.clone(), 0);
    match is_packed {
        false => Box::new(plain),
        true => {
            let buffered = std::io::BufReader::with_capacity(1 << 18, plain);
            Box::new(flate2::read::MultiGzDecoder::new(buffered))
        }
    }
}

/// Place and wanted name of the columns that are wanted: by their names in the heading, else by their numbers.
fn columns(wanted: &[String], names: &[String]) -> Vec<(usize, String)> {
    let numbers: HashMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
    let place = |field: &String| {
        let number = || {
            field
                .parse()
                .ok()
                .filter(|&number: &usize| number < names.len())
        };
        let place = numbers.get(field.as_str()).copied().or_else(number);
        place.map(|place| (place, field.clone()))
    };
    wanted.iter().filter_map(place).collect()
}

struct CsvFile {
    file: Arc<dyn StoredObject>,
    is_packed: bool,
    heading: Heading,
    /// Places of the wanted columns, in the order in which they are wanted.
    columns: Vec<usize>,
    names: Arc<Vec<String>>,
}

impl RecordFile for CsvFile {
    fn scan(
        &self,
        found: &mut dyn FnMut(Found) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        scan::scan(self, found)
    }

    fn parse(&self, extent: &Extent, pieces: Vec<Piece>) -> Result<Box<dyn Records>, DataError> {
        let file = self.file.location();
        let Some(piece) = pieces.into_iter().next() else {
            return Err(changed(file, extent, "no bytes were given"));
        };
        let (piece, first) = match self.is_packed {
            true => {
                let unpacked = unpack(file, piece.as_ref(), RECORD_BYTES_MAX)?;
                (Piece::from(unpacked), self.heading.bytes as usize)
            }
            false => (piece, 0),
        };
        let bytes = piece.as_ref();
        let (mut lines, mut at) = (
            Vec::with_capacity(extent.records.min(1 << 16) as usize),
            first,
        );
        while at < bytes.len() {
            let (length, count) = match line(&bytes[at..]) {
                End::Whole { bytes, fields } => (bytes, fields),
                End::Open {
                    fields,
                    is_quoted: false,
                } => (bytes.len() - at, fields),
                End::Open { .. } => break,
            };
            let text = trimmed(&bytes[at..at + length]);
            if length <= LINE_BYTES_MAX && !text.is_empty() && count == self.heading.names.len() {
                lines.push(at..at + text.len());
            }
            at += length;
        }
        if lines.len() as u64 != u64::from(extent.records) {
            let problem = format!("{} lines are there, {} were", lines.len(), extent.records);
            return Err(changed(file, extent, &problem));
        }
        Ok(Box::new(CsvRecords {
            file: file.to_owned(),
            start: extent.start,
            piece,
            lines,
            columns: self.columns.clone(),
            names: self.names.clone(),
        }))
    }
}

struct CsvRecords {
    file: String,
    start: u64,
    piece: Piece,
    lines: Vec<std::ops::Range<usize>>,
    columns: Vec<usize>,
    names: Arc<Vec<String>>,
}

impl Records for CsvRecords {
    fn record(&self, number: u32) -> Result<Record<'_>, DataError> {
        let line = self.lines.get(number as usize).ok_or_else(|| BadRecord {
            file: self.file.clone(),
            offset: self.start,
            record: None,
            problem: format!("its extent has no line {number}"),
        })?;
        let values: Vec<Cow<'_, [u8]>> = fields(&self.piece.as_ref()[line.clone()]).collect();
        let mut record = Record {
            fields: Vec::with_capacity(self.columns.len()),
        };
        for (name, &column) in self.names.iter().zip(&self.columns) {
            let value = values.get(column).cloned().unwrap_or_default();
            record
                .fields
                .push((name.as_str().into(), Value::Bytes(value)));
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests;
