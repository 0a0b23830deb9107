//! [`CsvLines`]: large files of comma-separated values, one record per line.
//!
//! Fields may be quoted (`"a,b"`, with `""` for a quote) and may then contain line ends; a quote inside an unquoted field is
//! an ordinary character. Lines end in LF, CR LF or CR. A heading names the fields; without one they are numbered from 0,
//! and numbers are accepted as names in both cases. Blank lines and a byte order mark are ignored, and so are spaces
//! around the names of a heading. A line whose number of fields differs from the first line's is bad. An extent is about
//! 64 KiB of lines; a file compressed by gzip is one extent, which is unpacked at once (at most 1 GiB).
//!
//! The content hash covers all bytes.
//!
//! Source: RFC 4180, through the `csv-core` crate. On one core, lines with their fields are split at 0.57 GB/s (short
//! numbers) to 1.1 GB/s (quoted text). Our own scanner, which it replaced, reached 0.69 and 0.62 GB/s.

mod heading;
mod lines;
mod scan;

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

use heading::{Heading, HeadingError};
use lines::{LineSplitter, SplitOutcome};
use ronde_store::StoredObject;

use super::object::{ObjectReader, is_gzip, unpack};
use super::record_file::changed;
use super::{
    BadRecord, Extent, FieldSelection, Format, RECORD_BYTES_MAX, Record, RecordFile, Records,
    ScanItem, SharedBytes, Value,
};
use crate::error::DataError;
use crate::names::{positions, standard_names};

/// The largest size of a line, in bytes.
const LINE_BYTES_MAX: usize = 16 << 20;
/// The largest number of fields of a line.
const FIELDS_MAX: usize = 1 << 20;

/// The format of comma-separated values.
#[derive(Debug, Clone, Default)]
pub struct CsvLines {
    /// `None`: the first line is a heading if none of its fields is a number; it is refused if that is unclear.
    header: Option<bool>,
    /// The number of columns of a table; `None` for the columns of the first line.
    columns: Option<usize>,
    /// The heading of another table, in whose order the columns of a table are; empty: in the order of its lines.
    order: Arc<[String]>,
    selection: Arc<FieldSelection>,
}

impl CsvLines {
    /// Creates the format for the fields in `selection`. `header` states whether the first line is a heading; with `None` it
    /// is one if none of its fields is a number, and opening a file fails if its first line may be both.
    #[must_use]
    pub fn new(header: Option<bool>, selection: FieldSelection) -> Self {
        Self {
            header,
            columns: None,
            order: Arc::default(),
            selection: Arc::new(selection),
        }
    }

    /// Creates the format for lines of `columns` fields. They are named `column 1` and so on, whatever a heading calls them.
    /// Lines of white space are blank.
    pub(crate) fn table(columns: usize, header: Option<bool>) -> Self {
        Self {
            header,
            columns: Some(columns),
            order: Arc::default(),
            selection: Arc::new(FieldSelection::All),
        }
    }

    /// Returns the same format with the columns of a table in the order of the heading of another one.
    pub(crate) fn in_order_of(&self, heading: &[String]) -> Self {
        Self {
            order: heading.into(),
            ..self.clone()
        }
    }

    /// Returns the names in the heading of a file, in their standard form; none if it has no heading, or one in which a name is
    /// repeated.
    pub(crate) fn heading(&self, file: &Arc<dyn StoredObject>) -> Result<Vec<String>, DataError> {
        let mut magic = vec![0; file.bytes().min(3) as usize];
        file.read_at(0, &mut magic)?;
        let heading = heading::heading(file, is_gzip(&magic), self)?;
        let names = standard_names(&heading.names);
        let is_usable = heading.has_names && positions(&names).is_ok();
        Ok(if is_usable { names } else { Vec::new() })
    }

    /// Returns the names of the columns of a table whose heading has these names.
    fn table_names(&self, heading: &Heading) -> Result<Vec<String>, HeadingError> {
        let names = standard_names(&heading.names);
        let is_named = heading.has_names && positions(&names).is_ok();
        if self.order.is_empty() || !is_named {
            return Ok(self.column_names());
        }
        let order = positions(&self.order)?;
        let position = |name: &String| order.get(name).map(|&column| column as usize);
        let columns: Option<Vec<usize>> = names.iter().map(position).collect();
        let columns = columns.ok_or_else(|| HeadingError::OtherColumns {
            columns: names,
            training: self.order.to_vec(),
        })?;
        Ok(columns.into_iter().map(column_name).collect())
    }

    /// Returns the names of the columns of a table.
    pub(crate) fn column_names(&self) -> Vec<String> {
        (0..self.columns.unwrap_or_default())
            .map(column_name)
            .collect()
    }
}

