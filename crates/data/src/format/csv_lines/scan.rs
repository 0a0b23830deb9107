//! The heading of a file of comma-separated values, and the scan of its lines.

use std::sync::Arc;

use ronde_store::StoredObject;

use super::super::object::failed;
use super::super::window::Window;
use super::lines::{End, fields, line, trimmed};
use super::{CsvFile, FIELDS_MAX, Heading, LINE_BYTES_MAX, Stream, stream};
use crate::DataError;
use crate::format::{BadRecord, EXTENT_BYTES_MAX, Extent, Found, RECORD_BYTES_MAX};

/// Bytes of an extent, about.
const EXTENT_BYTES: u64 = 64 << 10;
const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// What comes next in a stream of lines.
enum Next {
    /// Bytes of a line with its end, and the count of its fields.
    Line {
        bytes: usize,
        fields: usize,
    },
    /// What is left is no line.
    Lost(&'static str),
    End,
}

/// Looks for the end of the next line, further and further.
fn next(window: &mut Window<Stream>) -> std::io::Result<Next> {
    let mut ask = 1;
    loop {
        let seen = window.look(ask)?;
        if seen.is_empty() {
            return Ok(Next::End);
        }
        let has_ended = seen.len() < ask;
        let end = line(seen);
        return Ok(match end {
            End::Whole { bytes, .. } if bytes > LINE_BYTES_MAX => {
                Next::Lost("its line has no end within 16 MiB")
            }
            End::Whole { bytes, fields } => Next::Line { bytes, fields },
            End::Open { .. } if seen.len() > LINE_BYTES_MAX => {
                Next::Lost("its line has no end within 16 MiB")
            }
            End::Open {
                is_quoted: true, ..
            } if has_ended => Next::Lost("a quote in it has no end"),
            End::Open { fields, .. } if has_ended => Next::Line {
                bytes: seen.len(),
                fields,
            },
            End::Open { .. } => {
                // At least one read more.
                ask = seen.len() + 1;
                continue;
            }
        });
    }
}

/// What the first line tells.
pub(super) fn heading(
    file: &Arc<dyn StoredObject>,
    is_packed: bool,
    header: Option<bool>,
) -> Result<Heading, DataError> {
    let location = file.location();
    let refused = |problem: String| DataError::Format {
        file: location.to_owned(),
        problem,
    };
    let mut window = Window::new(stream(file, is_packed));
    let mut bytes = 0;
    loop {
        let read = |error| failed(location, 0, error);
        if bytes == 0
            && window
                .look(BYTE_ORDER_MARK.len())
                .map_err(read)?
                .starts_with(BYTE_ORDER_MARK)
        {
            window.advance(BYTE_ORDER_MARK.len());
            bytes += BYTE_ORDER_MARK.len() as u64;
        }
        let (length, count) = match next(&mut window).map_err(read)? {
            Next::Line { bytes, fields } => (bytes, fields),
            Next::Lost(problem) => return Err(refused(format!("its first line: {problem}"))),
            Next::End => {
                return Ok(Heading {
                    bytes,
                    names: Vec::new(),
                });
            }
        };
        let text = trimmed(&window.seen()[..length]);
        if text.is_empty() {
            bytes += length as u64;
            window.advance(length);
            continue;
        }
        if count > FIELDS_MAX {
            return Err(refused(format!(
                "its first line has {count} fields; at most {FIELDS_MAX} can be"
            )));
        }
        let texts = fields(text).map(|field| String::from_utf8_lossy(&field).into_owned());
        let texts: Vec<String> = texts.collect();
        let is_name = |field: &String| !field.is_empty() && field.parse::<f64>().is_err();
        let is_heading = header.unwrap_or_else(|| texts.iter().all(is_name));
        return Ok(match is_heading {
            true => Heading {
                bytes: bytes + length as u64,
                names: texts,
            },
            false => Heading {
                bytes,
                names: (0..count).map(|column| column.to_string()).collect(),
            },
        });
    }
}

type FoundFn<'a> = dyn FnMut(Found) -> Result<(), DataError> + 'a;

pub(super) fn scan(file: &CsvFile, found: &mut FoundFn<'_>) -> Result<[u8; 32], DataError> {
    let mut walk = Walk {
        file,
        found,
        hasher: blake3::Hasher::new_derive_key("ronde csv content, version 1"),
        number: 0,
        records: 0,
        open: None,
    };
    let done = walk.all();
    let (hash, records) = (*walk.hasher.finalize().as_bytes(), walk.records);
    if !file.is_packed {
        return done.map(|()| hash);
    }
    match done {
        // Of what cannot be unpacked to its end nothing is used.
        Err(DataError::Record(bad)) => {
            found(Found::Bad(bad))?;
            return Ok([0; 32]);
        }
        other => other?,
    }
    let bytes = file.file.bytes();
    match u32::try_from(records) {
        Ok(records @ 1..) if bytes <= EXTENT_BYTES_MAX => found(Found::Extent(Extent {
            start: 0,
            bytes,
            records,
        }))?,
        Ok(0) => {}
        _ => return Err(walk_too_large(file)),
    }
    Ok(hash)
}

fn walk_too_large(file: &CsvFile) -> DataError {
    DataError::Format {
        file: file.file.location().to_owned(),
        problem: format!(
            "it is too large to be compressed as a whole: at most {RECORD_BYTES_MAX} bytes unpacked; make it \
             smaller, or do not compress it"
        ),
    }
}

struct Walk<'a, 'b> {
    file: &'a CsvFile,
    found: &'a mut FoundFn<'b>,
    hasher: blake3::Hasher,
    /// Number of the next record.
    number: u64,
    /// Good ones.
    records: u64,
    open: Option<Extent>,
}

impl Walk<'_, '_> {
    fn all(&mut self) -> Result<(), DataError> {
        let location = self.file.file.location();
        let mut window = Window::new(stream(&self.file.file, self.file.is_packed));
        let mut heading = self.file.heading.bytes;
        while heading > 0 {
            let offset = window.position();
            let step = heading.min(1 << 20) as usize;
            let seen = window
                .look(step)
                .map_err(|error| failed(location, offset, error))?;
            let seen = &seen[..seen.len().min(step)];
            self.hasher.update(seen);
            let count = seen.len();
            window.advance(count);
            heading = if count < step {
                0
            } else {
                heading - count as u64
            };
        }
        loop {
            let offset = window.position();
            if self.file.is_packed && offset > RECORD_BYTES_MAX {
                return Err(walk_too_large(self.file));
            }
            let (bytes, count) =
                match next(&mut window).map_err(|error| failed(location, offset, error))? {
                    Next::Line { bytes, fields } => (bytes, fields),
                    Next::End => return self.close(),
                    Next::Lost(problem) => {
                        return self.bad(
                            offset,
                            format!("{problem}, and the rest of the file is lost with it"),
                        );
                    }
                };
            let seen = &window.seen()[..bytes];
            self.hasher.update(seen);
            let expected = self.file.heading.names.len();
            let is_blank = trimmed(seen).is_empty();
            match (is_blank, count == expected) {
                (true, _) => self.longer(offset, bytes as u64),
                (false, true) => self.good(offset, bytes as u64)?,
                (false, false) => {
                    let problem =
                        format!("the line has {count} fields, the first one has {expected}");
                    self.bad(offset, problem)?;
                }
            }
            window.advance(bytes);
        }
    }

    fn good(&mut self, offset: u64, bytes: u64) -> Result<(), DataError> {
        self.number += 1;
        self.records += 1;
        if self.file.is_packed {
            return Ok(());
        }
        if self
            .open
            .as_ref()
            .is_some_and(|open| open.bytes + bytes > EXTENT_BYTES)
        {
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

    /// A blank line belongs to the extent around it.
    fn longer(&mut self, offset: u64, bytes: u64) {
        if let Some(open) = &mut self.open {
            open.bytes = offset + bytes - open.start;
        }
    }

    fn bad(&mut self, offset: u64, problem: String) -> Result<(), DataError> {
        self.close()?;
        let record = Some(self.number);
        self.number += 1;
        (self.found)(Found::Bad(BadRecord {
            file: self.file.file.location().to_owned(),
            offset,
            record,
            problem,
        }))
    }

    fn close(&mut self) -> Result<(), DataError> {
        match self.open.take() {
            Some(extent) => (self.found)(Found::Extent(extent)),
            None => Ok(()),
        }
    }
}
