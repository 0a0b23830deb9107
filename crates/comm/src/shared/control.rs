//! [`ControlMemory`]: the words with a member's progress, and the memory for operands
//! that are short or must be copied.
//!
//! Layout of the file that every member makes: a header with a secret (so that no other file is
//! mistaken for it), words each on its own cache line, the table of further segments, two slots
//! for announcements of operations, and a ring of stages for memory that is not shared.
//!
//! The first cache line of a slot holds a whole announcement, the number of the operation and up to
//! eight bytes of payload: a short operation moves only this line between cores.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::flags::{Flag, TURNS, turn};
use super::mapping::{Mapping, Span};
use super::pieces::stage_of;
use crate::frame::Call;

/// Size of two cache lines, in bytes: adjacent lines are fetched in pairs.
const LINE: usize = 128;
const SECRET: usize = 0;
const WAITERS: usize = LINE;
const BROUGHT: usize = 2 * LINE;
const WORKED: usize = 3 * LINE;
const TABLE: usize = 4 * LINE;
/// Maximum number of segments of a member besides this one.
pub(super) const SEGMENTS_MAX: usize = 256;
const SLOTS: usize = TABLE + SEGMENTS_MAX * 16;
/// Maximum size of an operand stored in the slot, in bytes.
pub(super) const INLINE_MAX: usize = 8 << 10;
/// Size of an operand that fits in the first cache line, in bytes.
pub(super) const RIDE_MAX: usize = 8;
const SLOT_BYTES: usize = 64 + INLINE_MAX;
/// Offsets of the 64-bit words after the number and the location: call, offset, own length, time, payload.
const CALL_AT: usize = 8;
const OFFSET_AT: usize = 32;
const OWN_LEN_AT: usize = 40;
const MOMENT_AT: usize = 48;
const RIDE_AT: usize = 56;
/// Size of a stage, the maximum size of a copied piece, in bytes.
pub(super) const STAGE_BYTES: usize = 128 << 10;
/// Number of stages in the ring; few, so that they stay in the cache of a core.
pub(super) const STAGES: u32 = 4;
const RING: usize = (SLOTS + TURNS as usize * SLOT_BYTES).next_multiple_of(4096);
/// Size of the file, in bytes.
pub(super) const CONTROL_BYTES: usize = RING + STAGES as usize * STAGE_BYTES;

/// Where the operand of a rank is in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperandLocation {
    /// It has no operand.
    Nothing,
    /// In the slot, after the announcement.
    Inline,
    /// In a segment.
    Segment { id: u32, offset: u64 },
    /// In private memory: copied through the stages.
    Staged,
}

impl OperandLocation {
    /// Encodes the location as a word and an offset.
    fn encode(self) -> (u32, u64) {
        match self {
            Self::Nothing => (0, 0),
            Self::Inline => (1, 0),
            Self::Staged => (2, 0),
            Self::Segment { id, offset } => (3 | id << 2, offset),
        }
    }

    fn decode(word: u32, offset: u64) -> Self {
        match word & 3 {
            0 => Self::Nothing,
            1 => Self::Inline,
            2 => Self::Staged,
            _ => Self::Segment {
                id: word >> 2,
                offset,
            },
        }
    }
}

/// A rank's announcement at the start of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) call: [u64; 3],
    pub(super) place: OperandLocation,
    /// Number of elements of this rank, where ranks may have different numbers.
    pub(super) own_len: u64,
    /// When this rank called the operation, on the clock of the host.
    pub(super) moment: u64,
    /// Up to [`RIDE_MAX`] bytes of payload.
    pub(super) ride: u64,
}

impl Announcement {
    /// Describes the call in text.
    pub(super) fn describe(&self) -> String {
        let call = Call::from_words(self.call);
        call.map_or_else(|| "no known call".to_owned(), |call| call.describe())
    }
}

/// The control memory of a member, this rank or a peer.
#[derive(Debug)]
pub(super) struct ControlMemory(Mapping);

impl ControlMemory {
    /// Wraps a mapping of [`CONTROL_BYTES`].
    pub(super) fn new(mapping: Mapping) -> Self {
        assert_eq!(
            mapping.len(),
            CONTROL_BYTES,
            "control memory of the wrong size"
        );
        Self(mapping)
    }

    /// Writes the secret; called before another process maps the file.
    pub(super) fn mark(&self, secret: &[u8; 16]) {
        self.0.span(SECRET..SECRET + 16).write(secret);
    }

    /// Returns whether the file contains the secret.
    pub(super) fn is_marked(&self, secret: &[u8; 16]) -> bool {
        let mut found = [0; 16];
        self.0.span(SECRET..SECRET + 16).read(&mut found);
        found == *secret
    }

