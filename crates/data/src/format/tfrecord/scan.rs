//! The scan of a TFRecord file: verifies every checksum and the structure of every record.

use std::io::Read;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use ronde_store::StoredObject;

use super::frames::{HEADER_BYTES, Next, WRONG_DATA, next};
use super::{EXTENT_BYTES, example, is_compressed};
use crate::DataError;
use crate::format::object::{ObjectReader, failed};
use crate::format::window::Window;
use crate::format::{BadRecord, EXTENT_BYTES_MAX, Extent, Found, RECORD_BYTES_MAX};

type FoundFn<'a> = dyn FnMut(Found) -> Result<(), DataError> + 'a;

/// Scans a file. Memory: the largest record and 1 MiB.
pub(super) fn scan(
    file: &Arc<dyn StoredObject>,
    found: &mut FoundFn<'_>,
) -> Result<[u8; 32], DataError> {
    let mut head = vec![0; file.bytes().min(HEADER_BYTES as u64) as usize];
    file.read_at(0, &mut head)?;
    let plain = ObjectReader::new(file.clone(), 0);
    let mut walk = Walk::new(file.location(), found);
    if !is_compressed(&head) {
        walk.all(plain)?;
        walk.close()?;
        return Ok(walk.hash());
    }
    if file.bytes() > EXTENT_BYTES_MAX {
        return Err(too_large(file.location(), "packed"));
    }
    walk.is_packed = true;
    let unpacked = MultiGzDecoder::new(std::io::BufReader::with_capacity(1 << 18, plain));
    match walk.all(unpacked) {
        // A file that cannot be unpacked completely is not used at all.
        Err(DataError::Record(bad)) => {
            found(Found::Bad(bad))?;
            return Ok([0; 32]);
        }
        other => other?,
    }
    let (hash, records) = (walk.hash(), walk.records_of_packed);
    if let (Ok(records @ 1..), bytes) = (u32::try_from(records), file.bytes()) {
        found(Found::Extent(Extent {
            start: 0,
            bytes,
            records,
        }))?;
    }
    Ok(hash)
}

fn too_large(file: &str, how: &str) -> DataError {
    DataError::Format {
        file: file.to_owned(),
        problem: format!(
            "the compressed file is too large to be unpacked at once: the limits are {EXTENT_BYTES_MAX} bytes packed \
             and {RECORD_BYTES_MAX} unpacked, and it has more bytes {how}; make its shards smaller"
        ),
    }
}

struct Walk<'a, 'b> {
    file: &'a str,
    found: &'a mut FoundFn<'b>,
    hasher: blake3::Hasher,
    /// The number of the next record.
    number: u64,
    /// Small records that are grouped into one extent.
    open: Option<Extent>,
    is_packed: bool,
    records_of_packed: u64,
}

impl<'a, 'b> Walk<'a, 'b> {
    fn new(file: &'a str, found: &'a mut FoundFn<'b>) -> Self {
        Self {
            file,
            found,
            hasher: blake3::Hasher::new_derive_key("ronde tfrecord content, version 1"),
            number: 0,
            open: None,
            is_packed: false,
            records_of_packed: 0,
        }
    }

    fn hash(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }

    fn all(&mut self, reader: impl Read) -> Result<(), DataError> {
        let mut window = Window::new(reader);
        loop {
            let offset = window.position();
            if self.is_packed && offset > RECORD_BYTES_MAX {
                return Err(too_large(self.file, "unpacked"));
            }
            let read = |error| failed(self.file, offset, error);
            let seen = window.look(HEADER_BYTES).map_err(read)?;
            let mut looked = next(seen);
            if let Next::Partial { bytes } = looked
                && bytes <= RECORD_BYTES_MAX
            {
                looked = next(window.look(bytes as usize).map_err(read)?);
            }
            let lost = match looked {
                Next::Short if window.seen().is_empty() => return Ok(()),
                Next::Short => "the file ends in the middle of a record's length".to_owned(),
                Next::Wrong => "its length is damaged; the rest of the file is unreadable".into(),
                Next::Partial { bytes } => format!(
                    "the file ends before the record does, which has {bytes} bytes (the limit is {RECORD_BYTES_MAX})"
                ),
                Next::Whole(frame) => {
                    let data = &window.seen()[frame.data.clone()];
                    let bytes = frame.bytes();
                    let problem = match frame.is_sound(data) {
                        true => example::check(data).err(),
                        false => Some(WRONG_DATA.to_owned()),
                    };
                    match problem {
                        Some(problem) => self.bad(offset, problem)?,
                        None => self.good(offset, bytes as u64, frame.masked)?,
                    }
                    self.number += 1;
                    window.advance(bytes);
                    continue;
                }
            };
            return self.bad(offset, lost);
        }
    }

    fn bad(&mut self, offset: u64, problem: String) -> Result<(), DataError> {
        self.close()?;
        (self.found)(Found::Bad(BadRecord {
            file: self.file.to_owned(),
            offset,
            record: Some(self.number),
            problem,
        }))
    }

    fn good(&mut self, offset: u64, bytes: u64, masked: u32) -> Result<(), DataError> {
        let mut facts = [0; 12];
        facts[..8].copy_from_slice(&bytes.to_le_bytes());
        facts[8..].copy_from_slice(&masked.to_le_bytes());
        self.hasher.update(&facts);
        if self.is_packed {
            self.records_of_packed += 1;
            return Ok(());
        }
        let joins = |open: &Extent| open.bytes + bytes <= EXTENT_BYTES;
        if !self.open.as_ref().is_some_and(joins) {
            self.close()?;
        }
        let open = self.open.get_or_insert(Extent {
            start: offset,
            bytes: 0,
            records: 0,
        });
        open.bytes += bytes;
        open.records += 1;
        Ok(())
    }

    fn close(&mut self) -> Result<(), DataError> {
        match self.open.take() {
            Some(extent) => (self.found)(Found::Extent(extent)),
            None => Ok(()),
        }
    }
}
