//! The heading of a file of comma-separated values: its first line, unless that is a record.
//!
//! Without a setting, a first line without numbers is a heading. Some lines can be both, and are refused: column numbers, as
//! pandas writes them for columns without names, and texts above texts.

use std::collections::HashSet;
use std::sync::Arc;

use ronde_core::NameList;
use ronde_store::StoredObject;

use super::super::object::failed;
use super::super::window::ReadWindow;
use super::scan::{LineReader, NextLine};
use super::{CsvLines, stream};
use crate::error::DataError;
use crate::names::NameError;

/// The number of bytes that are checked for other encodings.
const ENCODING_BYTES: usize = 64;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
/// The number of lines that the first one is compared with.
const LINES_COMPARED: usize = 10;
/// The smallest number of lines that show that a column has fractions.
const LINES_MIN: usize = 3;
/// The largest number of fields of the first line in a message.
const FIELDS_SHOWN: usize = 6;

/// The reason why a heading cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum HeadingError {
    #[error("UTF-16 and UTF-32 are not supported: convert the file to UTF-8")]
    Encoding,
    #[error("two columns of the heading have the name {name:?}")]
    SameName { name: String },
    #[error(
        "line 1: expected {expected} columns (the features and the target), but the line has {found}"
    )]
    ColumnCount { expected: usize, found: usize },
    #[error(
        "its columns {} are not those of the training file, {}",
        NameList(columns),
        NameList(training)
    )]
    OtherColumns {
        columns: Vec<String>,
        training: Vec<String>,
    },
    #[error(transparent)]
    Names(#[from] NameError),
}

/// The columns of a file, as its first line defines them.
#[derive(Debug, Clone)]
pub(super) struct Heading {
    /// Bytes before the first record.
    pub(super) bytes: u64,
    /// Names of all columns; their numbers without a heading.
    pub(super) names: Vec<String>,
    /// Whether they are names.
    pub(super) has_names: bool,
    /// Whether the first line was taken for a heading, although it may be a record of texts.
    is_guess: bool,
}

impl Heading {
    /// Refuses a heading that may be a record, if none of the requested columns is found by its name.
    pub(super) fn check(&self, requested: &[String], file: &str) -> Result<(), DataError> {
        let is_named = |column: &String| self.names.contains(column);
        match self.is_guess && !requested.is_empty() && !requested.iter().any(is_named) {
            true => Err(unclear(file, &self.names, false)),
            false => Ok(()),
        }
    }
}

/// Returns the error for a first line that can be a heading or a record.
fn unclear(file: &str, texts: &[String], is_table: bool) -> DataError {
    let mut shown = texts[..texts.len().min(FIELDS_SHOWN)].join(",");
    if texts.len() > FIELDS_SHOWN {
        shown.push_str(",..");
    }
    let setting = match is_table {
        true => "data.header = true",
        false => "data.format = { kind = \"csv\", header = true }",
    };
    DataError::format(
        file,
        format_args!(
            "line 1, `{shown}`, may be a heading or a sample\n  help: set {setting} if it is a heading, or false if it is \
             a sample"
        ),
    )
}

/// Reads the columns from the first line.
pub(super) fn heading(
    file: &Arc<dyn StoredObject>,
    is_packed: bool,
    format: &CsvLines,
) -> Result<Heading, DataError> {
    let location = file.location();
    let refused = |problem: HeadingError| DataError::format(location, problem);
    let mut window = ReadWindow::new(stream(file, is_packed));
    let read = |error| failed(location, 0, error);
    let start = window.look(ENCODING_BYTES).map_err(read)?;
    check_encoding(start).map_err(refused)?;
    let mark = match start.starts_with(BYTE_ORDER_MARK) {
        true => BYTE_ORDER_MARK.len(),
        false => 0,
    };
    window.advance(mark);
    let mut lines = LineReader::new(window);
    let Some((offset, bytes)) = first_line(&mut lines, format, location)? else {
        return Ok(Heading {
            bytes: lines.window.position(),
            names: Vec::new(),
            has_names: false,
            is_guess: false,
        });
    };
    let texts = fields(&lines);
    if let Some(columns) = format.columns.filter(|columns| *columns != texts.len()) {
        return Err(refused(HeadingError::ColumnCount {
            expected: columns,
            found: texts.len(),
        }));
    }
    let inferred = FirstLine::of(&texts);
    let is_heading = format.header.unwrap_or(inferred == FirstLine::Names);
    let is_open = format.header.is_none();
    if is_open && inferred == FirstLine::ColumnNumbers {
        return Err(unclear(location, &texts, format.columns.is_some()));
    }
    let mut is_guess = false;
    if is_open && inferred != FirstLine::Record {
        let below = some_lines(&mut lines, texts.len()).map_err(read)?;
        if inferred == FirstLine::Integers && has_fractions(&below) {
            return Err(unclear(location, &texts, format.columns.is_some()));
        }
        is_guess =
            is_heading && !below.is_empty() && below.iter().flatten().all(|text| is_name(text));
    }
    if is_heading && format.columns.is_none() {
        check_names(&texts).map_err(refused)?;
    }
    Ok(match is_heading {
        true => Heading {
            bytes: offset + bytes,
            names: texts,
            has_names: true,
            is_guess,
        },
        false => Heading {
            bytes: offset,
            names: (0..texts.len()).map(|column| column.to_string()).collect(),
            has_names: false,
            is_guess,
        },
    })
}

