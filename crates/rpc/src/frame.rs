//! Frames between two nodes: a fixed header, a short head, then f32 values. Little-endian; all lengths are bounded.
//!
//! Frames of a connection are numbered. A receiver accepts only the next number, so lost, repeated and reordered frames
//! end the connection, and the caller sends unanswered calls again on a new one.

use ronde_core::byte_reader::number;

use crate::limits::RpcLimits;
use crate::values::CallValues;

/// The size of a header in bytes.
pub(crate) const HEADER_BYTES: usize = 32;
/// The maximum size of a head in bytes: arguments or results beside the values, or an error.
pub(crate) const HEAD_BYTES_MAX: usize = 1 << 20;
/// The size in bytes of the address at the end of the head of a frame with lent values.
pub(crate) const ADDRESS_BYTES: usize = 8;
/// The maximum number of calls that one frame acknowledges.
pub(crate) const ACKNOWLEDGED_MAX: usize = 1_024;

const MAGIC: [u8; 3] = *b"rrp";

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RpcFrameKind {
    /// A call that expects a result.
    Call = 1,
    /// A call without a result.
    Send = 2,
    /// The result of a call, or the receipt of a call without one.
    Answer = 3,
    /// The failure of a call: a [`FailureCode`], then text.
    Failure = 4,
    /// The caller has these answers: numbers of calls, eight bytes each.
    Acknowledge = 5,
    /// The caller no longer waits for a call.
    Cancel = 6,
    /// All calls for which the caller waits, after a new connection: numbers of calls, eight bytes each.
    Waiting = 7,
    /// This many further messages with lent values were read (instead of the number of a call); the first one, with
    /// zero, means that values may be lent.
    Returned = 8,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FailureCode {
    UnknownFunction = 1,
    FunctionFailed = 2,
    Overloaded = 3,
    Arguments = 4,
    DeadlinePassed = 5,
    /// The call was executed, but its answer is no longer kept.
    AnswerDropped = 6,
    TooLarge = 7,
}

impl FailureCode {
    const ALL: [Self; 7] = [
        Self::UnknownFunction,
        Self::FunctionFailed,
        Self::Overloaded,
        Self::Arguments,
        Self::DeadlinePassed,
        Self::AnswerDropped,
        Self::TooLarge,
    ];

    pub(crate) fn from_wire(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as u8 == byte)
    }
}

/// The header of every frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RpcFrameHeader {
    pub(crate) kind: RpcFrameKind,
    /// The number of the frame in its connection and direction.
    pub(crate) sequence: u32,
    /// The number of the call.
    pub(crate) call: u64,
    pub(crate) head_bytes: u32,
    /// The values stay in the memory of the sender; the head ends with their address.
    pub(crate) is_lent: bool,
    pub(crate) value_count: u64,
}

/// The reason why a header of a frame is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RpcFrameError {
    #[error("it does not start with the magic bytes of a frame")]
    Magic,
    #[error("unknown frame kind {kind}")]
    Kind { kind: u8 },
    #[error("reserved bytes are not zero")]
    Reserved,
    #[error("a head of {bytes} bytes, limit {limit}")]
    HeadLength { bytes: u32, limit: usize },
    #[error("{values} values, limit {limit}")]
    ValueCount { values: u64, limit: usize },
    #[error("lent values without an address")]
    NoAddress,
}

/// The reason why the head of a call is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CallHeadError {
    #[error("a call is cut off")]
    CutOff,
    #[error("a function's name of {bytes} bytes is cut off")]
    NameCutOff { bytes: usize },
    #[error(transparent)]
    Name(#[from] std::str::Utf8Error),
}

