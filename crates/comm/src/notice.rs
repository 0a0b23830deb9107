//! [`Notice`]: the message with which a member notifies the others why the group has failed.

use ronde_core::byte_reader::number;
use ronde_core::{CollectiveError, Generation, GroupRank};

use crate::frame::{Call, CallKind, NOTICE_BYTES_MAX};

/// The cause of a failure, as sent to the other members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A member aborted, or the sender failed in a way that only text describes.
    Aborted { reason: String },
    /// The sender lost a peer.
    PeerLost {
        sequence: u64,
        call: Call,
        peer: u32,
        cause: String,
    },
    /// The sender received a call that differs from its own.
    Mismatch {
        sequence: u64,
        sender_call: Call,
        peer: u32,
        peer_call: Call,
    },
    /// The sender cannot allocate memory.
    OutOfMemory { call: Call, bytes: u64 },
}

impl Notice {
    /// Encodes the notice of `origin`, the rank that met the cause; receivers forward it unchanged.
    pub(crate) fn encode(&self, origin: u32) -> Vec<u8> {
        let none = Call::NOTHING;
        let size;
        let (code, sequence, peer, calls, text) = match self {
            Self::Aborted { reason } => (1, 0, 0, [none, none], reason.as_bytes()),
            Self::PeerLost {
                sequence,
                call,
                peer,
                cause,
            } => (2, *sequence, *peer, [*call, none], cause.as_bytes()),
            Self::Mismatch {
                sequence,
                sender_call,
                peer,
                peer_call,
            } => (3, *sequence, *peer, [*sender_call, *peer_call], &[][..]),
            Self::OutOfMemory { call, bytes } => {
                size = bytes.to_le_bytes();
                (4, 0, 0, [*call, none], &size[..])
            }
        };
        let mut out = vec![code];
        out.extend(u64::to_le_bytes(sequence));
        out.extend(u32::to_le_bytes(peer));
        out.extend(origin.to_le_bytes());
        out.extend(calls[0].encode());
        out.extend(calls[1].encode());
        let room = NOTICE_BYTES_MAX as usize - out.len();
        out.extend(text.iter().take(room));
        out
    }

    /// Decodes the notice and its origin.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let (fixed, rest) = bytes.split_at_checked(57)?;
        let text = String::from_utf8_lossy(rest).into_owned();
        let call = |from: usize| Call::decode(fixed[from..from + 20].try_into().ok()?);
        let (sequence, peer) = (number(&fixed[1..9]), number(&fixed[9..13]) as u32);
        let notice = match fixed[0] {
            1 => Self::Aborted { reason: text },
            2 => Self::PeerLost {
                sequence,
                call: call(17)?,
                peer,
                cause: text,
            },
            3 => Self::Mismatch {
                sequence,
                sender_call: call(17)?,
                peer,
                peer_call: call(37)?,
            },
            4 => Self::OutOfMemory {
                call: call(17)?,
                bytes: u64::from_le_bytes(rest.try_into().ok()?),
            },
            _ => return None,
        };
        Some((notice, number(&fixed[13..17]) as usize))
    }

    /// Returns the error of a member that received this notice from `notifier`. `mine` is the member's
    /// own call of that sequence number, if it made one.
    pub(crate) fn error(
        self,
        notifier: usize,
        me: usize,
        generation: Generation,
        mine: Option<Call>,
    ) -> CollectiveError {
        match self {
            Self::Aborted { reason } => CollectiveError::Aborted {
                by: format!("group rank {notifier}"),
                reason,
            },
            Self::PeerLost { peer, cause, .. } if peer as usize == me => CollectiveError::Aborted {
                by: format!("group rank {notifier}"),
                reason: format!("it lost the connection to this rank: {cause}"),
            },
            Self::PeerLost {
                sequence,
                call,
                peer,
                cause,
            } => CollectiveError::PeerLost {
                operation: operation_name(call.kind).to_owned(),
                sequence,
                generation,
                peer: GroupRank(peer),
                cause: format!("{cause} (reported by group rank {notifier})"),
            },
            Self::OutOfMemory { call, bytes } => CollectiveError::OutOfMemory {
                operation: operation_name(call.kind).to_owned(),
                rank: GroupRank(notifier as u32),
                bytes: usize::try_from(bytes).unwrap_or(usize::MAX),
            },
            Self::Mismatch {
                sequence,
                sender_call,
                peer,
                peer_call,
            } => {
                let mine = mine.unwrap_or(if peer as usize == me {
                    peer_call
                } else {
                    Call::NOTHING
                });
                let mine_in_words = match mine.kind {
                    CallKind::Nothing => "nothing yet".to_owned(),
                    _ => mine.describe(),
                };
                let (other, theirs) = if sender_call == mine {
                    (peer, peer_call)
                } else {
                    (notifier as u32, sender_call)
                };
                CollectiveError::Mismatch {
                    sequence,
                    peer: GroupRank(other),
                    mine: mine_in_words,
                    theirs: theirs.describe(),
                }
            }
        }
    }
}

/// Returns the name of an operation for errors; an idle group has one too.
pub(crate) fn operation_name(kind: CallKind) -> &'static str {
    match kind {
        CallKind::Nothing => "between operations",
        other => other.name(),
    }
}