/// Reads the first line that is not blank; returns its offset and its bytes, or `None` at the end of the file.
fn first_line(
    lines: &mut LineReader,
    format: &CsvLines,
    location: &str,
) -> Result<Option<(u64, u64)>, DataError> {
    loop {
        let next = lines.next(|_| {});
        match next.map_err(|error| failed(location, 0, error))? {
            NextLine::Line { .. } if format.columns.is_some() && lines.is_white() => {}
            NextLine::Line { offset, bytes } => return Ok(Some((offset, bytes))),
            NextLine::Lost(problem) => {
                return Err(DataError::format(
                    location,
                    format_args!("cannot read the first line: {problem}"),
                ));
            }
            NextLine::End => return Ok(None),
        }
    }
}

/// Returns the fields of the line that was read.
fn fields(lines: &LineReader) -> Vec<String> {
    let fields = (0..lines.splitter.fields()).filter_map(|number| lines.splitter.field(number));
    fields
        .map(|field| String::from_utf8_lossy(field.trim_ascii()).into_owned())
        .collect()
}

/// Returns the fields of the next few lines that have `columns` of them.
fn some_lines(lines: &mut LineReader, columns: usize) -> std::io::Result<Vec<Vec<String>>> {
    let mut below = Vec::new();
    for _ in 0..LINES_COMPARED {
        match lines.next(|_| {})? {
            NextLine::Line { .. } if lines.splitter.fields() == columns => {
                below.push(fields(lines));
            }
            NextLine::Line { .. } => {}
            NextLine::Lost(_) | NextLine::End => break,
        }
    }
    Ok(below)
}

/// What a first line looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FirstLine {
    /// Texts only.
    Names,
    /// The numbers of the columns, possibly with a few names.
    ColumnNumbers,
    /// Other integers only.
    Integers,
    /// Numbers, possibly with texts.
    Record,
}

impl FirstLine {
    fn of(texts: &[String]) -> Self {
        if texts.iter().all(|text| is_name(text)) {
            return Self::Names;
        }
        let integers: Vec<u64> = texts.iter().filter_map(|text| integer(text)).collect();
        let names = texts
            .iter()
            .filter(|text| text.is_empty() || is_name(text))
            .count();
        if integers.len() + names < texts.len() || integers.is_empty() {
            return Self::Record;
        }
        // The last column may be a separate table that was joined to the others.
        let numbers = match integers.split_last() {
            Some((0, numbers)) if numbers.len() >= 3 => numbers,
            _ => &*integers,
        };
        let is_counted = (0..).zip(numbers).all(|(at, number)| at == *number);
        // One number beside texts, such as a class, is more likely a record.
        let is_enough = match names {
            0 => true,
            1 if texts[0].is_empty() => true,
            _ => numbers.len() >= 2,
        };
        match is_counted && is_enough {
            true => Self::ColumnNumbers,
            false if names == 0 => Self::Integers,
            false => Self::Record,
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.parse::<f64>().is_err()
}

/// Returns a number that is written with digits only.
fn integer(text: &str) -> Option<u64> {
    let is_plain = text == "0" || !text.starts_with(['0', '+', '-']);
    text.parse().ok().filter(|_| is_plain)
}

/// Returns whether a column has fractions in all lines. An integer above them is then no value of the column.
fn has_fractions(below: &[Vec<String>]) -> bool {
    let is_fraction = |text: &String| integer(text).is_none() && text.parse::<f64>().is_ok();
    let columns = below.first().map_or(0, Vec::len);
    below.len() >= LINES_MIN
        && (0..columns).any(|column| {
            below.iter().all(|line| {
                let text = &line[column];
                is_fraction(text) && text.contains(['.', 'e', 'E'])
            })
        })
}

/// Refuses encodings other than UTF-8 and its subsets, as far as the start of a file shows them.
fn check_encoding(start: &[u8]) -> Result<(), HeadingError> {
    let start = &start[..start.len().min(ENCODING_BYTES)];
    let has_mark = start.starts_with(&[0xff, 0xfe]) || start.starts_with(&[0xfe, 0xff]);
    match has_mark || start.contains(&0) {
        true => Err(HeadingError::Encoding),
        false => Ok(()),
    }
}

/// Refuses a heading in which two columns have the same name.
fn check_names(names: &[String]) -> Result<(), HeadingError> {
    let mut seen = HashSet::new();
    let mut named = names.iter().filter(|name| !name.is_empty());
    match named.find(|name| !seen.insert(name.as_str())) {
        Some(name) => Err(HeadingError::SameName { name: name.clone() }),
        None => Ok(()),
    }
}
