//! [`CsvLines`]: large files of comma-separated values, one record per line.
//!
//! Fields may be quoted (`"a,b"`, with `""` for a quote) and may then contain line ends. A heading names the fields;
//! without one they are numbered from 0, and numbers are accepted as names in both cases. Blank lines and a byte order
//! mark are ignored. A line whose number of fields differs from the first line's is bad. An extent is about 64 KiB of
//! lines; a file compressed by gzip is one extent, which is unpacked at once (at most 1 GiB).
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
    BadRecord, Extent, FieldSelection, Format, RECORD_BYTES_MAX, Record, RecordFile, Records,
    ScanItem, SharedBytes, Value,
};
use crate::DataError;
use lines::{LineEnd, fields, line, trimmed};

/// The largest size of a line, in bytes.
const LINE_BYTES_MAX: usize = 16 << 20;
/// The largest number of fields of a line.
const FIELDS_MAX: usize = 1 << 20;

/// The format of comma-separated values.
#[derive(Debug, Clone, Default)]
pub struct CsvLines {
    /// `None`: the first line is a heading if none of its fields is a number.
    header: Option<bool>,
    wanted: Arc<FieldSelection>,
}

impl CsvLines {
    /// Creates the format for the fields in `wanted`. `header` states whether the first line is a heading; with `None` it
    /// is one if none of its fields is a number.
    #[must_use]
    pub fn new(header: Option<bool>, wanted: FieldSelection) -> Self {
        Self {
            header,
            wanted: Arc::new(wanted),
        }
    }
}

/// The columns of a file, as its first line defines them.
#[derive(Debug, Clone)]
struct Heading {
    /// Bytes before the first record.
    bytes: u64,
    /// Names of all columns; their numbers where there is no heading.
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
            FieldSelection::All => ((0..heading.names.len()).collect(), heading.names.clone()),
            FieldSelection::Fields(fields) => {
                columns(fields.names(), &heading.names).into_iter().unzip()
            }
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

type ByteStream = Box<dyn Read + Send>;

fn stream(file: &Arc<dyn StoredObject>, is_packed: bool) -> ByteStream {
    let plain = ObjectReader::new(file.clone(), 0);
    match is_packed {
        false => Box::new(plain),
        true => {
            let buffered = std::io::BufReader::with_capacity(1 << 18, plain);
            Box::new(flate2::read::MultiGzDecoder::new(buffered))
        }
    }
}

/// Returns position and requested name of the wanted columns, which are found by name, else by number.
fn columns(wanted: &[String], names: &[String]) -> Vec<(usize, String)> {
    let numbers: HashMap<&str, usize> = names.iter().map(String::as_str).zip(0..).collect();
    let position = |field: &String| {
        let number = || {
            field
                .parse()
                .ok()
                .filter(|&number: &usize| number < names.len())
        };
        let position = numbers.get(field.as_str()).copied().or_else(number);
        position.map(|position| (position, field.clone()))
    };
    wanted.iter().filter_map(position).collect()
}

struct CsvFile {
    file: Arc<dyn StoredObject>,
    is_packed: bool,
    heading: Heading,
    /// Positions of the wanted columns, in the order requested.
    columns: Vec<usize>,
    names: Arc<Vec<String>>,
}

impl RecordFile for CsvFile {
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        scan::scan(self, found)
    }

    fn parse(
        &self,
        extent: &Extent,
        pieces: Vec<SharedBytes>,
    ) -> Result<Box<dyn Records>, DataError> {
        let file = self.file.location();
        let Some(piece) = pieces.into_iter().next() else {
            return Err(changed(file, extent, "no bytes were passed"));
        };
        let (piece, first) = match self.is_packed {
            true => {
                let unpacked = unpack(file, piece.as_ref(), RECORD_BYTES_MAX)?;
                (SharedBytes::from(unpacked), self.heading.bytes as usize)
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
                LineEnd::Whole { bytes, fields } => (bytes, fields),
                LineEnd::Open {
                    fields,
                    is_quoted: false,
                } => (bytes.len() - at, fields),
                LineEnd::Open { .. } => break,
            };
            let text = trimmed(&bytes[at..at + length]);
            if length <= LINE_BYTES_MAX && !text.is_empty() && count == self.heading.names.len() {
                lines.push(at..at + text.len());
            }
            at += length;
        }
        if lines.len() as u64 != u64::from(extent.records) {
            let problem = format!("expected {} lines, found {}", extent.records, lines.len());
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
    piece: SharedBytes,
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
            problem: format!("the extent has no line {number}"),
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
