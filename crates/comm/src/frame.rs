//! Frames between members: a fixed header that describes the sender's call in full, then bytes.
//!
//! Because every header carries the whole call (kind, type, operator, length), a member that receives a
//! different call can name both without a query. Little-endian; all lengths are bounded.

use ronde_core::byte_reader::number;
use ronde_core::{DType, Generation, ReduceOp};
use ronde_schedule::Algorithm;

/// Size of a header, in bytes.
pub(crate) const HEADER_BYTES: usize = 48;
/// Maximum size of one frame, in bytes.
pub(crate) const FRAME_BYTES_MAX: u64 = 1 << 40;
/// Maximum size of a notice, and of a list of ranks that a member waits for, in bytes.
pub(crate) const NOTICE_BYTES_MAX: u64 = 64 << 10;
/// Stands for a length that differs between ranks or is not known yet.
pub(crate) const ANY_LEN: u64 = u64::MAX;

const MAGIC: [u8; 3] = *b"rnd";

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// Part of a collective.
    Collective = 1,
    /// A message from rank to rank.
    Message = 2,
    /// The group has failed, with the cause.
    Notice = 3,
    /// The sender leaves in good order and sends nothing more.
    Goodbye = 4,
    /// The sender waits in a collective; sent to members that may be in another one. Followed by the
    /// round that it waits in, the bytes that it has received and the ranks that it waits for, eight
    /// bytes each.
    Call = 5,
    /// A message from rank to rank whose bytes the receiver reads in the sender's memory, at the address in
    /// `sequence`; nothing follows.
    Lent = 6,
    /// The sender has read `sequence` further lent messages of the receiver; 0: it can read the
    /// receiver's memory.
    LentRead = 7,
}

/// Kind of a call, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum CallKind {
    AllReduce = 1,
    ExactSum = 2,
    ReduceScatter = 3,
    AllGather = 4,
    Broadcast = 5,
    Barrier = 6,
    Message = 7,
    Nothing = 8,
    Reduce = 9,
    Gather = 10,
    Scatter = 11,
    AllToAll = 12,
    AllToAllUnequal = 13,
    ExactSumScatter = 14,
}

