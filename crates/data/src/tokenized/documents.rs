//! [`Documents`]: the documents of a text file, in pieces that are encoded separately.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use crate::DataError;
use crate::format::BadRecord;
use crate::format::object::{ObjectReader, failed, is_gzip};
use crate::index::DataFile;

/// The maximum bytes of a piece; a longer document is split before a line. EncodeTask needs about 150 times as much memory.
const PIECE_BYTES: usize = 64 << 10;
/// The maximum bytes of a line that is a document.
const LINE_BYTES_MAX: usize = 64 << 20;
/// The bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// The arrangement of documents in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DocumentLayout {
    /// The whole file is one document.
    Plain,
    /// Each line is a JSON object with a text field.
    Lines,
}

impl DocumentLayout {
    /// Returns the layout that a file name's extension implies, if any.
    pub(crate) fn of(location: &str) -> Option<Self> {
        let name = location.rsplit('/').next()?.to_ascii_lowercase();
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        match name.rsplit_once('.')?.1 {
            "txt" | "text" => Some(Self::Plain),
            "jsonl" | "ndjson" => Some(Self::Lines),
            _ => None,
        }
    }
}

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DocumentPart {
    /// A document, or a piece of one.
    Text(String),
    /// The end of a document.
    End,
    /// Invalid text.
    Bad(BadRecord),
}

/// A reader of the documents of a text file.
pub(super) struct Documents<'a> {
    location: &'a str,
    form: DocumentLayout,
    field: &'a str,
    input: Box<dyn BufRead + Send>,
    read: Arc<AtomicU64>,
    /// The bytes of an incomplete piece.
    rest: Vec<u8>,
    /// The bytes of decompressed text before `rest`, and the number of lines.
    offset: u64,
    line: u64,
    is_finished: bool,
}

/// A reader that counts the bytes read.
struct CountingReader<R>(R, Arc<AtomicU64>);

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.0.read(into)?;
        self.1.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

impl<'a> Documents<'a> {
    /// Opens a file; `field` is the field with the text in a line of JSON.
    pub(super) fn open(file: &'a dyn DataFile, field: &'a str) -> Result<Self, DataError> {
        let location = file.location();
        let form = DocumentLayout::of(location).unwrap_or(DocumentLayout::Plain);
        let read = Arc::new(AtomicU64::new(0));
        let reader = ObjectReader::new(file.open()?, 0);
        let counted = CountingReader(reader, Arc::clone(&read));
        let mut input = BufReader::with_capacity(READ_BYTES, counted);
        let head = input
            .fill_buf()
            .map_err(|error| failed(location, 0, error))?;
        let input: Box<dyn BufRead + Send> = match is_gzip(head) {
            true => Box::new(BufReader::with_capacity(
                READ_BYTES,
                MultiGzDecoder::new(input),
            )),
            false => Box::new(input),
        };
        Ok(Self {
            location,
            form,
            field,
            input,
            read,
            rest: Vec::new(),
            offset: 0,
            line: 0,
            is_finished: false,
        })
    }

    /// Returns the bytes of the file read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Returns the next parts, about `bytes` bytes of text; none at the end of the file.
    pub(super) fn next_parts(&mut self, bytes: usize) -> Result<Vec<DocumentPart>, DataError> {
        let (mut parts, mut had) = (Vec::new(), 0);
        while had < bytes && !self.is_finished {
            let before = self.offset;
            match self.form {
                DocumentLayout::Plain => self.piece(&mut parts)?,
                DocumentLayout::Lines => self.line(&mut parts)?,
            }
            had += (self.offset - before) as usize;
        }
        Ok(parts)
    }

    fn bad(&self, at: u64, record: Option<u64>, problem: String) -> DocumentPart {
        DocumentPart::Bad(BadRecord {
            file: self.location.to_owned(),
            offset: self.offset + at,
            record,
            problem,
        })
    }

    /// Handles a read error: data that cannot be decompressed ends the file, other errors are returned.
    fn or_bad(&mut self, error: io::Error, parts: &mut Vec<DocumentPart>) -> Result<(), DataError> {
        match failed(self.location, self.offset + self.rest.len() as u64, error) {
            DataError::Record(bad) => {
                self.is_finished = true;
                parts.push(DocumentPart::Bad(bad));
                Ok(())
            }
            other => Err(other),
        }
    }

