//! [`Peer`]: the two streams to one other member.

use std::collections::VecDeque;

use ronde_core::Buffer;

use super::{Early, Posted};
use crate::frame::{HEADER_BYTES, Header};
use crate::memory::Place;
use crate::transport::Interest;
use crate::work::Completion;

/// Most bytes of a peer's frames that are kept before they are wanted.
pub(super) const EARLY_BYTES_MAX: u64 = 1 << 30;

/// What a frame on its way out carries.
pub(super) enum Payload {
    /// Nothing or bytes of its own.
    Bytes(Vec<u8>),
    /// A part of the running collective's memory.
    Collective(Place),
    /// A message.
    Message(Posted),
}

/// A frame on its way out.
pub(super) struct Outgoing {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) payload: Payload,
    /// Bytes of header and payload that are gone already.
    pub(super) done: usize,
}

/// Where a frame's bytes go.
pub(super) enum Target {
    /// Into the running collective's memory.
    Collective(Place),
    /// Into a waiting receive's buffer.
    Message(Posted),
    /// Aside, until somebody wants them.
    Aside(Vec<u8>),
    /// Nowhere yet: no room aside. Nothing more is read from this peer.
    Parked,
}

/// A frame whose header is here.
pub(super) struct Arriving {
    pub(super) header: Header,
    pub(super) target: Target,
    pub(super) done: usize,
}

impl Arriving {
    pub(super) fn left(&self) -> usize {
        self.header.bytes as usize - self.done
    }
}

/// Whether a peer can still send.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Presence {
    #[default]
    Here,
    /// It has said goodbye.
    Left,
    /// Its stream ended.
    Closed,
}

/// The two streams to one other member, and what waits in them.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) out: VecDeque<Outgoing>,
    /// The transport has no room.
    pub(super) blocked: bool,
    /// Writing failed; reading will tell why.
    pub(super) deaf: bool,
    pub(super) arriving: Option<Arriving>,
    /// Bytes that were read but not looked at: `unread[at..]`.
    pub(super) unread: Vec<u8>,
    pub(super) at: usize,
    /// Collective frames that came early.
    pub(super) early: VecDeque<Early>,
    /// Bytes of all frames of this peer that came early.
    pub(super) early_bytes: u64,
    pub(super) presence: Presence,
}

impl Peer {
    pub(super) fn interest(&self) -> Interest {
        Interest {
            read: self.presence != Presence::Closed && !self.is_parked(),
            write: self.blocked && self.has_to_send(),
        }
    }

    pub(super) fn is_parked(&self) -> bool {
        let target = self.arriving.as_ref().map(|arriving| &arriving.target);
        matches!(target, Some(Target::Parked))
    }

    pub(super) fn is_open(&self) -> bool {
        self.presence != Presence::Closed
    }

    pub(super) fn has_to_send(&self) -> bool {
        !self.out.is_empty() && !self.deaf
    }
}

/// A message on its way out keeps what it needs to be given back or reported.
impl Posted {
    pub(super) fn finish(self) {
        let Self {
            buffer, completion, ..
        } = self;
        give_back(completion, buffer);
    }
}

fn give_back(completion: Completion, buffer: Buffer) {
    completion.complete(Ok(buffer));
}
