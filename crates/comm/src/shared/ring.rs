//! A stream of bytes from one process to another, through a ring of memory that both have mapped.
//!
//! One side writes, the other reads; each counts its bytes in a word of its own, published after they are
//! copied, and says in another one that it sleeps: the words are [`RingSide`]'s. Who sleeps is woken by other
//! means.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use super::counts::RingSide;
use super::mapping::Mapping;

/// Bytes of a ring: they stay in a core's cache.
const RING_BYTES: usize = 256 << 10;
/// Cache lines are fetched in pairs.
const LINE: usize = 128;
const WRITTEN: usize = 0;
const READ: usize = LINE;
const READER_SLEEPS: usize = 2 * LINE;
const WRITER_SLEEPS: usize = 3 * LINE;
const HEADER_BYTES: usize = 4 * LINE;
/// Bytes of memory that a ring takes.
pub(crate) const SLOT_BYTES: usize = HEADER_BYTES + RING_BYTES;

/// A part of a mapping.
#[derive(Debug)]
struct RingMemory {
    mapping: Arc<Mapping>,
    base: usize,
}

impl RingMemory {
    fn new(mapping: &Arc<Mapping>, base: usize) -> Self {
        let mapping = Arc::clone(mapping);
        Self { mapping, base }
    }

    /// The words as one end sees them: its count and the other's, whether it sleeps and the other one.
    fn side(&self, [mine, theirs, i_sleep, they_sleep]: [usize; 4]) -> RingSide<'_> {
        let word = |offset| self.mapping.word(self.base + offset);
        let long_word = |offset| self.mapping.long_word(self.base + offset);
        RingSide {
            mine: long_word(mine),
            theirs: long_word(theirs),
            i_sleep: word(i_sleep),
            they_sleep: word(they_sleep),
        }
    }

    fn writer(&self) -> RingSide<'_> {
        self.side([WRITTEN, READ, WRITER_SLEEPS, READER_SLEEPS])
    }

    fn reader(&self) -> RingSide<'_> {
        self.side([READ, WRITTEN, READER_SLEEPS, WRITER_SLEEPS])
    }

    /// Where the byte of a number is, and how many follow it without a break.
    fn place(&self, number: u64) -> (usize, usize) {
        let at = (number % RING_BYTES as u64) as usize;
        (self.base + HEADER_BYTES + at, RING_BYTES - at)
    }
}

/// Bytes in a ring of which `written` were written and `read` read.
fn held(written: u64, read: u64) -> io::Result<usize> {
    let held = written.wrapping_sub(read);
    if held > RING_BYTES as u64 {
        let problem = "a ring of shared memory with impossible counts";
        return Err(io::Error::new(ErrorKind::InvalidData, problem));
    }
    Ok(held as usize)
}

/// The end at which bytes are written.
#[derive(Debug)]
pub(crate) struct RingWriter {
    ring: RingMemory,
    written: u64,
}

impl RingWriter {
    /// The only writer of the ring at `base`, which is [`SLOT_BYTES`] long and empty.
    pub(crate) fn new(mapping: &Arc<Mapping>, base: usize) -> Self {
        Self {
            ring: RingMemory::new(mapping, base),
            written: 0,
        }
    }

    fn room(&self) -> io::Result<usize> {
        Ok(RING_BYTES - held(self.written, self.ring.writer().theirs())?)
    }

    /// Whether there is room; with `sleeps`, if there is none, the reader wakes this side once there is.
    pub(crate) fn has_room(&self, sleeps: bool) -> bool {
        // Impossible counts are met again by who writes.
        let has = || self.room().map_or(true, |room| room > 0);
        if has() || !sleeps {
            return has();
        }
        self.ring.writer().lie_down();
        has()
    }

    /// After a sleep.
    pub(crate) fn get_up(&self) {
        self.ring.writer().get_up();
    }

    /// Writes as much of `head` and then `body` as there is room for; how many bytes, and whether the
    /// reader has to be woken.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] when the reader has counted nonsense.
    pub(crate) fn write(&mut self, head: &[u8], body: &[u8]) -> io::Result<(usize, bool)> {
        let room = self.room()?;
        let mut count = 0;
        for mut part in [head, body] {
            while !part.is_empty() && count < room {
                let (at, unbroken) = self.ring.place(self.written + count as u64);
                let now = part.len().min(unbroken).min(room - count);
                let (these, rest) = part.split_at(now);
                self.ring.mapping.span(at..at + now).write(these);
                (count, part) = (count + now, rest);
            }
        }
        if count == 0 {
            return Ok((0, false));
        }
        self.written += count as u64;
        self.ring.writer().publish(self.written);
        Ok((count, self.ring.writer().must_wake()))
    }
}

