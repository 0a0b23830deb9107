//! Lending: a long message between two processes of one host is read by its receiver where it lies, which copies it once.
//!
//! Only a header travels on the stream, in the order of all messages. The receiver reads the bytes piece by piece, as if
//! they followed the header, and then acknowledges them. Until then the sender keeps the buffer. When the group ends or
//! fails, the sender's mark ends before any buffer is released, so a receiver never takes released memory for a message.
//!
//! A member lends only to those that have announced that they can read its memory, and sends over the stream to all others. It is
//! announced to the sender of the first long message: an announcement to every peer would be a message for each pair, and few pairs
//! exchange long messages. An offer is accepted only if the connection has one address at both ends, because a remote member could
//! name another process. Groups with TLS lend too, unless `comm.transport` is `"tcp"`: a process that may read a worker's memory
//! may read its keys as well, and lent bytes pass through no socket that others could watch.

use std::io;
use std::time::{Duration, Instant};

use ronde_core::{Buffer, MemoryKind};
use ronde_peer_memory::{LendingMark, PeerMemory};

use super::incoming::{extend_buffer, room};
use super::peer::{FrameTarget, OutgoingPayload, Peer, StreamState};
use super::{EarlyFrame, PostedMessage, StreamExecutor};
use crate::frame::{Call, FrameHeader, FrameKind};

/// Minimum size of a message that is lent, in bytes: a shorter one takes as long over the stream.
const LENT_BYTES_MIN: usize = 128 << 10;
/// Maximum number of bytes that are read at once, between which other peers have their turn.
const PIECE_BYTES: usize = 1 << 20;
/// How long to wait for a better cause when a peer's memory can no longer be read: its notice, or the end of its stream.
const CAUSE_MAX: Duration = Duration::from_secs(1);

/// A peer whose lent message could not be read. Nothing more is taken from its memory.
#[derive(Debug)]
pub(super) struct UnreadableMemory {
    pub(super) until: Instant,
    cause: String,
}

impl Peer {
    /// Returns whether the bytes of the incoming frame are being read in the peer's memory.
    pub(super) fn is_reading_lent(&self) -> bool {
        let lent = |arriving: &super::peer::IncomingFrame| {
            arriving.header.kind == FrameKind::Lent
                && !matches!(arriving.target, FrameTarget::Parked)
        };
        self.arriving.as_ref().is_some_and(lent)
    }

    /// Returns whether the peer has still to read messages of this rank.
    pub(super) fn has_to_read(&self) -> bool {
        !self.lent.is_empty() && self.presence == StreamState::Here
    }
}

impl StreamExecutor {
    /// Lends messages from now on to peers that can read them.
    pub(super) fn lend(&mut self, mark: LendingMark, memories: Vec<Option<PeerMemory>>) {
        self.lending = Some(mark);
        for (state, memory) in self.peers.iter_mut().zip(memories) {
            state.memory = memory;
        }
    }

    /// Notifies the sender of a long message, once, that this rank can read the next ones in its memory. Others are not notified:
    /// most members of a large group never send each other messages.
    pub(super) fn ask_to_lend(&mut self, peer: usize, header: &FrameHeader) {
        let state = &mut self.peers[peer];
        if header.payload_bytes() >= LENT_BYTES_MIN as u64
            && state.memory.is_some()
            && !std::mem::replace(&mut state.has_asked, true)
        {
            self.acknowledge(peer, 0);
        }
    }

    /// Returns the frame of a message: its kind, the address if it is lent or 0, and its payload.
    pub(super) fn outgoing(
        &self,
        to: usize,
        message: PostedMessage,
    ) -> (FrameKind, u64, OutgoingPayload) {
        if self.lending.is_some() && self.peers[to].may_lend && is_lendable(&message.buffer) {
            let address = message.buffer.bytes().as_ptr().expose_provenance() as u64;
            return (FrameKind::Lent, address, OutgoingPayload::Lent(message));
        }
        (FrameKind::Message, 0, OutgoingPayload::Message(message))
    }

