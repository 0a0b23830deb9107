//! [`ControlMemory`]: the words through which a member tells the others how far it is, and the memory for
//! what is short or must be copied.
//!
//! Layout of the file that every member makes: a header with a secret (so that no other file is
//! taken for it), words each on a cache line of its own, the table of further segments, two slots
//! for what an operation posts, and a ring of stages for memory that is not shared.
//!
//! The first cache line of a slot holds all of a post, the number of the operation and up to eight
//! bytes of payload: that is all that moves between cores for a short operation.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::flags::{Flag, TURNS, turn};
use super::mapping::{Mapping, Span};
use super::pieces::stage_of;
use crate::frame::Call;

/// Bytes of a cache line, twice: neighbouring lines are fetched in pairs.
const LINE: usize = 128;
const SECRET: usize = 0;
const WAITERS: usize = LINE;
const BROUGHT: usize = 2 * LINE;
const WORKED: usize = 3 * LINE;
const TABLE: usize = 4 * LINE;
/// Most segments of a member beside this one.
pub(super) const SEGMENTS_MAX: usize = 256;
const SLOTS: usize = TABLE + SEGMENTS_MAX * 16;
/// Most bytes that are posted with the call itself.
pub(super) const INLINE_MAX: usize = 8 << 10;
/// This many bytes ride in the line of the call.
pub(super) const RIDE_MAX: usize = 8;
const SLOT_BYTES: usize = 64 + INLINE_MAX;
/// Words of 64 bits after the number and the place of a post: call, offset, own length, moment, ride.
const CALL_AT: usize = 8;
const OFFSET_AT: usize = 32;
const OWN_LEN_AT: usize = 40;
const MOMENT_AT: usize = 48;
const RIDE_AT: usize = 56;
/// Most bytes of a piece of memory that must be copied.
pub(super) const STAGE_BYTES: usize = 128 << 10;
/// Stages of the ring; few, so that they stay in the cache of a core.
pub(super) const STAGES: u32 = 4;
const RING: usize = (SLOTS + TURNS as usize * SLOT_BYTES).next_multiple_of(4096);
/// Bytes of the file.
pub(super) const CONTROL_BYTES: usize = RING + STAGES as usize * STAGE_BYTES;

/// Where the bytes of a rank are in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperandLocation {
    /// It brings none.
    Nothing,
    /// Behind the call.
    Inline,
    /// In a segment.
    Segment { id: u32, offset: u64 },
    /// In memory of its own: through the stages.
    Staged,
}

impl OperandLocation {
    /// In a word, with the offset beside it.
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

/// What a rank says at the beginning of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Announcement {
    pub(super) call: [u64; 3],
    pub(super) place: OperandLocation,
    /// Elements that this rank brings, where ranks may bring different counts.
    pub(super) own_len: u64,
    /// When this rank asked for the operation, on the clock of the host.
    pub(super) moment: u64,
    /// Up to [`RIDE_MAX`] bytes of payload.
    pub(super) ride: u64,
}

impl Announcement {
    /// The call in words.
    pub(super) fn describe(&self) -> String {
        let call = Call::from_words(self.call);
        call.map_or_else(|| "no known call".to_owned(), |call| call.describe())
    }
}

/// A member's control memory, of this rank or a peer.
#[derive(Debug)]
pub(super) struct ControlMemory(Mapping);

impl ControlMemory {
    /// Takes a mapping of [`CONTROL_BYTES`].
    pub(super) fn new(mapping: Mapping) -> Self {
        assert_eq!(
            mapping.len(),
            CONTROL_BYTES,
            "control memory of another size"
        );
        Self(mapping)
    }

    /// Writes the secret; before anybody else maps it.
    pub(super) fn mark(&self, secret: &[u8; 16]) {
        self.0.span(SECRET..SECRET + 16).write(secret);
    }

    /// Whether the file is the one that the secret belongs to.
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

    /// Pieces that are copied to the stages, ever.
    pub(super) fn brought(&self) -> Flag<'_> {
        self.flag(BROUGHT)
    }

    /// Pieces that this member has reduced or read, ever.
    pub(super) fn worked(&self) -> Flag<'_> {
        self.flag(WORKED)
    }

    /// Sequence number of the newest operation in its slot.
    pub(super) fn arrived(&self, sequence: u32) -> Flag<'_> {
        self.flag(slot(sequence))
    }

    fn place(&self, sequence: u32) -> &AtomicU32 {
        self.0.word(slot(sequence) + 4)
    }

    fn post_word(&self, sequence: u32, at: usize) -> &AtomicU64 {
        self.0.long_word(slot(sequence) + at)
    }

    /// Fills the slot of an operation, but for [`ControlMemory::arrived`].
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

    /// What the owner has posted, once it has arrived.
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

    /// Room for `bytes` behind the call.
    pub(super) fn inline(&self, sequence: u32, bytes: usize) -> Span<'_> {
        let at = slot(sequence) + if bytes <= RIDE_MAX { RIDE_AT } else { 64 };
        self.0.span(at..at + bytes)
    }

    /// The stage of a piece.
    pub(super) fn stage(&self, piece: u32) -> Span<'_> {
        let at = RING + stage_of(piece, STAGES) as usize * STAGE_BYTES;
        self.0.span(at..at + STAGE_BYTES)
    }

    /// Enters a segment's file descriptor and size; before it is named in a post.
    pub(super) fn enter_segment(&self, id: u32, fd: u32, bytes: u64) {
        let at = TABLE + id as usize * 16;
        let span = self.0.span(at..at + 16);
        span.part(0..8).write(&u64::from(fd).to_le_bytes());
        span.part(8..16).write(&bytes.to_le_bytes());
    }

    /// A segment's file descriptor and size.
    pub(super) fn segment(&self, id: u32) -> Option<(u32, usize)> {
        if id as usize >= SEGMENTS_MAX {
            return None;
        }
        let (at, mut entry) = (TABLE + id as usize * 16, [0; 16]);
        self.0.span(at..at + 16).read(&mut entry);
        let number = crate::frame::number;
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
    fn a_post_survives_and_slots_do_not_overlap() {
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