/// Returns the name of a column of a table.
fn column_name(index: usize) -> String {
    format!("column {}", index + 1)
}

impl Format for CsvLines {
    fn identity(&self) -> String {
        let header = match self.header {
            None => "heading if it looks so",
            Some(true) => "heading",
            Some(false) => "no heading",
        };
        match self.columns {
            None => format!("csv version 2, {header}"),
            Some(columns) => format!("csv version 2, table of {columns} columns"),
        }
    }

    fn is_position(&self, field: &str) -> bool {
        let is_number = field.bytes().all(|byte| byte.is_ascii_digit());
        self.columns.is_some() || (is_number && self.header != Some(true))
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let mut magic = vec![0; file.bytes().min(3) as usize];
        file.read_at(0, &mut magic)?;
        let is_packed = is_gzip(&magic);
        let mut heading = heading::heading(&file, is_packed, self)?;
        if let FieldSelection::Fields(fields) = &*self.selection {
            heading.check(fields.names(), file.location())?;
        }
        if self.columns.is_some() && !heading.names.is_empty() {
            heading.names = self
                .table_names(&heading)
                .map_err(|problem| DataError::format(file.location(), problem))?;
        }
        let (columns, names) = match &*self.selection {
            FieldSelection::All => ((0..heading.names.len()).collect(), heading.names.clone()),
            FieldSelection::Fields(fields) => {
                columns(fields.names(), &heading.names).into_iter().unzip()
            }
        };
        Ok(Box::new(CsvFile {
            file,
            is_packed,
            is_table: self.columns.is_some(),
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

/// Returns position and requested name of the requested columns, which are found by name, else by number.
fn columns(selection: &[String], names: &[String]) -> Vec<(usize, String)> {
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
    selection.iter().filter_map(position).collect()
}

struct CsvFile {
    file: Arc<dyn StoredObject>,
    is_packed: bool,
    is_table: bool,
    heading: Heading,
    /// Positions of the requested columns, in the order of the request.
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

    fn line_of(&self, record: u64) -> Result<Option<u64>, DataError> {
        scan::line_of(self, record).map(Some)
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
        let bytes = piece.as_ref().get(first..).unwrap_or_default();
        let mut lines = CsvRecords {
            file: file.to_owned(),
            start: extent.start,
            text: Vec::with_capacity(bytes.len()),
            ends: Vec::new(),
            records: 0,
            names: self.names.clone(),
        };
        lines.fill(bytes, &self.columns, self.heading.names.len());
        if lines.records != extent.records {
            let problem = format!("expected {} lines, found {}", extent.records, lines.records);
            return Err(changed(file, extent, problem));
        }
        Ok(Box::new(lines))
    }
}

struct CsvRecords {
    file: String,
    start: u64,
    /// The requested fields of all records, one after the other, and their ends.
    text: Vec<u8>,
    ends: Vec<u32>,
    records: u32,
    names: Arc<Vec<String>>,
}

impl CsvRecords {
    /// Adds the requested columns of all lines that the scan found usable.
    fn fill(&mut self, bytes: &[u8], columns: &[usize], fields: usize) {
        let mut splitter = LineSplitter::new();
        let mut at = 0;
        loop {
            let (used, split) = splitter.split(&bytes[at..]);
            at += used;
            match split {
                SplitOutcome::NeedsMore => {}
                SplitOutcome::Line { .. } if splitter.fields() == fields => {
                    for &column in columns {
                        let field = splitter.field(column).unwrap_or_default();
                        self.text.extend_from_slice(field);
                        self.ends.push(self.text.len() as u32);
                    }
                    self.records += 1;
                }
                SplitOutcome::Line { .. } => {}
                SplitOutcome::Lost(_) | SplitOutcome::End => return,
            }
        }
    }
}

impl Records for CsvRecords {
    fn record(&self, number: u32) -> Result<Record<'_>, DataError> {
        if number >= self.records {
            return Err(DataError::Record(BadRecord::new(
                self.file.clone(),
                self.start,
                None,
                format_args!("the extent has no line {number}"),
            )));
        }
        let first = number as usize * self.names.len();
        let mut start = first.checked_sub(1).map_or(0, |before| self.ends[before]) as usize;
        let mut record = Record {
            fields: Vec::with_capacity(self.names.len()),
        };
        for (name, &end) in self.names.iter().zip(&self.ends[first..]) {
            let value = Cow::Borrowed(&self.text[start..end as usize]);
            record
                .fields
                .push((name.as_str().into(), Value::Bytes(value)));
            start = end as usize;
        }
        Ok(record)
    }
}

#[cfg(test)]
mod tests;
