//! [`LineSplitter`]: lines and fields of comma-separated values, split by the `csv-core` crate.

use csv_core::{ReadRecordResult, Reader};

use super::{FIELDS_MAX, LINE_BYTES_MAX};

/// The outcome of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SplitOutcome {
    /// All bytes were used; more are needed, or none to mark the end.
    NeedsMore,
    /// A line is complete.
    Line {
        /// The number of its bytes, with its line end and the line ends before it.
        bytes: usize,
        /// The number of line ends before it, in bytes.
        blank: usize,
    },
    /// The rest of the bytes is not a line, for this reason.
    Lost(&'static str),
    /// All lines are read.
    End,
}

/// A splitter of bytes into lines and fields.
///
/// Memory: the longest line.
pub(super) struct LineSplitter {
    reader: Reader,
    /// The fields of the current line without quotes, one after the other, and their ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    text_bytes: usize,
    fields: usize,
    bytes: usize,
    blank: usize,
    is_complete: bool,
}

impl LineSplitter {
    pub(super) fn new() -> Self {
        let (mut text, mut ends) = (vec![0; 1 << 10], vec![0; 1 << 6]);
        let mut reader = Reader::new();
        // The crate removes a byte order mark from its first input, which may be the middle of a file.
        reader.read_record(b"\n", &mut text, &mut ends);
        Self {
            reader,
            text,
            ends,
            text_bytes: 0,
            fields: 0,
            bytes: 0,
            blank: 0,
            is_complete: false,
        }
    }

    /// Continues with `input`, or ends with an empty one. Returns the number of bytes used, and the outcome.
    pub(super) fn split(&mut self, input: &[u8]) -> (usize, SplitOutcome) {
        if std::mem::take(&mut self.is_complete) {
            (self.text_bytes, self.fields) = (0, 0);
            (self.bytes, self.blank) = (0, 0);
        }
        // The last line needs no line end in the file. With one, `csv-core` shows whether a quote is open.
        let is_end = input.is_empty() && self.bytes > self.blank;
        let mut used = 0;
        loop {
            let rest = if is_end { b"\n" } else { &input[used..] };
            let text = &mut self.text[self.text_bytes..];
            let ends = &mut self.ends[self.fields..];
            let (result, read, written, ended) = self.reader.read_record(rest, text, ends);
            if !is_end {
                self.count(&rest[..read]);
                used += read;
            }
            self.text_bytes += written;
            self.fields += ended;
            if self.bytes - self.blank > LINE_BYTES_MAX {
                return (
                    used,
                    SplitOutcome::Lost("the line has no end within 16 MiB"),
                );
            }
            match result {
                ReadRecordResult::InputEmpty if is_end => {
                    return (used, SplitOutcome::Lost("a quote is not closed"));
                }
                ReadRecordResult::InputEmpty => return (used, SplitOutcome::NeedsMore),
                ReadRecordResult::OutputFull => self.text.resize(2 * self.text.len(), 0),
                ReadRecordResult::OutputEndsFull if self.ends.len() > FIELDS_MAX => {
                    return (
                        used,
                        SplitOutcome::Lost("the line has more than 1,048,576 fields"),
                    );
                }
                ReadRecordResult::OutputEndsFull => self.ends.resize(2 * self.ends.len(), 0),
                ReadRecordResult::Record => {
                    self.is_complete = true;
                    let (bytes, blank) = (self.bytes, self.blank);
                    return (used, SplitOutcome::Line { bytes, blank });
                }
                ReadRecordResult::End => return (used, SplitOutcome::End),
            }
        }
    }

    fn count(&mut self, input: &[u8]) {
        if self.bytes == self.blank {
            let is_line_end = |byte: &&u8| matches!(**byte, b'\r' | b'\n');
            self.blank += input.iter().take_while(is_line_end).count();
        }
        self.bytes += input.len();
    }

    /// Returns the number of fields of the complete line.
    pub(super) fn fields(&self) -> usize {
        self.fields
    }

    /// Returns a field of the complete line; `None` past the last one.
    pub(super) fn field(&self, number: usize) -> Option<&[u8]> {
        let ends = &self.ends[..self.fields];
        let end = *ends.get(number)?;
        let start = number.checked_sub(1).map_or(0, |before| ends[before]);
        self.text.get(start..end)
    }
}
