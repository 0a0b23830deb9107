//! [`Peer`]: the two streams to one other member.

use std::collections::VecDeque;

use ronde_core::Buffer;

use super::{EarlyFrame, PostedMessage};
use crate::frame::FrameHeader;
use crate::rounds::{ExpectedMessage, OutgoingMessage};
use crate::transport::Interest;
use crate::work::Completion;

/// Most bytes of a peer's frames that are kept before they are wanted.
pub(super) const EARLY_BYTES_MAX: u64 = 1 << 30;

/// What a frame on its way out carries.
pub(super) enum OutgoingPayload {
    /// Nothing or bytes of its own.
    Bytes(Vec<u8>),
    /// A part of the running collective's memory, in as many frames as it takes.
    Collective(OutgoingMessage),
    /// A message.
    Message(PostedMessage),
}

/// A payload on its way out, with the frame that carries the next part of it.
pub(super) struct OutgoingFrame {
    /// That of the frame; its count of bytes is set when it begins.
    pub(super) header: FrameHeader,
    pub(super) payload: OutgoingPayload,
    /// Bytes of the payload that went in frames before this one.
    pub(super) before: usize,
    /// Bytes of this frame's header and payload that are gone already.
    pub(super) done: usize,
}

/// Where a frame's bytes go.
pub(super) enum FrameTarget {
    /// Into the running collective's memory.
    Collective(ExpectedMessage),
    /// Into a waiting receive's buffer.
    Message(PostedMessage),
    /// Aside, until somebody wants them.
    Aside(Vec<u8>),
    /// Nowhere yet: no room aside. Nothing more is read from this peer.
    Parked,
}

/// A frame whose header is here.
pub(super) struct IncomingFrame {
    pub(super) header: FrameHeader,
    pub(super) target: FrameTarget,
    pub(super) done: usize,
}

impl IncomingFrame {
    pub(super) fn left(&self) -> usize {
        self.header.bytes as usize - self.done
    }
}

/// Whether a peer can still send.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum StreamState {
    #[default]
    Here,
    /// It has said goodbye.
    Left,
    /// Its stream ended.
    Closed,
}

/// How far a rank that waits has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CollectiveProgress {
    /// Number of the collective.
    pub(super) sequence: u64,
    /// The first round of which it misses something.
    pub(super) round: u64,
    /// Bytes that it has received in all rounds.
    pub(super) received: u64,
}

/// What a peer has told of its waiting.
#[derive(Debug)]
pub(super) struct WaitReport {
    pub(super) at: CollectiveProgress,
    /// For whom.
    pub(super) awaited: Vec<usize>,
}

/// The two streams to one other member, and what waits in them.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) out: VecDeque<OutgoingFrame>,
    /// The transport has no room.
    pub(super) blocked: bool,
    /// What is to be sent first is not ready.
    pub(super) starved: bool,
    /// Writing failed; reading will tell why.
    pub(super) deaf: bool,
    pub(super) arriving: Option<IncomingFrame>,
    pub(super) unread: ReadBuffer,
    /// Calls that it has told of and that have not begun here.
    pub(super) told: VecDeque<FrameHeader>,
    /// The wait that it has last told of.
    pub(super) waits: Option<WaitReport>,
    /// Collective frames that came early.
    pub(super) early: VecDeque<EarlyFrame>,
    /// Bytes of all frames of this peer that came early.
    pub(super) early_bytes: u64,
    pub(super) presence: StreamState,
}

impl Peer {
    pub(super) fn interest(&self) -> Interest {
        Interest {
            read: self.presence != StreamState::Closed && !self.is_parked(),
            write: self.blocked && self.has_to_send(),
        }
    }

    pub(super) fn is_parked(&self) -> bool {
        let target = self.arriving.as_ref().map(|arriving| &arriving.target);
        matches!(target, Some(FrameTarget::Parked))
    }

    pub(super) fn is_open(&self) -> bool {
        self.presence != StreamState::Closed
    }

    pub(super) fn has_to_send(&self) -> bool {
        !self.out.is_empty() && !self.deaf
    }

    /// Whether a write may get something away.
    pub(super) fn can_send(&self) -> bool {
        self.has_to_send() && !self.blocked && !self.starved
    }
}

/// Bytes that were read but not looked at.
#[derive(Default)]
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl ReadBuffer {
    /// What is there.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// The first `count` bytes have been looked at.
    pub(super) fn take(&mut self, count: usize) {
        self.at += count;
    }

    pub(super) fn clear(&mut self) {
        (self.at, self.end) = (0, 0);
    }

    /// Room for `count` bytes behind those that are there.
    pub(super) fn room(&mut self, count: usize) -> &mut [u8] {
        self.bytes.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        if self.bytes.len() < self.end + count {
            self.bytes.resize(self.end + count, 0);
        }
        &mut self.bytes[self.end..self.end + count]
    }

    /// `count` bytes of the room are filled.
    pub(super) fn filled(&mut self, count: usize) {
        self.end += count;
    }
}

/// A message on its way out keeps what it needs to be given back or reported.
impl PostedMessage {
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
