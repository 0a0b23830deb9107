//! A stream of bytes from one process to another, through a ring of memory that both have mapped.
//!
//! One side writes, the other reads; each counts its bytes in a word of its own, published after they are
//! copied. A side that goes to sleep says so in a word of the ring and looks once more; the other one
//! finds that word after it has published its count, and wakes it by other means. So no wake-up is lost:
//! of "count, then look at the word" and "word, then look at the count" one sees the other.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

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
struct Ring {
    mapping: Arc<Mapping>,
    base: usize,
}

impl Ring {
    fn new(mapping: &Arc<Mapping>, base: usize) -> Self {
        let mapping = Arc::clone(mapping);
        Self { mapping, base }
    }

    /// What the other side has counted.
    fn count(&self, word: usize) -> u64 {
        let word = self.mapping.long_word(self.base + word);
        word.load(Ordering::Acquire)
    }

    fn publish(&self, word: usize, count: u64) {
        let word = self.mapping.long_word(self.base + word);
        word.store(count, Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Says that this side sleeps, before it looks for the last time.
    fn lie_down(&self, word: usize) {
        let word = self.mapping.word(self.base + word);
        word.store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    fn get_up(&self, word: usize) {
        let word = self.mapping.word(self.base + word);
        word.store(0, Ordering::Relaxed);
    }

    /// Whether the other side sleeps and is to be woken now, by this side alone.
    fn must_wake(&self, word: usize) -> bool {
        let word = self.mapping.word(self.base + word);
        word.load(Ordering::Relaxed) != 0 && word.swap(0, Ordering::SeqCst) != 0
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
pub(crate) struct Writer {
    ring: Ring,
    written: u64,
}

impl Writer {
    /// The only writer of the ring at `base`, which is [`SLOT_BYTES`] long and empty.
    pub(crate) fn new(mapping: &Arc<Mapping>, base: usize) -> Self {
        Self {
            ring: Ring::new(mapping, base),
            written: 0,
        }
    }

    fn room(&self) -> io::Result<usize> {
        Ok(RING_BYTES - held(self.written, self.ring.count(READ))?)
    }

    /// Whether there is room; with `sleeps`, if there is none, the reader wakes this side once there is.
    pub(crate) fn has_room(&self, sleeps: bool) -> bool {
        // Impossible counts are met again by who writes.
        let has = || self.room().map_or(true, |room| room > 0);
        if has() || !sleeps {
            return has();
        }
        self.ring.lie_down(WRITER_SLEEPS);
        has()
    }

    /// After a sleep.
    pub(crate) fn get_up(&self) {
        self.ring.get_up(WRITER_SLEEPS);
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
        self.ring.publish(WRITTEN, self.written);
        Ok((count, self.ring.must_wake(READER_SLEEPS)))
    }
}

/// The end at which bytes are read.
#[derive(Debug)]
pub(crate) struct Reader {
    ring: Ring,
    read: u64,
}

impl Reader {
    /// The only reader of the ring at `base`, which is [`SLOT_BYTES`] long and empty.
    pub(crate) fn new(mapping: &Arc<Mapping>, base: usize) -> Self {
        Self {
            ring: Ring::new(mapping, base),
            read: 0,
        }
    }

    /// Whether there are bytes; with `sleeps`, if there are none, the writer wakes this side once there
    /// are.
    pub(crate) fn has_bytes(&self, sleeps: bool) -> bool {
        let has = || self.ring.count(WRITTEN) != self.read;
        if has() || !sleeps {
            return has();
        }
        self.ring.lie_down(READER_SLEEPS);
        has()
    }

    /// After a sleep.
    pub(crate) fn get_up(&self) {
        self.ring.get_up(READER_SLEEPS);
    }

    /// Reads what is there; how many bytes, and whether the writer has to be woken, which waits until half
    /// of the ring is free.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] when the writer has counted nonsense.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<(usize, bool)> {
        let held = held(self.ring.count(WRITTEN), self.read)?;
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
        self.ring.publish(READ, self.read);
        let is_half_free = held - count <= RING_BYTES / 2;
        Ok((count, is_half_free && self.ring.must_wake(WRITER_SLEEPS)))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    fn ends() -> (Writer, Reader) {
        let (_file, mapping) = Mapping::create(SLOT_BYTES).unwrap();
        let mapping = Arc::new(mapping);
        (Writer::new(&mapping, 0), Reader::new(&mapping, 0))
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
        let (mut writer, mut reader) = (Writer::new(&mapping, 0), Reader::new(&mapping, 0));
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