/// The end at which bytes are read.
#[derive(Debug)]
pub(crate) struct RingReader {
    ring: RingMemory,
    read: u64,
}

impl RingReader {
    /// The only reader of the ring at `base`, which is [`SLOT_BYTES`] long and empty.
    pub(crate) fn new(mapping: &Arc<Mapping>, base: usize) -> Self {
        Self {
            ring: RingMemory::new(mapping, base),
            read: 0,
        }
    }

    /// Whether there are bytes; with `sleeps`, if there are none, the writer wakes this side once there
    /// are.
    pub(crate) fn has_bytes(&self, sleeps: bool) -> bool {
        let has = || self.ring.reader().theirs() != self.read;
        if has() || !sleeps {
            return has();
        }
        self.ring.reader().lie_down();
        has()
    }

    /// After a sleep.
    pub(crate) fn get_up(&self) {
        self.ring.reader().get_up();
    }

    /// Reads what is there; how many bytes, and whether the writer has to be woken, which waits until half
    /// of the ring is free.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] when the writer has counted nonsense.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<(usize, bool)> {
        let held = held(self.ring.reader().theirs(), self.read)?;
        let total = into.len().min(held);
        let mut count = 0;
        while count < total {
            let (at, unbroken) = self.ring.place(self.read + count as u64);
            let now = unbroken.min(total - count);
            let from = self.ring.mapping.span(at..at + now);
            from.read(&mut into[count..count + now]);
            count += now;
        }
        if count == 0 {
            return Ok((0, false));
        }
        self.read += count as u64;
        self.ring.reader().publish(self.read);
        let is_half_free = held - count <= RING_BYTES / 2;
        Ok((count, is_half_free && self.ring.reader().must_wake()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;

    use super::*;

    fn ends() -> (RingWriter, RingReader) {
        let (_file, mapping) = Mapping::create(SLOT_BYTES).unwrap();
        let mapping = Arc::new(mapping);
        (RingWriter::new(&mapping, 0), RingReader::new(&mapping, 0))
    }

    #[test]
    fn bytes_come_out_in_order_whatever_the_pieces() {
        const TOTAL: usize = 3_000_000;
        let (mut writer, mut reader) = ends();
        let value = |number: usize| (number % 251) as u8;
        let writing = thread::spawn(move || {
            let (mut at, mut size) = (0, 1);
            while at < TOTAL {
                size = (size * 7 + 3) % 90_001 + 1;
                let bytes: Vec<u8> = (at..(at + size).min(TOTAL)).map(value).collect();
                let (head, body) = bytes.split_at(bytes.len() / 3);
                let (count, _) = writer.write(head, body).unwrap();
                at += count;
                if count == 0 {
                    thread::yield_now();
                }
            }
        });
        let (mut at, mut size, mut into) = (0, 5, vec![0; 70_000]);
        while at < TOTAL {
            size = (size * 5 + 1) % 69_997 + 1;
            let (count, _) = reader.read(&mut into[..size]).unwrap();
            for (offset, byte) in into[..count].iter().enumerate() {
                assert_eq!(*byte, value(at + offset));
            }
            at += count;
            if count == 0 {
                thread::yield_now();
            }
        }
        writing.join().unwrap();
    }

    #[test]
    fn a_sleeper_is_woken_once_and_by_what_it_waits_for() {
        let (mut writer, mut reader) = ends();
        assert!(!reader.has_bytes(true));
        assert_eq!(writer.write(b"a", b"b").unwrap(), (2, true));
        assert_eq!(writer.write(b"c", b"").unwrap(), (1, false));
        reader.get_up();
        let full = vec![1; 2 * RING_BYTES];
        assert_eq!(writer.write(&full, &[]).unwrap().0, RING_BYTES - 3);
        assert!(!writer.has_room(true));
        let mut into = vec![0; RING_BYTES];
        assert_eq!(reader.read(&mut into[..100]).unwrap(), (100, false));
        assert!(writer.has_room(true), "there is room, but little");
        assert_eq!(reader.read(&mut into).unwrap(), (RING_BYTES - 100, true));
        assert!(!reader.has_bytes(false));
    }

    #[test]
    fn nonsense_of_the_other_side_is_an_error() {
        let (_file, mapping) = Mapping::create(SLOT_BYTES).unwrap();
        let mapping = Arc::new(mapping);
        let (mut writer, mut reader) = (RingWriter::new(&mapping, 0), RingReader::new(&mapping, 0));
        mapping
            .long_word(WRITTEN)
            .store(u64::MAX, Ordering::Relaxed);
        let error = reader.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        mapping.long_word(READ).store(9, Ordering::Relaxed);
        let error = writer.write(b"x", b"").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }
}
