//! [`Control`]: the words through which a member tells the others how far it is, and the memory for
//! what is short or must be copied.
//!
//! Layout of the file that every member makes: a header with a secret (so that no other file is
//! taken for it), words each on a cache line of its own, the table of further segments, two slots
//! for what an operation posts, and a ring of stages for memory that is not shared.

use std::sync::atomic::{AtomicU32, Ordering};

use super::mapping::{Mapping, Span};
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
const RIDE_MAX: usize = 8;
const SLOT_BYTES: usize = 64 + INLINE_MAX;
/// Most bytes of a piece of memory that must be copied.
pub(super) const STAGE_BYTES: usize = 128 << 10;
/// Stages of the ring. A member is never further ahead of itself than half of them.
pub(super) const STAGES: u32 = 8;
const RING: usize = (SLOTS + 2 * SLOT_BYTES).next_multiple_of(4096);
/// Bytes of the file.
pub(super) const CONTROL_BYTES: usize = RING + STAGES as usize * STAGE_BYTES;

/// Bytes of an encoded call.
pub(super) const CALL_BYTES: usize = 20;

/// Where the bytes of a rank are in an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It brings none.
    Nothing,
    /// Behind the call.
    Inline,
    /// In a segment.
    Segment { id: u32, offset: u64 },
    /// In memory of its own: through the stages.
    Staged,
}

/// What a rank says at the beginning of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Post {
    pub(super) call: [u8; CALL_BYTES],
    pub(super) place: Place,
    /// Elements that this rank brings, where ranks may bring different counts.
    pub(super) own_len: u64,
}

impl Post {
    fn encode(&self) -> [u8; 48] {
        let (kind, id, offset) = match self.place {
            Place::Nothing => (0_u32, 0, 0),
            Place::Inline => (1, 0, 0),
            Place::Segment { id, offset } => (2, id, offset),
            Place::Staged => (3, 0, 0),
        };
        let mut out = [0; 48];
        out[..CALL_BYTES].copy_from_slice(&self.call);
        out[24..28].copy_from_slice(&kind.to_le_bytes());
        out[28..32].copy_from_slice(&id.to_le_bytes());
        out[32..40].copy_from_slice(&offset.to_le_bytes());
        out[40..48].copy_from_slice(&self.own_len.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; 48]) -> Self {
        let number = crate::frame::number;
        let mut call = [0; CALL_BYTES];
        call.copy_from_slice(&bytes[..CALL_BYTES]);
        let place = match number(&bytes[24..28]) {
            1 => Place::Inline,
            2 => Place::Segment {
                id: number(&bytes[28..32]) as u32,
                offset: number(&bytes[32..40]),
            },
            3 => Place::Staged,
            _ => Place::Nothing,
        };
        Self {
            call,
            place,
            own_len: number(&bytes[40..48]),
        }
    }

    /// The call in words.
    pub(super) fn describe(&self) -> String {
        Call::decode(&self.call).map_or_else(|| "no known call".to_owned(), |call| call.describe())
    }
}

/// A member's control memory, of this rank or a peer.
#[derive(Debug)]
pub(super) struct Control(Mapping);

impl Control {
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

    /// How many sleep until a word of this member changes.
    pub(super) fn waiters(&self) -> &AtomicU32 {
        self.0.word(WAITERS)
    }

    /// Pieces that are copied to the stages, ever.
    pub(super) fn brought(&self) -> &AtomicU32 {
        self.0.word(BROUGHT)
    }

    /// Pieces that this member has reduced or read, ever.
    pub(super) fn worked(&self) -> &AtomicU32 {
        self.0.word(WORKED)
    }

    /// Sequence number of the newest operation in its slot.
    pub(super) fn arrived(&self, sequence: u32) -> &AtomicU32 {
        self.0.word(slot(sequence))
    }

    /// Fills the slot of an operation, but for the word [`Control::arrived`].
    pub(super) fn write_post(&self, sequence: u32, post: &Post) {
        let at = slot(sequence) + 8;
        self.0.span(at..at + 48).write(&post.encode());
    }

    /// What the owner has posted, once it has arrived.
    pub(super) fn read_post(&self, sequence: u32) -> Post {
        let (at, mut bytes) = (slot(sequence) + 8, [0; 48]);
        self.0.span(at..at + 48).read(&mut bytes);
        Post::decode(&bytes)
    }

    /// Room for `bytes` behind the call.
    pub(super) fn inline(&self, sequence: u32, bytes: usize) -> Span<'_> {
        let at = slot(sequence) + if bytes <= RIDE_MAX { 56 } else { 64 };
        self.0.span(at..at + bytes)
    }

    /// The stage of a piece.
    pub(super) fn stage(&self, piece: u32) -> Span<'_> {
        let at = RING + (piece % STAGES) as usize * STAGE_BYTES;
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
    SLOTS + (sequence % 2) as usize * SLOT_BYTES
}

/// Tells the others a new value: whoever reads it also sees all that was written before.
pub(super) fn publish(control: &Control, word: &AtomicU32, value: u32) {
    // In one order with the count of waiters: either they see the value or they are seen.
    word.store(value, Ordering::SeqCst);
    if control.waiters().load(Ordering::SeqCst) > 0 {
        super::wait::wake(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_post_survives_and_slots_do_not_overlap() {
        let (_file, mapping) = Mapping::create(CONTROL_BYTES).unwrap();
        let control = Control::new(mapping);
        control.mark(&[5; 16]);
        assert!(control.is_marked(&[5; 16]) && !control.is_marked(&[6; 16]));
        for place in [
            Place::Nothing,
            Place::Inline,
            Place::Segment {
                id: 3,
                offset: 1 << 40,
            },
            Place::Staged,
        ] {
            let post = Post {
                call: [9; CALL_BYTES],
                place,
                own_len: u64::MAX,
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
        assert_eq!(control.worked().load(Ordering::SeqCst), 0);
        assert_eq!(control.arrived(7).load(Ordering::SeqCst), 0);
    }
}
