//! The scan of the lines of comma-separated values.

use std::fmt;

use super::super::object::failed;
use super::super::window::ReadWindow;
use super::lines::{LineSplitter, SplitOutcome};
use super::{ByteStream, CsvFile, stream};
use crate::error::DataError;
use crate::format::{BadRecord, EXTENT_BYTES_MAX, Extent, ItemSink, RECORD_BYTES_MAX, ScanItem};

/// Approximate size of an extent, in bytes.
const EXTENT_BYTES: u64 = 64 << 10;
/// The number of bytes that are hashed at once.
const HASHED_BYTES: usize = 64 << 10;

/// The next item in a stream of lines.
pub(super) enum NextLine {
    /// A line with its offset and its size including the line end.
    Line {
        offset: u64,
        bytes: u64,
    },
    /// The rest of the stream is not a line, for this reason.
    Lost(&'static str),
    End,
}

/// A reader of lines from a stream.
pub(super) struct LineReader {
    pub(super) window: ReadWindow<ByteStream>,
    pub(super) splitter: LineSplitter,
}

impl LineReader {
    pub(super) fn new(window: ReadWindow<ByteStream>) -> Self {
        Self {
            window,
            splitter: LineSplitter::new(),
        }
    }

    /// Returns the next line that is not blank, and passes all bytes to `each`.
    pub(super) fn next(&mut self, mut each: impl FnMut(&[u8])) -> std::io::Result<NextLine> {
        let start = self.window.position();
        loop {
            let buffered = self.window.look(1)?;
            let (used, split) = self.splitter.split(buffered);
            each(&buffered[..used]);
            self.window.advance(used);
            return Ok(match split {
                SplitOutcome::NeedsMore => continue,
                SplitOutcome::Line { bytes, blank } => NextLine::Line {
                    offset: start + blank as u64,
                    bytes: (bytes - blank) as u64,
                },
                SplitOutcome::Lost(problem) => NextLine::Lost(problem),
                SplitOutcome::End => NextLine::End,
            });
        }
    }