    /// Reads the next piece of a plain document.
    fn piece(&mut self, parts: &mut Vec<DocumentPart>) -> Result<(), DataError> {
        let more = (PIECE_BYTES - self.rest.len().min(PIECE_BYTES)) as u64;
        let mut input = (&mut self.input).take(more);
        if let Err(error) = input.read_to_end(&mut self.rest) {
            return self.or_bad(error, parts);
        }
        let is_last = self.rest.len() < PIECE_BYTES;
        let end = if is_last {
            self.rest.len()
        } else {
            cut(&self.rest)
        };
        let kept = self.rest.split_off(end);
        let piece = std::mem::replace(&mut self.rest, kept);
        let bytes = piece.len() as u64;
        match String::from_utf8(piece) {
            Ok(text) if text.is_empty() => {}
            Ok(text) => parts.push(DocumentPart::Text(text)),
            Err(error) => {
                let at = error.utf8_error().valid_up_to() as u64;
                let problem = format!("not valid UTF-8; skipping {bytes} bytes");
                parts.push(self.bad(at, None, problem));
            }
        }
        self.offset += bytes;
        if is_last {
            self.is_finished = true;
            if self.offset > 0 {
                parts.push(DocumentPart::End);
            }
        }
        Ok(())
    }

    /// Reads the next line.
    fn line(&mut self, parts: &mut Vec<DocumentPart>) -> Result<(), DataError> {
        let mut input = (&mut self.input).take(LINE_BYTES_MAX as u64 + 1);
        let mut line = Vec::new();
        if let Err(error) = input.read_until(b'\n', &mut line) {
            return self.or_bad(error, parts);
        }
        let (bytes, number) = (line.len(), self.line);
        self.is_finished = bytes == 0 || bytes > LINE_BYTES_MAX;
        if bytes > LINE_BYTES_MAX {
            let problem = format!(
                "the line is longer than {LINE_BYTES_MAX} bytes; skipping the rest of the file"
            );
            parts.push(self.bad(0, Some(number), problem));
        } else if !line.trim_ascii().is_empty() {
            match text_of(&line, self.field) {
                Ok(text) => {
                    parts.extend(pieces(&text).map(|piece| DocumentPart::Text(piece.to_owned())));
                    parts.push(DocumentPart::End);
                }
                Err(problem) => parts.push(self.bad(0, Some(number), problem)),
            }
        }
        self.offset += bytes as u64;
        self.line += 1;
        Ok(())
    }
}

/// Returns the text in a line of JSON.
fn text_of(line: &[u8], field: &str) -> Result<String, String> {
    let object: serde_json::Value =
        serde_json::from_slice(line).map_err(|error| format!("not valid JSON: {error}"))?;
    match object.get(field) {
        Some(serde_json::Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("field `{field}` is not a string")),
        None => Err(format!("no field `{field}`")),
    }
}

/// Splits a text into pieces.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = match rest.len() <= PIECE_BYTES {
            true => rest.len(),
            false => cut(&rest.as_bytes()[..PIECE_BYTES]),
        };
        let (piece, more) = rest.split_at(end);
        rest = more;
        (!piece.is_empty()).then_some(piece)
    })
}

/// Returns where to split a long text: before the last single line break, where tokenizers that split at white space split
/// anyway; otherwise before a space; otherwise before the last character, which may be incomplete.
fn cut(text: &[u8]) -> usize {
    let is_single = |at: usize, byte: u8| {
        text[at] == byte
            && !text[at - 1].is_ascii_whitespace()
            && !text[at + 1].is_ascii_whitespace()
    };
    let last = |byte: u8| (1..text.len() - 1).rev().find(|&at| is_single(at, byte));
    let of_character = || {
        let is_first = |&at: &usize| text[at] & 0xc0 != 0x80;
        (1..text.len()).rev().take(4).find(is_first)
    };
    last(b'\n')
        .or_else(|| last(b' '))
        .or_else(of_character)
        .unwrap_or(text.len())
}
