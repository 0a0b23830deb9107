//! Sending: frames to each peer in order, as far as the transport has room.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use super::StreamExecutor;
use super::peer::{OutgoingFrame, OutgoingPayload, StreamState};
use crate::frame::{Call, CallKind, FrameHeader, FrameKind, HEADER_BYTES};
use crate::running::RunningCollective;

/// Most bytes of one frame of a collective: what is to be told in between waits for no more than that.
///
/// Every frame costs about as much as copying 64 KiB, for its header ends a segment on both sides.
const CHUNK_BYTES: usize = 4 << 20;

impl StreamExecutor {
    /// Queues a frame.
    pub(super) fn enqueue(
        &mut self,
        peer: usize,
        kind: FrameKind,
        sequence: u64,
        call: Call,
        payload: OutgoingPayload,
    ) {
        let header = FrameHeader {
            kind,
            generation: self.generation,
            sequence,
            call,
            bytes: 0,
        };
        let state = &mut self.peers[peer];
        state.starved = false;
        let frame = OutgoingFrame {
            header,
            payload,
            before: 0,
            done: 0,
        };
        match state.out.front() {
            // That this rank waits is not to wait for what it waits for.
            Some(first) if kind == FrameKind::Call => {
                state.out.insert(usize::from(first.done > 0), frame);
            }
            _ => state.out.push_back(frame),
        }
    }

    pub(super) fn say_goodbye(&mut self) {
        for peer in self.others() {
            if self.peers[peer].presence != StreamState::Closed {
                let nothing = OutgoingPayload::Bytes(Vec::new());
                self.enqueue(peer, FrameKind::Goodbye, 0, Call::NOTHING, nothing);
            }
        }
    }

    /// Sends to everybody what there is room for; whether something was completed.
    pub(super) fn flush(&mut self) -> bool {
        let mut completed = false;
        for peer in self.others() {
            while self.peers[peer].can_send() {
                completed |= self.flush_one(peer);
            }
        }
        completed
    }

    /// Rounds have moved: what was not ready may be now.
    pub(super) fn feed(&mut self) {
        for state in &mut self.peers {
            state.starved = false;
        }
    }

    /// Writes once to a peer that has something to get; whether that completed a payload.
    fn flush_one(&mut self, peer: usize) -> bool {
        let Some(frame) = self.peers[peer].out.front_mut() else {
            return false;
        };
        let running = self.running.as_ref();
        if frame.done == 0 {
            frame.header.bytes = frame.next_bytes(running) as u64;
            if frame.is_starved() {
                self.peers[peer].starved = true;
                return false;
            }
        }
        let header = frame.header.encode();
        let head = &header[frame.done.min(HEADER_BYTES)..];
        let total = HEADER_BYTES + frame.header.bytes as usize;
        let rest = &frame.body(running)[frame.done.saturating_sub(HEADER_BYTES)..];
        match self.transport.write(peer, head, rest) {
            Ok(count) => {
                frame.done += count;
                let counters = &self.mailbox;
                counters.bytes.fetch_add(count as u64, Ordering::Relaxed);
                let payload = count.saturating_sub(head.len());
                counters
                    .payload_bytes
                    .fetch_add(payload as u64, Ordering::Relaxed);
                let is_complete = frame.done == total;
                if let (OutgoingPayload::Collective(sending), Some(running)) =
                    (&frame.payload, &mut self.running)
                {
                    running.rounds.gone(sending, payload);
                }
                if !is_complete {
                    // A short write: most likely there is no more room.
                    self.peers[peer].blocked = true;
                    return false;
                }
                self.sent(peer)
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.peers[peer].blocked = true;
                false
            }
            Err(_) => {
                // What the peer said before it went is still to be read and says more than this.
                self.peers[peer].deaf = true;
                false
            }
        }
    }

    /// The first frame to `peer` is complete; whether its payload is.
    fn sent(&mut self, peer: usize) -> bool {
        let out = &mut self.peers[peer].out;
        if let Some(frame) = out.front_mut() {
            frame.before += frame.header.bytes as usize;
            frame.done = 0;
            if frame.before < frame.len() {
                return false;
            }
        }
        let Some(frame) = out.pop_front() else {
            return false;
        };
        match frame.payload {
            OutgoingPayload::Bytes(_) => {}
            OutgoingPayload::Message(message) => message.finish(),
            OutgoingPayload::Collective(sending) => {
                if let Some(running) = &mut self.running {
                    running.rounds.sent(&sending);
                }
            }
        }
        true
    }
}

impl OutgoingFrame {
    /// Bytes of the payload.
    pub(super) fn len(&self) -> usize {
        match &self.payload {
            OutgoingPayload::Bytes(bytes) => bytes.len(),
            OutgoingPayload::Collective(sending) => sending.place.len(),
            OutgoingPayload::Message(message) => message.buffer.bytes().len(),
        }
    }

    /// Bytes of the payload for the next frame.
    fn next_bytes(&self, running: Option<&RunningCollective>) -> usize {
        let left = self.len() - self.before;
        match (&self.payload, running) {
            // Its receiver tells by the length of the frame whether both mean the same.
            (OutgoingPayload::Collective(_), _)
                if self.header.call.kind == CallKind::AllToAllUnequal =>
            {
                left
            }
            (OutgoingPayload::Collective(sending), Some(running)) => {
                let ready = running.rounds.ready(sending) - self.before;
                left.min(ready).min(CHUNK_BYTES)
            }
            _ => left,
        }
    }

    /// Whether there is nothing to fill the next frame with.
    fn is_starved(&self) -> bool {
        self.header.bytes == 0 && self.len() > self.before
    }

    /// The bytes of the frame under way.
    pub(super) fn body<'a>(&'a self, running: Option<&'a RunningCollective>) -> &'a [u8] {
        let bytes = match (&self.payload, running) {
            (OutgoingPayload::Bytes(bytes), _) => bytes.as_slice(),
            (OutgoingPayload::Message(message), _) => message.buffer.bytes(),
            (OutgoingPayload::Collective(sending), Some(running)) => {
                running.memory.bytes(&sending.place)
            }
            // Frames of a collective are taken back before it ends.
            (OutgoingPayload::Collective(_), None) => &[],
        };
        let bytes = bytes.get(self.before..).unwrap_or_default();
        &bytes[..bytes.len().min(self.header.bytes as usize)]
    }
}
