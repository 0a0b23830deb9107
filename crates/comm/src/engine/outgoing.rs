//! Sending: frames to each peer in order, as far as the transport has room.

use std::io::ErrorKind;
use std::sync::atomic::Ordering;

use super::Engine;
use super::peer::{Outgoing, Payload, Presence};
use crate::frame::{Call, FrameKind, HEADER_BYTES, Header};

impl Engine {
    /// Queues a frame.
    pub(super) fn enqueue(
        &mut self,
        peer: usize,
        kind: FrameKind,
        sequence: u64,
        call: Call,
        payload: Payload,
    ) {
        let bytes = match &payload {
            Payload::Bytes(bytes) => bytes.len(),
            Payload::Collective(place) => place.len(),
            Payload::Message(message) => message.buffer.bytes().len(),
        };
        let header = Header {
            kind,
            generation: self.generation,
            sequence,
            call,
            bytes: bytes as u64,
        };
        self.peers[peer].out.push_back(Outgoing {
            header: header.encode(),
            payload,
            done: 0,
        });
    }

    pub(super) fn say_goodbye(&mut self) {
        for peer in self.others() {
            if self.peers[peer].presence != Presence::Closed {
                let nothing = Payload::Bytes(Vec::new());
                self.enqueue(peer, FrameKind::Goodbye, 0, Call::NOTHING, nothing);
            }
        }
    }

    /// Sends to everybody what there is room for; whether a frame was completed.
    pub(super) fn flush(&mut self) -> bool {
        let mut completed = false;
        for peer in self.others() {
            while self.peers[peer].has_to_send() && !self.peers[peer].blocked {
                completed |= self.flush_one(peer);
            }
        }
        completed
    }

    /// Writes once to a peer that has a frame to get; whether that completed the frame.
    fn flush_one(&mut self, peer: usize) -> bool {
        let Some(frame) = self.peers[peer].out.front_mut() else {
            return false;
        };
        let body = match (&frame.payload, &self.running) {
            (Payload::Bytes(bytes), _) => bytes.as_slice(),
            (Payload::Message(message), _) => message.buffer.bytes(),
            (Payload::Collective(place), Some(running)) => running.memory.bytes(place),
            // Frames of a collective are taken back before it ends.
            (Payload::Collective(_), None) => &[],
        };
        let head = &frame.header[frame.done.min(HEADER_BYTES)..];
        let total = HEADER_BYTES + body.len();
        let rest = &body[frame.done.saturating_sub(HEADER_BYTES)..];
        match self.transport.write(peer, head, rest) {
            Ok(count) => {
                frame.done += count;
                let counters = &self.mailbox;
                counters.bytes.fetch_add(count as u64, Ordering::Relaxed);
                let payload = count.saturating_sub(head.len()) as u64;
                counters.payload_bytes.fetch_add(payload, Ordering::Relaxed);
                if frame.done < total {
                    // A short write: most likely there is no more room.
                    self.peers[peer].blocked = true;
                    return false;
                }
                self.sent(peer);
                true
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

    /// The first frame to `peer` is complete.
    fn sent(&mut self, peer: usize) {
        let Some(frame) = self.peers[peer].out.pop_front() else {
            return;
        };
        match frame.payload {
            Payload::Bytes(_) => {}
            Payload::Message(message) => message.finish(),
            Payload::Collective(_) => {
                if let Some(running) = &mut self.running {
                    running.sends_left -= 1;
                }
            }
        }
    }
}
