//! [`RecordFrame`]: a record's length, its bytes, and their checksums.

use std::ops::Range;

use crc_fast::CrcAlgorithm;

/// Size of a length and its checksum.
pub(super) const HEADER_BYTES: usize = 12;
/// Size of the checksum after the bytes.
pub(super) const FOOTER_BYTES: usize = 4;

/// A record in the buffer where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordFrame {
    /// The record's data, relative to the start of the frame.
    pub(super) data: Range<usize>,
    /// The checksum in the frame.
    pub(super) masked: u32,
}

impl RecordFrame {
    /// Returns the size of the whole frame in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.data.end + FOOTER_BYTES
    }

    /// Returns whether the checksum matches the data.
    pub(super) fn is_sound(&self, data: &[u8]) -> bool {
        masked_sum(data) == self.masked
    }
}

/// The item that a buffer starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NextFrame {
    /// A complete frame.
    Whole(RecordFrame),
    /// A valid header of a frame of `bytes` bytes that is incomplete in the buffer.
    Partial { bytes: u64 },
    /// Fewer bytes than a header needs.
    Short,
    /// A length whose checksum is wrong.
    Wrong,
}

/// Computes CRC-32C as TensorFlow stores it; the mask avoids computing a CRC over data that contains CRCs.
pub(super) fn masked_sum(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Parses the frame that `bytes` starts with.
pub(super) fn next(bytes: &[u8]) -> NextFrame {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return NextFrame::Short;
    };
    let Some(sum) = rest.first_chunk::<4>() else {
        return NextFrame::Short;
    };
    if masked_sum(length) != u32::from_le_bytes(*sum) {
        return NextFrame::Wrong;
    }
    let framing = (HEADER_BYTES + FOOTER_BYTES) as u64;
    let whole = u64::from_le_bytes(*length).saturating_add(framing);
    if (bytes.len() as u64) < whole {
        return NextFrame::Partial { bytes: whole };
    }
    let end = whole as usize - FOOTER_BYTES;
    let footer = bytes[end..].first_chunk::<4>().copied().unwrap_or_default();
    NextFrame::Whole(RecordFrame {
        data: HEADER_BYTES..end,
        masked: u32::from_le_bytes(footer),
    })
}