impl RpcFrameHeader {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..3].copy_from_slice(&MAGIC);
        out[3] = self.kind as u8;
        out[4..8].copy_from_slice(&self.sequence.to_le_bytes());
        out[8..16].copy_from_slice(&self.call.to_le_bytes());
        out[16..20].copy_from_slice(&self.head_bytes.to_le_bytes());
        out[20] = u8::from(self.is_lent);
        out[24..32].copy_from_slice(&self.value_count.to_le_bytes());
        out
    }

    /// Decodes a header, or returns why it is invalid.
    pub(crate) fn decode(
        bytes: &[u8; HEADER_BYTES],
        message_bytes_max: usize,
    ) -> Result<Self, RpcFrameError> {
        if bytes[..3] != MAGIC {
            return Err(RpcFrameError::Magic);
        }
        let kind = match bytes[3] {
            1 => RpcFrameKind::Call,
            2 => RpcFrameKind::Send,
            3 => RpcFrameKind::Answer,
            4 => RpcFrameKind::Failure,
            5 => RpcFrameKind::Acknowledge,
            6 => RpcFrameKind::Cancel,
            7 => RpcFrameKind::Waiting,
            8 => RpcFrameKind::Returned,
            kind => return Err(RpcFrameError::Kind { kind }),
        };
        if bytes[20] > 1 || bytes[21..24] != [0; 3] {
            return Err(RpcFrameError::Reserved);
        }
        let header = Self {
            kind,
            sequence: number(&bytes[4..8]) as u32,
            call: number(&bytes[8..16]),
            head_bytes: number(&bytes[16..20]) as u32,
            is_lent: bytes[20] == 1,
            value_count: number(&bytes[24..32]),
        };
        let (head_max, values_max) = match kind {
            RpcFrameKind::Call | RpcFrameKind::Send | RpcFrameKind::Answer => {
                (HEAD_BYTES_MAX, message_bytes_max / 4)
            }
            RpcFrameKind::Failure | RpcFrameKind::Waiting => (HEAD_BYTES_MAX, 0),
            RpcFrameKind::Acknowledge => (8 * ACKNOWLEDGED_MAX, 0),
            RpcFrameKind::Cancel | RpcFrameKind::Returned => (0, 0),
        };
        if header.head_bytes as usize > head_max {
            let bytes = header.head_bytes;
            return Err(RpcFrameError::HeadLength {
                bytes,
                limit: head_max,
            });
        }
        if header.value_count > values_max as u64 {
            let values = header.value_count;
            return Err(RpcFrameError::ValueCount {
                values,
                limit: values_max,
            });
        }
        if header.is_lent
            && (header.value_count == 0 || (header.head_bytes as usize) < ADDRESS_BYTES)
        {
            return Err(RpcFrameError::NoAddress);
        }
        Ok(header)
    }
}

/// The contents of a frame; connections add its number.
#[derive(Debug)]
pub(crate) struct FrameBody {
    pub(crate) kind: RpcFrameKind,
    pub(crate) call: u64,
    pub(crate) head: Vec<u8>,
    pub(crate) values: CallValues,
}

impl FrameBody {
    pub(crate) fn failure(call: u64, code: FailureCode, text: &str) -> Self {
        let mut head = vec![code as u8];
        let end = text.floor_char_boundary(16 << 10);
        head.extend_from_slice(&text.as_bytes()[..end]);
        Self {
            kind: RpcFrameKind::Failure,
            call,
            head,
            values: CallValues::none(),
        }
    }

    /// Returns a frame with numbers of calls.
    pub(crate) fn numbers(kind: RpcFrameKind, calls: &[u64]) -> Self {
        Self {
            kind,
            call: 0,
            head: calls.iter().flat_map(|call| call.to_le_bytes()).collect(),
            values: CallValues::none(),
        }
    }

    pub(crate) fn cancel(call: u64) -> Self {
        Self {
            kind: RpcFrameKind::Cancel,
            call,
            head: Vec::new(),
            values: CallValues::none(),
        }
    }

    /// Returns the message that `count` further messages with lent values were read.
    pub(crate) fn returned(count: u64) -> Self {
        Self {
            kind: RpcFrameKind::Returned,
            call: count,
            head: Vec::new(),
            values: CallValues::none(),
        }
    }

    /// Returns the number of bytes of the frame.
    pub(crate) fn bytes(&self) -> usize {
        HEADER_BYTES + self.head.len() + 4 * self.values.len()
    }

    pub(crate) fn header(&self, sequence: u32) -> RpcFrameHeader {
        RpcFrameHeader {
            kind: self.kind,
            sequence,
            call: self.call,
            head_bytes: self.head.len() as u32,
            is_lent: false,
            value_count: self.values.len() as u64,
        }
    }