    /// Notifies a peer that `count` further messages were read in its memory.
    pub(super) fn acknowledge(&mut self, peer: usize, count: u64) {
        // After its goodbye a rank sends nothing more.
        if !self.has_said_goodbye && self.peers[peer].presence == StreamState::Here {
            let nothing = OutgoingPayload::Bytes(Vec::new());
            self.enqueue(peer, FrameKind::LentRead, count, Call::NOTHING, nothing);
        }
    }

    /// Handles a peer's acknowledgement: it can read this rank's memory, and has read `count` further messages.
    pub(super) fn returned(&mut self, peer: usize, count: u64) {
        let state = &mut self.peers[peer];
        let Some(count) = usize::try_from(count)
            .ok()
            .filter(|count| *count <= state.lent.len())
        else {
            let lent = state.lent.len();
            return self.broken(peer, format!("it has read {count} of {lent} lent messages"));
        };
        state.may_lend = true;
        state.lent.drain(..count).for_each(PostedMessage::finish);
    }

    /// Returns the messages that a peer did not read before it left in good order: like those in the buffers of a stream
    /// that has ended, they were sent, and no operation of the peer waits for them.
    pub(super) fn return_unread(&mut self, peer: usize) {
        let unread = std::mem::take(&mut self.peers[peer].lent);
        unread.into_iter().for_each(PostedMessage::finish);
    }

    /// Reads the next piece of a lent message; returns whether more bytes may be available from this peer.
    pub(super) fn read_lent(&mut self, peer: usize) -> bool {
        let Peer {
            arriving: Some(arriving),
            memory: Some(memory),
            ..
        } = &mut self.peers[peer]
        else {
            return false;
        };
        if let Err(error) = extend_buffer(arriving) {
            self.out_of_memory(error);
            return false;
        }
        let address = arriving.header.sequence.wrapping_add(arriving.done as u64);
        let room = room(arriving, &mut self.running);
        let count = room.len().min(PIECE_BYTES);
        match memory.read(address, &mut room[..count]) {
            Ok(()) => self.filled(peer, count),
            Err(error) => self.cannot_read(peer, &error),
        }
        // Frames that were read from the stream with the header.
        self.parse_frames(peer);
        true
    }

    /// Records that a message cannot be read. A peer that has failed, left or died ends its mark or its process; its notice
    /// or the end of its stream follows and is a better cause.
    fn cannot_read(&mut self, peer: usize, error: &io::Error) {
        let state = &mut self.peers[peer];
        state.unreadable = Some(UnreadableMemory {
            until: ronde_clock::deadline(CAUSE_MAX.min(self.timeout)),
            cause: format!("a message in its memory could not be read: {error}"),
        });
        let Some(arriving) = state.arriving.take() else {
            return;
        };
        if let FrameTarget::Message(posted) = arriving.target {
            let address = (peer, posted.call.detail);
            self.posted.entry(address).or_default().push_front(posted);
        } else {
            state.early_bytes -= EarlyFrame::weight(&arriving.header);
        }
    }

    /// Fails if a peer's memory could not be read and no better cause has followed; returns whether it did.
    pub(super) fn fail_if_unreadable(&mut self) -> bool {
        let overdue = self.peers.iter().enumerate().find_map(|(peer, state)| {
            let unreadable = state.unreadable.as_ref()?;
            ronde_clock::left(unreadable.until)
                .is_zero()
                .then(|| (peer, unreadable.cause.clone()))
        });
        if let Some((peer, cause)) = &overdue {
            self.lost(*peer, cause);
        }
        overdue.is_some()
    }
}

/// Returns whether a buffer is long enough to be lent, and in memory that another process can read.
fn is_lendable(buffer: &Buffer) -> bool {
    let is_readable = matches!(buffer.memory_kind(), MemoryKind::Host | MemoryKind::Shared);
    is_readable && buffer.bytes().len() >= LENT_BYTES_MIN
}
