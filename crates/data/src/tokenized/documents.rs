//! [`Documents`]: the documents of a text file, in pieces that are encoded separately.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use super::Tokenization;
use super::cuts::CharacterPairs;
use crate::error::DataError;
use crate::format::BadRecord;
use crate::format::object::{ObjectReader, failed, is_gzip};
use crate::index::DataFile;

/// The reason why a document is skipped.
#[derive(Debug, thiserror::Error)]
enum DocumentError {
    #[error("not valid JSON: {0}")]
    Json(serde_json::Error),
    #[error("field `{field}` is not a string")]
    NotText { field: String },
    #[error("no field `{field}`")]
    NoField { field: String },
    #[error(
        "the text has no position within {} MiB at which it can be cut without changing tokens",
        UNCUT_BYTES_MAX >> 20
    )]
    NoCut,
    #[error(
        "the text is longer than {} MiB, and the tokenizer does not allow to cut it: it keeps words together, or its steps \
         are not known; use shorter documents",
        UNCUT_BYTES_MAX >> 20
    )]
    Uncuttable,
}

/// The bytes of a piece, to which a longer document is cut where its text has cuts.
const PIECE_BYTES: usize = 64 << 10;
/// The maximum bytes of text without a cut. Its encoding takes about 150 times as much memory.
pub(crate) const UNCUT_BYTES_MAX: usize = 4 << 20;
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
    tokenization: &'a Tokenization,
    pairs: CharacterPairs,
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
    /// Opens a file.
    pub(super) fn open(
        file: &'a dyn DataFile,
        tokenization: &'a Tokenization,
    ) -> Result<Self, DataError> {
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
            tokenization,
            pairs: CharacterPairs::default(),
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

    fn bad(&self, at: u64, record: Option<u64>, problem: impl fmt::Display) -> DocumentPart {
        DocumentPart::Bad(BadRecord::new(
            self.location,
            self.offset + at,
            record,
            problem,
        ))
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
        let mut target_bytes = PIECE_BYTES;
        let (end, is_last) = loop {
            let more = target_bytes.saturating_sub(self.rest.len()) as u64;
            let mut input = (&mut self.input).take(more);
            if let Err(error) = input.read_to_end(&mut self.rest) {
                return self.or_bad(error, parts);
            }
            if self.rest.len() < target_bytes {
                break (self.rest.len(), true);
            }
            match self.cut() {
                Some(end) => break (end, false),
                None if target_bytes < UNCUT_BYTES_MAX => {
                    target_bytes = (target_bytes * 2).min(UNCUT_BYTES_MAX)
                }
                None => {
                    let problem = format!("{}; skipping the rest of the file", self.uncut());
                    parts.push(self.bad(0, None, problem));
                    self.is_finished = true;
                    return Ok(());
                }
            }
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

    /// Returns where to cut the read bytes, to which more belong. Invalid UTF-8 is cut after its last line.
    fn cut(&mut self) -> Option<usize> {
        let text = match std::str::from_utf8(&self.rest) {
            Ok(text) => text,
            Err(error) => match error.error_len() {
                None => std::str::from_utf8(&self.rest[..error.valid_up_to()]).ok()?,
                Some(length) => {
                    let bad = error.valid_up_to() + length;
                    let line = self.rest.iter().rposition(|byte| *byte == b'\n');
                    let line = line.map(|line| line + 1).filter(|line| *line >= bad);
                    return Some(line.unwrap_or(self.rest.len()));
                }
            },
        };
        self.tokenization.tokenizer.last_cut(text, &mut self.pairs)
    }

    /// Returns the error for a text that is too long without a cut.
    fn uncut(&self) -> DocumentError {
        match self.tokenization.tokenizer.has_cuts() {
            true => DocumentError::NoCut,
            false => DocumentError::Uncuttable,
        }
    }

    /// Splits a text into pieces, or returns why it cannot be split.
    fn pieces(&mut self, text: &str) -> Result<Vec<String>, DocumentError> {
        let (mut pieces, mut rest, mut target_bytes) = (Vec::new(), text, PIECE_BYTES);
        while rest.len() > target_bytes {
            let part = &rest[..rest.floor_char_boundary(target_bytes)];
            let tokenizer = &self.tokenization.tokenizer;
            match tokenizer.last_cut(part, &mut self.pairs) {
                Some(cut) => {
                    let (piece, more) = rest.split_at(cut);
                    pieces.push(piece.to_owned());
                    (rest, target_bytes) = (more, PIECE_BYTES);
                }
                None if target_bytes < UNCUT_BYTES_MAX => {
                    target_bytes = (target_bytes * 2).min(UNCUT_BYTES_MAX)
                }
                None => return Err(self.uncut()),
            }
        }
        if !rest.is_empty() {
            pieces.push(rest.to_owned());
        }
        Ok(pieces)
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
            let text = text_of(&line, &self.tokenization.field);
            match text.and_then(|text| self.pieces(&text)) {
                Ok(pieces) => {
                    parts.extend(pieces.into_iter().map(DocumentPart::Text));
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
fn text_of(line: &[u8], field: &str) -> Result<String, DocumentError> {
    let object: serde_json::Value = serde_json::from_slice(line).map_err(DocumentError::Json)?;
    match object.get(field) {
        Some(serde_json::Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(DocumentError::NotText {
            field: field.to_owned(),
        }),
        None => Err(DocumentError::NoField {
            field: field.to_owned(),
        }),
    }
}