    /// Returns whether the line has nothing but white space.
    pub(super) fn is_white(&self) -> bool {
        let field = self.splitter.field(0).unwrap_or_default();
        self.splitter.fields() == 1 && field.trim_ascii().is_empty()
    }
}

pub(super) fn scan(file: &CsvFile, found: &mut ItemSink<'_>) -> Result<[u8; 32], DataError> {
    let mut scan = CsvScan {
        file,
        found,
        hasher: LineHasher::new(),
        number: 0,
        records: 0,
        open: None,
    };
    let done = scan.all();
    let (hash, records) = (scan.hasher.finish(), scan.records);
    if !file.is_packed {
        return done.map(|()| hash);
    }
    match done {
        // A file that cannot be unpacked completely is not used at all.
        Err(DataError::Record(bad)) => {
            found(ScanItem::Bad {
                record: bad,
                bytes: file.file.bytes(),
            })?;
            return Ok([0; 32]);
        }
        other => other?,
    }
    let bytes = file.file.bytes();
    match u32::try_from(records) {
        Ok(records @ 1..) if bytes <= EXTENT_BYTES_MAX => found(ScanItem::Extent(Extent {
            start: 0,
            bytes,
            records,
        }))?,
        Ok(0) => {}
        _ => return Err(too_large(file)),
    }
    Ok(hash)
}

/// Returns the line, from 1, of a record. Lines end in LF, CR LF or CR.
pub(super) fn line_of(file: &CsvFile, record: u64) -> Result<u64, DataError> {
    let location = file.file.location();
    let read = |error| failed(location, 0, error);
    let text = || ReadWindow::new(stream(&file.file, file.is_packed));
    let mut lines = LineReader::new(text());
    let mut number = 0;
    let end = loop {
        let start = lines.window.position();
        match lines.next(|_| {}).map_err(read)? {
            NextLine::Line { offset, bytes } if offset + bytes <= file.heading.bytes => {}
            NextLine::Line { .. } if file.is_table && lines.is_white() => {}
            NextLine::Line { offset, .. } if number == record => break offset,
            NextLine::Line { .. } => number += 1,
            NextLine::Lost(_) | NextLine::End => break start,
        }
    };
    let mut window = text();
    let (mut line, mut before) = (1, 0);
    loop {
        let left = end.saturating_sub(window.position());
        let bytes = window.look(1).map_err(read)?;
        let count = left.min(bytes.len() as u64) as usize;
        if count == 0 {
            return Ok(line);
        }
        for &byte in &bytes[..count] {
            line += u64::from(byte == b'\r' || (byte == b'\n' && before != b'\r'));
            before = byte;
        }
        window.advance(count);
    }
}

fn too_large(file: &CsvFile) -> DataError {
    DataError::format(
        file.file.location(),
        format_args!(
            "the compressed file is too large to be unpacked at once: the limit is {RECORD_BYTES_MAX} bytes unpacked; \
             split it, or do not compress it"
        ),
    )
}

/// A hash of lines, which is computed over many of them at once, because it is slow for a few bytes.
struct LineHasher {
    hasher: blake3::Hasher,
    pending: Vec<u8>,
}

impl LineHasher {
    fn new() -> Self {
        Self {
            hasher: blake3::Hasher::new_derive_key("ronde csv content, version 1"),
            pending: Vec::with_capacity(HASHED_BYTES),
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        if self.pending.len() + bytes.len() > HASHED_BYTES {
            self.hasher.update(&self.pending);
            self.pending.clear();
        }
        if bytes.len() > HASHED_BYTES {
            self.hasher.update(bytes);
        } else {
            self.pending.extend_from_slice(bytes);
        }
    }

    fn finish(mut self) -> [u8; 32] {
        self.hasher.update(&self.pending);
        *self.hasher.finalize().as_bytes()
    }
}

struct CsvScan<'a, 'b> {
    file: &'a CsvFile,
    found: &'a mut ItemSink<'b>,
    hasher: LineHasher,
    /// The number of the next record.
    number: u64,
    /// The number of usable records.
    records: u64,
    open: Option<Extent>,
}

impl CsvScan<'_, '_> {
    fn all(&mut self) -> Result<(), DataError> {
        let location = self.file.file.location();
        let mut window = ReadWindow::new(stream(&self.file.file, self.file.is_packed));
        let mut heading = self.file.heading.bytes;
        while heading > 0 {
            let offset = window.position();
            let step = heading.min(1 << 20) as usize;
            let buffered = window
                .look(step)
                .map_err(|error| failed(location, offset, error))?;
            let buffered = &buffered[..buffered.len().min(step)];
            self.hasher.add(buffered);
            let count = buffered.len();
            window.advance(count);
            heading = if count < step {
                0
            } else {
                heading - count as u64
            };
        }
        let mut lines = LineReader::new(window);
        let expected = self.file.heading.names.len();
        loop {
            let start = lines.window.position();
            if self.file.is_packed && start > RECORD_BYTES_MAX {
                return Err(too_large(self.file));
            }
            let next = lines.next(|bytes| {
                self.hasher.add(bytes);
            });
            match next.map_err(|error| failed(location, start, error))? {
                NextLine::Line { offset, bytes } => match lines.splitter.fields() {
                    fields if fields == expected => self.good(offset, bytes)?,
                    _ if self.file.is_table && lines.is_white() => {}
                    fields => {
                        let problem = format!(
                            "the line has {fields} fields, but the first line has {expected}"
                        );
                        self.bad(offset, bytes, problem)?;
                    }
                },
                NextLine::Lost(problem) => {
                    return self.bad(
                        start,
                        self.rest(start),
                        format!("{problem}; the rest of the file is unreadable"),
                    );
                }
                NextLine::End => return self.close(),
            }
        }
    }

    fn good(&mut self, offset: u64, bytes: u64) -> Result<(), DataError> {
        self.number += 1;
        self.records += 1;
        if self.file.is_packed {
            return (self.found)(ScanItem::Progress);
        }
        let is_full = |open: &Extent| offset + bytes - open.start > EXTENT_BYTES;
        if self.open.as_ref().is_some_and(is_full) {
            self.close()?;
        }
        let open = self.open.get_or_insert(Extent {
            start: offset,
            bytes: 0,
            records: 0,
        });
        open.bytes = offset + bytes - open.start;
        open.records += 1;
        Ok(())
    }

    /// Returns the size of the rest of the file. In a compressed file it is unknown.
    fn rest(&self, offset: u64) -> u64 {
        match self.file.is_packed {
            true => u64::MAX,
            false => self.file.file.bytes().saturating_sub(offset),
        }
    }

    fn bad(
        &mut self,
        offset: u64,
        bytes: u64,
        problem: impl fmt::Display,
    ) -> Result<(), DataError> {
        self.close()?;
        let record = BadRecord::new(
            self.file.file.location(),
            offset,
            Some(self.number),
            problem,
        );
        self.number += 1;
        (self.found)(ScanItem::Bad { record, bytes })
    }

    fn close(&mut self) -> Result<(), DataError> {
        match self.open.take() {
            Some(extent) => (self.found)(ScanItem::Extent(extent)),
            None => Ok(()),
        }
    }
}
