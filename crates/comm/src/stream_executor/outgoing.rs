//! Sending: frames to each peer in order, as far as the transport accepts bytes.

use std::io::ErrorKind;

use super::StreamExecutor;
use super::mailbox::Mailbox;
use super::peer::{OutgoingFrame, OutgoingPayload, StreamState};
use crate::frame::{Call, CallKind, FrameHeader, FrameKind, HEADER_BYTES};
use crate::running::RunningCollective;

/// Maximum size of one frame of a collective, in bytes: urgent frames wait for no more than that.
///
/// Every frame costs about as much as copying 64 KiB, because its header ends a segment on both sides.
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
            done: 0,
            counted: 0,
        };
        match state.out.front() {
            // A report that this rank waits must not queue behind the data that it waits to send; nor must an
            // acknowledgement, for which a peer keeps a buffer.
            Some(first) if matches!(kind, FrameKind::Call | FrameKind::LentRead) => {
                state.out.insert(usize::from(first.done > 0), frame);
            }
            _ => state.out.push_back(frame),
        }
    }

    pub(super) fn say_goodbye(&mut self) {
        self.has_said_goodbye = true;
        for peer in self.others() {
            if self.peers[peer].presence != StreamState::Closed {
                let nothing = OutgoingPayload::Bytes(Vec::new());
                self.enqueue(peer, FrameKind::Goodbye, 0, Call::NOTHING, nothing);
            }
        }
    }

    /// Sends to all peers as much as the transport accepts; returns whether a payload was completed.
    pub(super) fn flush(&mut self) -> bool {
        let mut completed = false;
        for peer in self.others() {
            while self.peers[peer].can_send() {
                completed |= self.flush_one(peer);
            }
        }
        completed
    }

    /// Marks payloads that were not ready as worth another try, because a round has made progress.
    pub(super) fn resume_starved(&mut self) {
        for state in &mut self.peers {
            state.starved = false;
        }
    }

    /// Writes once to a peer with pending frames; returns whether that completed a payload.
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
            frame.count(&self.mailbox);
        }
        let header = frame.header.encode();
        let head = &header[frame.done.min(HEADER_BYTES)..];
        let total = HEADER_BYTES + frame.header.bytes as usize;
        let rest = &frame.body(running)[frame.payload_done()..];
        match self.transport.write(peer, head, rest) {
            Ok(count) => {
                frame.done += count;
                let payload = count.saturating_sub(head.len());
                let is_complete = frame.done == total;
                if let (OutgoingPayload::Collective(sending), Some(running)) =
                    (&frame.payload, &mut self.running)
                {
                    running.rounds.record_sent(sending, payload);
                }
                if !is_complete {
                    // A short write: most likely the transport is full.
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
                // What the peer sent before it closed is still to be read and is a better cause.
                self.peers[peer].write_failed = true;
                false
            }
        }
    }

    /// Handles a completely sent frame to `peer`; returns whether its payload is complete.
    fn sent(&mut self, peer: usize) -> bool {
        let out = &mut self.peers[peer].out;
        if let Some(frame) = out.front_mut() {
            (frame.done, frame.counted) = (0, 0);
            if frame.start(self.running.as_ref()) < frame.len() && frame.is_collective() {
                return false;
            }
        }
        let Some(frame) = out.pop_front() else {
            return false;
        };
        match frame.payload {
            OutgoingPayload::Bytes(_) => {}
            OutgoingPayload::Message(message) => message.finish(),
            OutgoingPayload::Lent(message) => self.peers[peer].lent.push_back(message),
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
    /// Returns the size of the payload that follows the header, in bytes.
    pub(super) fn len(&self) -> usize {
        match &self.payload {
            OutgoingPayload::Bytes(bytes) => bytes.len(),
            OutgoingPayload::Collective(sending) => sending.place.len(),
            OutgoingPayload::Message(message) => message.buffer.bytes().len(),
            OutgoingPayload::Lent(_) => 0,
        }
    }

    /// Returns the payload bytes of the next frame.
    fn next_bytes(&self, running: Option<&RunningCollective>) -> usize {
        let start = self.start(running);
        let left = self.len() - start;
        match (&self.payload, running) {
            // The receiver checks the length of this frame against its own call.
            (OutgoingPayload::Collective(_), _)
                if self.header.call.kind == CallKind::AllToAllUnequal =>
            {
                left
            }
            (OutgoingPayload::Collective(sending), Some(running)) => {
                let ready = running.rounds.ready(sending) - start;
                left.min(ready).min(CHUNK_BYTES)
            }
            _ => left,
        }
    }

    /// Counts the bytes of the next frame before they are written, so that whatever a peer has received is counted. Reports
    /// about the group are not counted: how many there are depends on time. A lent message counts as if it were sent.
    fn count(&mut self, mailbox: &Mailbox) {
        let kind = self.header.kind;
        if !matches!(
            kind,
            FrameKind::Collective | FrameKind::Message | FrameKind::Lent
        ) {
            return;
        }
        // A frame that the transport did not accept starts again, possibly with more bytes.
        let bytes = HEADER_BYTES as u64 + self.header.payload_bytes();
        let headers = if self.counted == 0 {
            HEADER_BYTES as u64
        } else {
            0
        };
        mailbox.count_streamed(bytes - self.counted, bytes - self.counted - headers);
        self.counted = bytes;
    }

    /// Returns whether no bytes are ready for the next frame.
    fn is_starved(&self) -> bool {
        self.header.bytes == 0 && self.len() > 0
    }

    /// Returns the whole frame when no collective runs.
    pub(super) fn encoded(&mut self) -> Vec<u8> {
        if self.done == 0 {
            self.header.bytes = self.next_bytes(None) as u64;
        }
        let mut frame = self.header.encode().to_vec();
        frame.extend(self.body(None));
        frame
    }

    fn is_collective(&self) -> bool {
        matches!(self.payload, OutgoingPayload::Collective(_))
    }

    /// Returns the payload bytes of this frame that were sent.
    fn payload_done(&self) -> usize {
        self.done.saturating_sub(HEADER_BYTES)
    }

    /// Returns the offset of this frame's bytes in the payload. Only payloads of collectives take several frames.
    fn start(&self, running: Option<&RunningCollective>) -> usize {
        match (&self.payload, running) {
            (OutgoingPayload::Collective(sending), Some(running)) => {
                running.rounds.bytes_sent(sending) - self.payload_done()
            }
            _ => 0,
        }
    }

    /// Returns the bytes of the current frame.
    pub(super) fn body<'a>(&'a self, running: Option<&'a RunningCollective>) -> &'a [u8] {
        let bytes = match (&self.payload, running) {
            (OutgoingPayload::Bytes(bytes), _) => bytes.as_slice(),
            (OutgoingPayload::Message(message), _) => message.buffer.bytes(),
            (OutgoingPayload::Collective(sending), Some(running)) => {
                running.memory.bytes(&sending.place)
            }
            // Frames of a collective are removed before it ends.
            (OutgoingPayload::Collective(_), None) | (OutgoingPayload::Lent(_), _) => &[],
        };
        let bytes = bytes.get(self.start(running)..).unwrap_or_default();
        &bytes[..bytes.len().min(self.header.bytes as usize)]
    }
}