impl CallKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ExactSum => "exact_sum",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Barrier => "barrier",
            Self::Message => "message",
            Self::Nothing => "nothing",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::AllToAllUnequal => "all_to_all_unequal",
            Self::ExactSumScatter => "exact_sum_scatter",
        }
    }

    fn from_wire(byte: u8) -> Option<Self> {
        [
            Self::AllReduce,
            Self::ExactSum,
            Self::ReduceScatter,
            Self::AllGather,
            Self::Broadcast,
            Self::Barrier,
            Self::Message,
            Self::Nothing,
            Self::Reduce,
            Self::Gather,
            Self::Scatter,
            Self::AllToAll,
            Self::AllToAllUnequal,
            Self::ExactSumScatter,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// The full description of a call: two calls match exactly when these are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) kind: CallKind,
    pub(crate) dtype: DType,
    pub(crate) op: ReduceOp,
    pub(crate) algorithm: Option<Algorithm>,
    /// Root of an operation, tag of a message, or hash of the ranks that hold the shards on their hosts or receive each
    /// slice.
    pub(crate) detail: u64,
    /// Number of elements, or [`ANY_LEN`].
    pub(crate) len: u64,
}

impl Call {
    pub(crate) const NOTHING: Self = Self {
        kind: CallKind::Nothing,
        dtype: DType::U8,
        op: ReduceOp::Sum,
        algorithm: None,
        detail: 0,
        len: 0,
    };

    /// Describes the call in text.
    pub(crate) fn describe(&self) -> String {
        let what = match self.kind {
            CallKind::Barrier | CallKind::Nothing => return self.kind.name().to_owned(),
            CallKind::AllGather => return format!("all_gather of {}", self.dtype),
            CallKind::AllReduce | CallKind::ReduceScatter => {
                format!("{}({})", self.kind.name(), self.op)
            }
            CallKind::Broadcast | CallKind::Scatter => {
                format!("{} from rank {}", self.kind.name(), self.detail)
            }
            CallKind::Reduce => format!("reduce({}) to rank {}", self.op, self.detail),
            CallKind::Gather => format!("gather to rank {}", self.detail),
            CallKind::AllToAll | CallKind::AllToAllUnequal => self.kind.name().to_owned(),
            CallKind::Message => format!("message with tag {}", self.detail),
            CallKind::ExactSum | CallKind::ExactSumScatter => {
                format!("{} over spread {:016x}", self.kind.name(), self.detail)
            }
        };
        let of = if self.len == ANY_LEN {
            self.dtype.to_string()
        } else {
            format!("{} x {}", self.len, self.dtype)
        };
        let by = self.algorithm.map_or(String::new(), |a| format!(" by {a}"));
        format!("{what} of {of}{by}")
    }

    /// Encodes the call in 20 bytes.
    pub(crate) fn encode(&self) -> [u8; 20] {
        let mut bytes = [0; 20];
        let algorithm = self.algorithm.map_or(0, |a| {
            1 + Algorithm::ALL.iter().position(|b| *b == a).unwrap_or(0) as u8
        });
        bytes[..4].copy_from_slice(&[self.kind as u8, self.dtype as u8, self.op as u8, algorithm]);
        bytes[4..12].copy_from_slice(&self.detail.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Encodes the call as three numbers, to compare two calls at once and to store them atomically.
    pub(crate) fn words(&self) -> [u64; 3] {
        let mut bytes = [0; 24];
        bytes[..20].copy_from_slice(&self.encode());
        bytemuck::cast::<[u8; 24], [u64; 3]>(bytes)
    }

    /// Decodes [`Call::words`] on the same machine.
    pub(crate) fn from_words(words: [u64; 3]) -> Option<Self> {
        let bytes = bytemuck::cast::<[u64; 3], [u8; 24]>(words);
        bytes.first_chunk().and_then(Self::decode)
    }

    pub(crate) fn decode(bytes: &[u8; 20]) -> Option<Self> {
        Some(Self {
            kind: CallKind::from_wire(bytes[0])?,
            dtype: DType::ALL.into_iter().find(|d| *d as u8 == bytes[1])?,
            op: ReduceOp::ALL.into_iter().find(|op| *op as u8 == bytes[2])?,
            algorithm: match bytes[3] {
                0 => None,
                place => Some(*Algorithm::ALL.get(usize::from(place) - 1)?),
            },
            detail: number(&bytes[4..12]),
            len: number(&bytes[12..20]),
        })
    }
}

/// The header of every frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: FrameKind,
    pub(crate) generation: Generation,
    /// Number of the collective in its group, address of a lent message, or number of those that were read; 0 in
    /// other frames.
    pub(crate) sequence: u64,
    pub(crate) call: Call,
    /// Number of bytes that follow.
    pub(crate) bytes: u64,
}

/// The reason why a header of a frame is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("it does not start with the magic bytes of a frame")]
    Magic,
    #[error("unknown frame kind {kind}")]
    Kind { kind: u8 },
    #[error("invalid call in a frame header")]
    Call,
    #[error("{bytes} bytes, limit {limit}")]
    Length { bytes: u64, limit: u64 },
    #[error("{bytes} lent bytes, limit {FRAME_BYTES_MAX}")]
    LentLength { bytes: u64 },
}

impl FrameHeader {
    /// Returns the number of bytes of the payload, which follow or are lent.
    pub(crate) fn payload_bytes(&self) -> u64 {
        match self.kind {
            FrameKind::Lent => self.call.len.saturating_mul(self.call.dtype.size() as u64),
            _ => self.bytes,
        }
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[..3].copy_from_slice(&MAGIC);
        out[3] = self.kind as u8;
        out[4..12].copy_from_slice(&self.generation.0.to_le_bytes());
        out[12..20].copy_from_slice(&self.sequence.to_le_bytes());
        out[20..40].copy_from_slice(&self.call.encode());
        out[40..48].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    /// Decodes a header, or returns why it is invalid.
    pub(crate) fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        if bytes[..3] != MAGIC {
            return Err(FrameError::Magic);
        }
        let kind = match bytes[3] {
            1 => FrameKind::Collective,
            2 => FrameKind::Message,
            3 => FrameKind::Notice,
            4 => FrameKind::Goodbye,
            5 => FrameKind::Call,
            6 => FrameKind::Lent,
            7 => FrameKind::LentRead,
            kind => return Err(FrameError::Kind { kind }),
        };
        let mut call = [0; 20];
        call.copy_from_slice(&bytes[20..40]);
        let header = Self {
            kind,
            generation: Generation(number(&bytes[4..12])),
            sequence: number(&bytes[12..20]),
            call: Call::decode(&call).ok_or(FrameError::Call)?,
            bytes: number(&bytes[40..48]),
        };
        let limit = match kind {
            FrameKind::Collective | FrameKind::Message => FRAME_BYTES_MAX,
            FrameKind::Notice | FrameKind::Call => NOTICE_BYTES_MAX,
            FrameKind::Goodbye | FrameKind::Lent | FrameKind::LentRead => 0,
        };
        if header.bytes > limit {
            let bytes = header.bytes;
            return Err(FrameError::Length { bytes, limit });
        }
        let payload = header.payload_bytes();
        if payload > FRAME_BYTES_MAX {
            return Err(FrameError::LentLength { bytes: payload });
        }
        Ok(header)
    }
}
