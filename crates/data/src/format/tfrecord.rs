//! [`TfRecord`]: files of `tf.train.Example` records, as written by TensorFlow, optionally compressed by gzip.
//!
//! Each record is framed by its length (8 bytes), the masked CRC-32C of the length, the bytes, and their masked
//! CRC-32C, all little-endian. A record of more than 16 KiB is an extent; smaller ones are grouped up to that size. A
//! compressed file is one extent, which is unpacked at once (at most 1 GiB). After a damaged length the rest of a file
//! is unreadable; after damaged bytes the next record follows.
//!
//! The content hash covers length and CRC-32C of every usable record in order. It does not depend on compression, and
//! is as strong as these checksums.
//!
//! Sources: `tensorflow/core/lib/io/record_writer.h`, `tensorflow/core/example/example.proto`.
//!
//! The parser is our own: it checks checksums and structure in one pass over borrowed bytes.

pub mod example;
mod frames;
mod scan;
pub mod write;

use std::fmt;
use std::sync::Arc;

use example::ExampleError;
use frames::{NextFrame, RecordFrame, next};
use ronde_store::StoredObject;

use super::object::{is_gzip, unpack};
use super::record_file::changed;
use super::{
    BadRecord, Extent, FieldSelection, Format, RECORD_BYTES_MAX, Record, RecordFile, Records,
    ScanItem, SharedBytes,
};
use crate::error::DataError;

/// The size up to which small records are grouped into one extent, in bytes.
const EXTENT_BYTES: u64 = 16 << 10;

/// The format of TFRecord files.
#[derive(Debug, Clone, Default)]
pub struct TfRecord {
    wanted: Arc<FieldSelection>,
}

impl TfRecord {
    /// Creates the format for the fields in `wanted`.
    #[must_use]
    pub fn new(wanted: FieldSelection) -> Self {
        Self {
            wanted: Arc::new(wanted),
        }
    }
}

impl Format for TfRecord {
    fn identity(&self) -> String {
        "tfrecord version 1".to_owned()
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let mut head = vec![0; file.bytes().min(frames::HEADER_BYTES as u64) as usize];
        file.read_at(0, &mut head)?;
        if is_zlib(&head) {
            return Err(DataError::format(
                file.location(),
                "compression by zlib is not supported: write the file with \
                 compression_type=\"GZIP\" or without compression",
            ));
        }
        Ok(Box::new(TfRecordFile {
            file,
            wanted: self.wanted.clone(),
        }))
    }
}

struct TfRecordFile {
    file: Arc<dyn StoredObject>,
    wanted: Arc<FieldSelection>,
}

/// Returns whether a file that starts with `head` is compressed. A length can start like gzip data, but then its
/// checksum is right.
fn is_compressed(head: &[u8]) -> bool {
    let is_frame = matches!(next(head), NextFrame::Whole(_) | NextFrame::Partial { .. });
    is_gzip(head) && (head.len() < frames::HEADER_BYTES || !is_frame)
}

/// Returns whether a file that starts with `head` is compressed by zlib (RFC 1950, section 2.2).
fn is_zlib(head: &[u8]) -> bool {
    let Some(&[method, flags]) = head.first_chunk::<2>() else {
        return false;
    };
    let is_frame = matches!(next(head), NextFrame::Whole(_) | NextFrame::Partial { .. });
    let is_header = u16::from_be_bytes([method, flags]).is_multiple_of(31);
    method & 0x8f == 8 && is_header && !is_frame
}

impl RecordFile for TfRecordFile {
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        scan::scan(&self.file, found)
    }

    /// A compressed file is one extent.
    fn is_checked_at_once(&self, extent: &Extent) -> bool {
        extent.bytes < self.file.bytes()
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
        let is_packed = extent.start == 0 && is_compressed(piece.as_ref());
        let piece = match is_packed {
            true => SharedBytes::from(unpack(file, piece.as_ref(), RECORD_BYTES_MAX)?),
            false => piece,
        };
        let bytes = piece.as_ref();
        let (mut frames, mut offset) =
            (Vec::with_capacity(extent.records.min(1 << 16) as usize), 0);
        while offset < bytes.len() {
            let NextFrame::Whole(frame) = next(&bytes[offset..]) else {
                // The scan stops here, too.
                break;
            };
            let data = &bytes[offset + frame.data.start..offset + frame.data.end];
            let is_sound = frame.is_sound(data);
            // In a compressed file, bad records are in the extent and are detected again here.
            if !is_packed || (is_sound && example::check(data).is_ok()) {
                frames.push((offset, frame.clone(), is_sound));
            }
            offset += frame.bytes();
        }
        if frames.len() as u64 != u64::from(extent.records) {
            let problem = format_args!("{} records instead of {}", frames.len(), extent.records);
            return Err(changed(file, extent, problem));
        }
        Ok(Box::new(TfRecords {
            start: if is_packed { 0 } else { extent.start },
            location: file.to_owned(),
            wanted: self.wanted.clone(),
            piece,
            frames,
        }))
    }
}

struct TfRecords {
    start: u64,
    location: String,
    wanted: Arc<FieldSelection>,
    piece: SharedBytes,
    /// Each frame with its offset, and whether its checksum is right.
    frames: Vec<(usize, RecordFrame, bool)>,
}

impl Records for TfRecords {
    fn record(&self, number: u32) -> Result<Record<'_>, DataError> {
        let bad = |offset: usize, problem: &dyn fmt::Display| {
            BadRecord::new(
                self.location.clone(),
                self.start + offset as u64,
                None,
                problem,
            )
        };
        let Some((offset, frame, is_sound)) = self.frames.get(number as usize) else {
            return Err(bad(0, &format_args!("the extent has no record {number}")).into());
        };
        let data = &self.piece.as_ref()[offset + frame.data.start..offset + frame.data.end];
        if !is_sound {
            return Err(bad(*offset, &ExampleError::Checksum).into());
        }
        Ok(example::record(data, &self.wanted).map_err(|problem| bad(*offset, &problem))?)
    }
}

#[cfg(test)]
mod tests;