    fn flag(&self, at: usize) -> Flag<'_> {
        Flag {
            word: self.0.word(at),
            waiters: self.0.word(WAITERS),
        }
    }

    /// Returns the total number of pieces that this member has copied to the stages.
    pub(super) fn brought(&self) -> Flag<'_> {
        self.flag(BROUGHT)
    }

    /// Returns the total number of pieces that this member has reduced or read.
    pub(super) fn worked(&self) -> Flag<'_> {
        self.flag(WORKED)
    }

    /// Returns the sequence number of the newest operation in its slot.
    pub(super) fn arrived(&self, sequence: u32) -> Flag<'_> {
        self.flag(slot(sequence))
    }

    fn place(&self, sequence: u32) -> &AtomicU32 {
        self.0.word(slot(sequence) + 4)
    }

    fn post_word(&self, sequence: u32, at: usize) -> &AtomicU64 {
        self.0.long_word(slot(sequence) + at)
    }

    /// Fills the slot of an operation, except for [`ControlMemory::arrived`].
    pub(super) fn write_post(&self, sequence: u32, post: &Announcement) {
        let set = |at, value| self.post_word(sequence, at).store(value, Ordering::Relaxed);
        let (place, offset) = post.place.encode();
        self.place(sequence).store(place, Ordering::Relaxed);
        for (at, word) in post.call.into_iter().enumerate() {
            set(CALL_AT + 8 * at, word);
        }
        set(OFFSET_AT, offset);
        set(OWN_LEN_AT, post.own_len);
        set(MOMENT_AT, post.moment);
        set(RIDE_AT, post.ride);
    }

    /// Returns the owner's announcement, once it has arrived.
    pub(super) fn read_post(&self, sequence: u32) -> Announcement {
        let load = |at| self.post_word(sequence, at).load(Ordering::Relaxed);
        let place = self.place(sequence).load(Ordering::Relaxed);
        Announcement {
            call: [load(CALL_AT), load(CALL_AT + 8), load(CALL_AT + 16)],
            place: OperandLocation::decode(place, load(OFFSET_AT)),
            own_len: load(OWN_LEN_AT),
            moment: load(MOMENT_AT),
            ride: load(RIDE_AT),
        }
    }

    /// Returns the space for `bytes` after the announcement.
    pub(super) fn inline(&self, sequence: u32, bytes: usize) -> Span<'_> {
        let at = slot(sequence) + if bytes <= RIDE_MAX { RIDE_AT } else { 64 };
        self.0.span(at..at + bytes)
    }

    /// Returns the stage of a piece.
    pub(super) fn stage(&self, piece: u32) -> Span<'_> {
        let at = RING + stage_of(piece, STAGES) as usize * STAGE_BYTES;
        self.0.span(at..at + STAGE_BYTES)
    }

    /// Records a segment's file descriptor and size; called before an announcement refers to it.
    pub(super) fn enter_segment(&self, id: u32, fd: u32, bytes: u64) {
        let at = TABLE + id as usize * 16;
        let span = self.0.span(at..at + 16);
        span.part(0..8).write(&u64::from(fd).to_le_bytes());
        span.part(8..16).write(&bytes.to_le_bytes());
    }

    /// Returns a segment's file descriptor and size.
    pub(super) fn segment(&self, id: u32) -> Option<(u32, usize)> {
        if id as usize >= SEGMENTS_MAX {
            return None;
        }
        let (at, mut entry) = (TABLE + id as usize * 16, [0; 16]);
        self.0.span(at..at + 16).read(&mut entry);
        let number = ronde_core::byte_reader::number;
        Some((number(&entry[..8]) as u32, number(&entry[8..]) as usize))
    }
}

fn slot(sequence: u32) -> usize {
    SLOTS + turn(sequence) as usize * SLOT_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announcement_is_the_same_when_read_and_slots_do_not_overlap() {
        let (_file, mapping) = Mapping::create(CONTROL_BYTES).unwrap();
        let control = ControlMemory::new(mapping);
        control.mark(&[5; 16]);
        assert!(control.is_marked(&[5; 16]) && !control.is_marked(&[6; 16]));
        for place in [
            OperandLocation::Nothing,
            OperandLocation::Inline,
            OperandLocation::Segment {
                id: 3,
                offset: 1 << 40,
            },
            OperandLocation::Staged,
        ] {
            let post = Announcement {
                call: [u64::MAX, 9, 1],
                place,
                own_len: u64::MAX,
                moment: 1 << 60,
                ride: 7,
            };
            control.write_post(7, &post);
            control.inline(7, INLINE_MAX).write(&[0xff; INLINE_MAX]);
            control.inline(8, INLINE_MAX).write(&[0xee; INLINE_MAX]);
            control.stage(0).write(&[0xdd; STAGE_BYTES]);
            control.stage(STAGES - 1).write(&[0xdd; STAGE_BYTES]);
            control.enter_segment(SEGMENTS_MAX as u32 - 1, 77, 1 << 33);
            assert_eq!(control.read_post(7), post);
        }
        assert_eq!(
            control.segment(SEGMENTS_MAX as u32 - 1),
            Some((77, 1 << 33))
        );
        assert_eq!(control.segment(SEGMENTS_MAX as u32), None);
        assert!(control.is_marked(&[5; 16]));
        assert_eq!(control.worked().value(), 0);
        assert_eq!(control.arrived(7).value(), 0);
    }
}