    /// Returns the header and the end of the head with which the values are lent.
    pub(crate) fn lent_header(&self, sequence: u32) -> (RpcFrameHeader, [u8; ADDRESS_BYTES]) {
        let header = RpcFrameHeader {
            head_bytes: (self.head.len() + ADDRESS_BYTES) as u32,
            is_lent: true,
            ..self.header(sequence)
        };
        (header, (self.values.as_ptr() as u64).to_le_bytes())
    }

    /// Returns the numbers of calls in the head.
    pub(crate) fn listed(&self) -> impl Iterator<Item = u64> {
        let calls = self.head.chunks_exact(8);
        calls.map(number)
    }

    /// Returns the code and the text of a failure.
    pub(crate) fn failure_parts(&self) -> Option<(FailureCode, String)> {
        let (code, text) = self.head.split_first()?;
        let text = String::from_utf8_lossy(text).into_owned();
        Some((FailureCode::from_wire(*code)?, text))
    }
}

/// The head of a call: which function, its time limit, and its arguments as JSON.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CallHead<'a> {
    pub(crate) version: u32,
    /// Milliseconds until the caller stops waiting, counted from the arrival.
    pub(crate) limit_ms: u32,
    pub(crate) function: &'a str,
    pub(crate) arguments: &'a [u8],
}

impl<'a> CallHead<'a> {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(10 + self.function.len() + self.arguments.len());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.limit_ms.to_le_bytes());
        out.extend_from_slice(&(self.function.len() as u16).to_le_bytes());
        out.extend_from_slice(self.function.as_bytes());
        out.extend_from_slice(self.arguments);
        out
    }

    /// Decodes the head of a call, or returns why it is invalid.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self, CallHeadError> {
        let (fixed, rest) = bytes.split_at_checked(10).ok_or(CallHeadError::CutOff)?;
        let name_bytes = number(&fixed[8..]) as usize;
        let cut = || CallHeadError::NameCutOff { bytes: name_bytes };
        let (function, arguments) = rest.split_at_checked(name_bytes).ok_or_else(cut)?;
        Ok(Self {
            version: number(&fixed[..4]) as u32,
            limit_ms: number(&fixed[4..8]) as u32,
            function: std::str::from_utf8(function)?,
            arguments,
        })
    }
}

/// Checks the sizes of a message before it is sent: returns the bytes and the limit if it is too large.
pub(crate) fn check_size(
    head: usize,
    values: usize,
    limits: &RpcLimits,
) -> Result<(), (usize, usize)> {
    if head > HEAD_BYTES_MAX {
        return Err((head, HEAD_BYTES_MAX));
    }
    if 4 * values > limits.message_bytes_max {
        return Err((4 * values, limits.message_bytes_max));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_heads_round_trip_and_limits_hold() {
        let header = RpcFrameHeader {
            kind: RpcFrameKind::Answer,
            sequence: 7,
            call: 1 << 40,
            head_bytes: 12,
            is_lent: true,
            value_count: 250,
        };
        let limit = 1_000;
        assert_eq!(RpcFrameHeader::decode(&header.encode(), limit), Ok(header));
        let broken = |change: fn(&mut RpcFrameHeader)| {
            let mut broken = header;
            change(&mut broken);
            RpcFrameHeader::decode(&broken.encode(), limit)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(broken(|h| h.value_count = 251), "251 values, limit 250");
        assert!(broken(|h| h.value_count = u64::MAX).contains("limit 250"));
        assert!(broken(|h| h.head_bytes = u32::MAX).contains("limit 1048576"));
        assert!(broken(|h| h.kind = RpcFrameKind::Cancel).contains("limit 0"));
        assert!(broken(|h| h.kind = RpcFrameKind::Failure).contains("250 values, limit 0"));
        assert!(broken(|h| h.head_bytes = 7).contains("without an address"));
        assert!(broken(|h| h.value_count = 0).contains("without an address"));
        let head = CallHead {
            version: 3,
            limit_ms: 10,
            function: "füge.an",
            arguments: b"[1]",
        };
        let bytes = head.encode();
        assert_eq!(CallHead::decode(&bytes), Ok(head));
        for end in 0..18 {
            assert!(CallHead::decode(&bytes[..end]).is_err(), "{end}");
        }
    }
}
