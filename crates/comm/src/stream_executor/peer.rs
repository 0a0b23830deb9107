//! [`Peer`]: the state of the streams to one other member.

use std::collections::VecDeque;

use ronde_core::Buffer;
use ronde_peer_memory::PeerMemory;

use super::lending::UnreadableMemory;
use super::{EarlyFrame, PostedMessage};
use crate::frame::FrameHeader;
use crate::rounds::{ExpectedMessage, OutgoingMessage};
use crate::transport::Interest;
use crate::work::Completion;

/// Maximum size of a peer's frames that are buffered before they are expected, in bytes.
pub(super) const EARLY_BYTES_MAX: u64 = 1 << 30;

/// The payload of an outgoing frame.
pub(super) enum OutgoingPayload {
    /// Separate bytes, possibly none.
    Bytes(Vec<u8>),
    /// A part of the running collective's memory, in as many frames as it takes.
    Collective(OutgoingMessage),
    /// A message.
    Message(PostedMessage),
    /// A message that the peer reads in this rank's memory: nothing follows the header.
    Lent(PostedMessage),
}

/// A payload that is being sent, with the frame that carries its next part.
pub(super) struct OutgoingFrame {
    /// The header of the frame; its length is set when the frame starts.
    pub(super) header: FrameHeader,
    pub(super) payload: OutgoingPayload,
    /// Bytes of this frame's header and payload sent so far.
    pub(super) done: usize,
    /// Bytes of this frame's header and payload that are in the number of bytes sent.
    pub(super) counted: u64,
}

/// The destination of a frame's bytes.
pub(super) enum FrameTarget {
    /// Into the running collective's memory.
    Collective(ExpectedMessage),
    /// Into a waiting receive's buffer.
    Message(PostedMessage),
    /// Into a buffer, until a receiver needs them.
    Buffered(Vec<u8>),
    /// Nowhere yet: the buffer is full. Nothing more is read from this peer.
    Parked,
}

/// A frame whose header was received.
pub(super) struct IncomingFrame {
    pub(super) header: FrameHeader,
    pub(super) target: FrameTarget,
    pub(super) done: usize,
}

impl IncomingFrame {
    pub(super) fn left(&self) -> usize {
        self.header.payload_bytes() as usize - self.done
    }
}

/// Whether a peer can still send.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum StreamState {
    #[default]
    Here,
    /// It has sent its goodbye.
    Left,
    /// It has sent the hello of a later generation, which continues this stream. Nothing more is read.
    InNextGeneration,
    /// Its stream ended.
    Closed,
}

/// How far a waiting rank has got in a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CollectiveProgress {
    /// Number of the collective.
    pub(super) sequence: u64,
    /// The first round that lacks data.
    pub(super) round: u64,
    /// Bytes received in all rounds.
    pub(super) received: u64,
}

/// A peer's last report of its wait.
#[derive(Debug)]
pub(super) struct WaitReport {
    pub(super) at: CollectiveProgress,
    /// The ranks that it waits for.
    pub(super) awaited: Vec<usize>,
}

/// The two streams to one other member, and their queues.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) out: VecDeque<OutgoingFrame>,
    /// The transport accepts no bytes.
    pub(super) blocked: bool,
    /// The next payload is not ready.
    pub(super) starved: bool,
    /// Writing failed; reading will return the cause.
    pub(super) write_failed: bool,
    pub(super) arriving: Option<IncomingFrame>,
    pub(super) unread: ReadBuffer,
    /// Bytes of the incoming frame that were not taken from the stream.
    pub(super) frame_left: u64,
    /// It has sent something that is not a frame, so where the next one begins is unknown.
    pub(super) is_garbled: bool,
    /// Calls that it has reported and that have not started here.
    pub(super) reported_calls: VecDeque<FrameHeader>,
    /// The last wait that it has reported.
    pub(super) waits: Option<WaitReport>,
    /// Collective frames that arrived early.
    pub(super) early: VecDeque<EarlyFrame>,
    /// Bytes of all frames of this peer that arrived early.
    pub(super) early_bytes: u64,
    pub(super) presence: StreamState,
    /// The peer can read this rank's memory.
    pub(super) may_lend: bool,
    /// Messages that the peer has not read yet, in the order of their headers.
    pub(super) lent: VecDeque<PostedMessage>,
    /// The peer's memory, if this rank can read it.
    pub(super) memory: Option<PeerMemory>,
    /// The peer knows that this rank can read its memory.
    pub(super) has_asked: bool,
    pub(super) unreadable: Option<UnreadableMemory>,
}

impl Peer {
    pub(super) fn interest(&self) -> Interest {
        Interest {
            read: !matches!(
                self.presence,
                StreamState::Closed | StreamState::InNextGeneration
            ) && !self.is_parked()
                && !self.is_reading_lent(),
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
        !self.out.is_empty() && !self.write_failed
    }

    /// Returns whether a write may send something.
    pub(super) fn can_send(&self) -> bool {
        self.has_to_send() && !self.blocked && !self.starved
    }
}

/// Size of the first reads from a peer, in bytes: most peers of a large group only ever send short frames.
const FIRST_READ_BYTES: usize = 4 << 10;
/// Maximum size of one read while frames are short, in bytes.
const READ_BYTES_MAX: usize = 64 << 10;

/// Bytes that were read but not parsed.
pub(super) struct ReadBuffer {
    bytes: Vec<u8>,
    at: usize,
    end: usize,
    /// Size of the next read, in bytes.
    read_bytes: usize,
}

impl Default for ReadBuffer {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            at: 0,
            end: 0,
            read_bytes: FIRST_READ_BYTES,
        }
    }
}

impl ReadBuffer {
    /// Returns the unparsed bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.at..self.end]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at == self.end
    }

    /// Removes the first `count` bytes, which were parsed.
    pub(super) fn take(&mut self, count: usize) {
        self.at += count;
    }

    pub(super) fn clear(&mut self) {
        (self.at, self.end) = (0, 0);
    }

    /// Returns space for `count` bytes after the unparsed ones.
    pub(super) fn room(&mut self, count: usize) -> &mut [u8] {
        self.bytes.copy_within(self.at..self.end, 0);
        (self.at, self.end) = (0, self.end - self.at);
        if self.bytes.len() < self.end + count {
            self.bytes.resize(self.end + count, 0);
        }
        &mut self.bytes[self.end..self.end + count]
    }

    /// Returns the number of bytes to read if nothing better is known.
    pub(super) fn read_bytes(&self) -> usize {
        self.read_bytes
    }

    /// Records that `count` bytes of the space are filled.
    pub(super) fn filled(&mut self, count: usize) {
        self.end += count;
        if count == self.read_bytes {
            self.read_bytes = (2 * count).min(READ_BYTES_MAX);
        }
    }
}

/// A message that is being sent keeps its buffer to return it and its completion to report.
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
