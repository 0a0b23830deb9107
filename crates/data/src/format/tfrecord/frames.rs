//! [`Frame`]: the length of a record, its bytes, and their sums.

use std::ops::Range;

use crc_fast::CrcAlgorithm;

/// Length and its sum.
pub(super) const HEADER_BYTES: usize = 12;
/// The sum behind the bytes.
pub(super) const FOOTER_BYTES: usize = 4;

/// What is said of bytes with another sum.
pub(super) const WRONG_DATA: &str = "its bytes are damaged: their CRC-32C is another";

/// A record in the bytes that it was found in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// Its own bytes, counted from the frame's first one.
    pub(super) data: Range<usize>,
    /// What the frame says of them.
    pub(super) masked: u32,
}

impl Frame {
    /// Bytes of the whole frame.
    pub(super) fn bytes(&self) -> usize {
        self.data.end + FOOTER_BYTES
    }

    /// Whether the bytes are those that were written.
    pub(super) fn is_sound(&self, data: &[u8]) -> bool {
        masked_sum(data) == self.masked
    }
}

/// What bytes begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// A frame that is there as a whole.
    Whole(Frame),
    /// A sound header of a frame of `bytes` bytes that are not all there.
    Partial { bytes: u64 },
    /// Fewer bytes than a header has.
    Short,
    /// A length whose sum is another.
    Wrong,
}

/// CRC-32C as TensorFlow stores it, masked lest sums of sums become special.
pub(super) fn masked_sum(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Looks at the frame that `bytes` begin with.
pub(super) fn next(bytes: &[u8]) -> Next {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
        return Next::Short;
    };
    let Some(sum) = rest.first_chunk::<4>() else {
        return Next::Short;
    };
    if masked_sum(length) != u32::from_le_bytes(*sum) {
        return Next::Wrong;
    }
    let framing = (HEADER_BYTES + FOOTER_BYTES) as u64;
    let whole = u64::from_le_bytes(*length).saturating_add(framing);
    if (bytes.len() as u64) < whole {
        return Next::Partial { bytes: whole };
    }
    let end = whole as usize - FOOTER_BYTES;
    let footer = bytes[end..].first_chunk::<4>().copied().unwrap_or_default();
    Next::Whole(Frame {
        data: HEADER_BYTES..end,
        masked: u32::from_le_bytes(footer),
    })
}
