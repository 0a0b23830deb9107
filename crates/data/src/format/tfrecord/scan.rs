//! The scan of a TFRecord file: verifies every checksum and the structure of every record.

use std::fmt;
use std::io::Read;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use ronde_store::StoredObject;

use super::example::ExampleError;
use super::frames::{HEADER_BYTES, NextFrame, next};
use super::{EXTENT_BYTES, example, is_compressed};
use crate::error::DataError;
use crate::format::object::{ObjectReader, failed};
use crate::format::window::ReadWindow;
use crate::format::{BadRecord, EXTENT_BYTES_MAX, Extent, ItemSink, RECORD_BYTES_MAX, ScanItem};

/// Scans a file. Memory: the largest record and 1 MiB.
pub(super) fn scan(
    file: &Arc<dyn StoredObject>,
    found: &mut ItemSink<'_>,
) -> Result<[u8; 32], DataError> {
    let mut head = vec![0; file.bytes().min(HEADER_BYTES as u64) as usize];
    file.read_at(0, &mut head)?;
    let plain = ObjectReader::new(file.clone(), 0);
    let mut scan = TfRecordScan::new(file, found);
    if !is_compressed(&head) {
        scan.all(plain)?;
        scan.close()?;
        return Ok(scan.hash());
    }
    if file.bytes() > EXTENT_BYTES_MAX {
        return Err(too_large(file.location(), "packed"));
    }
    scan.is_packed = true;
    let unpacked = MultiGzDecoder::new(std::io::BufReader::with_capacity(1 << 18, plain));
    match scan.all(unpacked) {
        // A file that cannot be unpacked completely is not used at all.
        Err(DataError::Record(bad)) => {
            found(ScanItem::Bad {
                record: bad,
                bytes: file.bytes(),
            })?;
            return Ok([0; 32]);
        }
        other => other?,
    }
    let (hash, records) = (scan.hash(), scan.records_of_packed);
    if let (Ok(records @ 1..), bytes) = (u32::try_from(records), file.bytes()) {
        found(ScanItem::Extent(Extent {
            start: 0,
            bytes,
            records,
        }))?;
    }
    Ok(hash)
}

fn too_large(file: &str, how: &str) -> DataError {
    DataError::format(
        file,
        format_args!(
            "the compressed file is too large to be unpacked at once: the limits are {EXTENT_BYTES_MAX} bytes packed \
             and {RECORD_BYTES_MAX} unpacked, and it has more bytes {how}; make its shards smaller"
        ),
    )
}

struct TfRecordScan<'a, 'b> {
    file: &'a str,
    file_bytes: u64,
    found: &'a mut ItemSink<'b>,
    hasher: blake3::Hasher,
    /// The number of the next record.
    number: u64,
    /// Small records that are grouped into one extent.
    open: Option<Extent>,
    is_packed: bool,
    records_of_packed: u64,
}

impl<'a, 'b> TfRecordScan<'a, 'b> {
    fn new(file: &'a Arc<dyn StoredObject>, found: &'a mut ItemSink<'b>) -> Self {
        Self {
            file: file.location(),
            file_bytes: file.bytes(),
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
        let mut window = ReadWindow::new(reader);
        loop {
            let offset = window.position();
            if self.is_packed && offset > RECORD_BYTES_MAX {
                return Err(too_large(self.file, "unpacked"));
            }
            let read = |error| failed(self.file, offset, error);
            let buffered = window.look(HEADER_BYTES).map_err(read)?;
            let mut frame = next(buffered);
            if let NextFrame::Partial { bytes } = frame
                && bytes <= RECORD_BYTES_MAX
            {
                frame = next(window.look(bytes as usize).map_err(read)?);
            }
            let lost = match frame {
                NextFrame::Short if window.buffered().is_empty() => return Ok(()),
                NextFrame::Short => "the file ends in the middle of a record's length".to_owned(),
                NextFrame::Wrong => {
                    "its length is damaged; the rest of the file is unreadable".into()
                }
                NextFrame::Partial { bytes } => format!(
                    "the file ends before the record does, which has {bytes} bytes (the limit is {RECORD_BYTES_MAX})"
                ),
                NextFrame::Whole(frame) => {
                    let data = &window.buffered()[frame.data.clone()];
                    let bytes = frame.bytes();
                    let problem = match frame.is_sound(data) {
                        true => example::check(data).err(),
                        false => Some(ExampleError::Checksum),
                    };
                    match problem {
                        Some(problem) => self.bad(offset, bytes as u64, problem)?,
                        None => self.good(offset, bytes as u64, frame.masked)?,
                    }
                    self.number += 1;
                    window.advance(bytes);
                    continue;
                }
            };
            return self.bad(offset, self.rest(offset), lost);
        }
    }

    /// Returns the size of the rest of the file. In a compressed file it is unknown.
    fn rest(&self, offset: u64) -> u64 {
        match self.is_packed {
            true => u64::MAX,
            false => self.file_bytes.saturating_sub(offset),
        }
    }

    fn bad(
        &mut self,
        offset: u64,
        bytes: u64,
        problem: impl fmt::Display,
    ) -> Result<(), DataError> {
        self.close()?;
        let record = BadRecord::new(self.file, offset, Some(self.number), problem);
        (self.found)(ScanItem::Bad { record, bytes })
    }

    fn good(&mut self, offset: u64, bytes: u64, masked: u32) -> Result<(), DataError> {
        let mut facts = [0; 12];
        facts[..8].copy_from_slice(&bytes.to_le_bytes());
        facts[8..].copy_from_slice(&masked.to_le_bytes());
        self.hasher.update(&facts);
        if self.is_packed {
            self.records_of_packed += 1;
            return (self.found)(ScanItem::Progress);
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
            Some(extent) => (self.found)(ScanItem::Extent(extent)),
            None => Ok(()),
        }
    }
}
