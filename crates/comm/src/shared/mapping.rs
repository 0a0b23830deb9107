//! [`Mapping`] and [`Span`]: memory that several processes have mapped. One of the two modules of
//! this crate with `unsafe`.
//!
//! Rust's references cannot express "exclusive until the others have arrived", so shared bytes are accessed
//! through [`Span`]s: bounds-checked, without aliasing guarantees, copied and combined by value. The
//! protocol of [`super::collective`] determines which rank may touch which span when; members of one group
//! trust each other to follow it (they run the same binary as the same user). A member that does not can
//! corrupt results, but cannot make another one read or write outside of its mappings, and a file cannot
//! be truncated under a mapping, because it is sealed.
#![expect(
    unsafe_code,
    reason = "mapping files and raw access to bytes that other processes write"
)]

use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Size from which huge pages are requested, in bytes; sizes are then multiples of it.
const HUGE_BYTES: usize = 2 << 20;

/// A shared file in the memory of this process, until dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is plain memory, valid from every thread until it is dropped.
unsafe impl Send for Mapping {}
// SAFETY: it only provides atomics and spans, and spans do not guarantee exclusive access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates and maps a zeroed file of `len` bytes. Only what is [filled](Mapping::fill) is backed by memory.
    pub(super) fn create(len: usize) -> io::Result<(OwnedFd, Self)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("ronde", flags)?;
        rustix::fs::ftruncate(&file, len as u64)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals)?;
        let mapping = Self::map(&file, len)?;
        Ok((file, mapping))
    }

    /// Maps file descriptor `fd` of process `pid`, which must be `len` bytes long and sealed.
    pub(super) fn open(pid: u32, fd: u32, len: usize) -> io::Result<Self> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let size = rustix::fs::fstat(&file)?.st_size;
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        if size != i64::try_from(len).unwrap_or(i64::MAX) || !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::other("it is not the shared memory of a member"));
        }
        Self::map(&file, len)
    }

    fn map(file: &impl AsFd, len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address chosen by the system touches no other memory.
        let at =
            unsafe { rustix::mm::mmap(ptr::null_mut(), len, access, MapFlags::SHARED, file, 0)? };
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Self { at, len };
        if len >= HUGE_BYTES {
            // SAFETY: advice about the mapping made above. If it is refused, pages are small.
            let _refused =
                unsafe { rustix::mm::madvise(at.as_ptr().cast(), len, Advice::LinuxHugepage) };
        }
        Ok(mapping)
    }

    /// Allocates the pages of a range of the mapped file: a page that cannot be allocated at its first access would be a fatal signal.
    pub(super) fn fill(&self, file: &impl AsFd, range: Range<usize>) -> io::Result<()> {
        let page = rustix::param::page_size();
        let start = range.start - range.start % page;
        let len = range
            .end
            .next_multiple_of(page)
            .min(self.len)
            .saturating_sub(start);
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the pages are inside the mapping, and keep their contents.
        let filled = unsafe {
            let at = self.at.as_ptr().add(start);
            rustix::mm::madvise(at.cast(), len, Advice::LinuxPopulateWrite)
        };
        match filled {
            // Linux before 5.14 does not support this advice.
            Err(Errno::INVAL) => {
                let none = FallocateFlags::empty();
                rustix::fs::fallocate(file, none, start as u64, len as u64)?;
            }
            filled => filled?,
        }
        Ok(())
    }

    /// Returns the pages within a range to the system, in all processes; their bytes become zeros. Returns false if the range has no
    /// whole page, or the system keeps them.
    pub(super) fn empty(&self, range: Range<usize>) -> bool {
        assert!(range.end <= self.len, "range outside of its mapping");
        let page = rustix::param::page_size();
        let start = range.start.next_multiple_of(page);
        let end = range.end - range.end % page;
        if start >= end {
            return false;
        }
        // SAFETY: the pages are inside the mapping and stay mapped. Bytes that others read or write become zeros, which their
        // accesses by value permit.
        unsafe {
            let at = self.at.as_ptr().add(start);
            rustix::mm::madvise(at.cast(), end - start, Advice::LinuxRemove).is_ok()
        }
    }

    /// Returns the number of bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    pub(super) fn address(&self) -> usize {
        self.at.as_ptr() as usize
    }

    /// Returns the word at byte `offset`, shared by all processes.
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(
            offset.is_multiple_of(4) && offset + 4 <= self.len,
            "word outside of its mapping"
        );
        // SAFETY: inside the mapping, aligned, and accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    /// Returns the 64-bit word at byte `offset`, shared by all processes.
    pub(super) fn long_word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.len,
            "word outside of its mapping"
        );
        // SAFETY: inside the mapping, aligned, and accessed as an atomic only.
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(offset).cast()) }
    }

    /// Returns a part of the mapping.
    pub(super) fn span(&self, range: Range<usize>) -> Span<'_> {
        Span {
            at: self.at.as_ptr(),
            len: self.len,
            life: PhantomData,
        }
        .part(range)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by this value, and everything that points into it borrows or holds it.
        let _unmapped = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// Bytes that other processes may have mapped too, or bytes of this process alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span<'a> {
    at: *mut u8,
    len: usize,
    life: PhantomData<&'a ()>,
}

impl<'a> Span<'a> {
    /// Wraps bytes of this process alone; they stay borrowed as long as the span is used.
    pub(super) fn of(bytes: &'a mut [u8]) -> Self {
        Self {
            at: bytes.as_mut_ptr(),
            len: bytes.len(),
            life: PhantomData,
        }
    }

    pub(super) fn len(self) -> usize {
        self.len
    }

    /// Returns a part of the span.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "part outside of its span"
        );
        // SAFETY: inside the span, as just checked.
        let at = unsafe { self.at.add(range.start) };
        Self {
            at,
            len: range.end - range.start,
            life: PhantomData,
        }
    }

    pub(super) fn same_place(self, other: Self) -> bool {
        self.at == other.at
    }

    /// Copies all of `from`, of the same length, to this span.
    pub(super) fn copy_from(self, from: Span<'_>) {
        assert_eq!(self.len, from.len, "a copy needs equal lengths");
        // SAFETY: both spans are inside memory that their lifetimes keep; `copy` allows overlap.
        unsafe { ptr::copy(from.at, self.at, self.len) };
    }

    /// Copies `from` to this span.
    pub(super) fn write(self, from: &[u8]) {
        assert_eq!(self.len, from.len(), "a copy needs equal lengths");
        // SAFETY: as for `copy_from`.
        unsafe { ptr::copy(from.as_ptr(), self.at, self.len) };
    }

    /// Copies all of this span to `into`.
    pub(super) fn read(self, into: &mut [u8]) {
        Span::of(into).copy_from(self);
    }

    /// Runs `f` on the bytes of two disjoint spans.
    pub(super) fn combine(self, other: Span<'_>, f: impl FnOnce(&mut [u8], &[u8])) {
        let (a, b) = (self.at as usize, other.at as usize);
        assert!(a + self.len <= b || b + other.len <= a, "overlapping spans");
        // SAFETY: both spans are inside memory that their lifetimes keep alive, they are disjoint, and by
        // the protocol no other rank writes to either, or reads the written bytes, before this rank
        // publishes its next word.
        unsafe {
            f(
                std::slice::from_raw_parts_mut(self.at, self.len),
                std::slice::from_raw_parts(other.at, other.len),
            );
        }
    }
}

/// A block that only its owner uses, except during operations that it is passed to.
#[derive(Debug)]
pub(super) struct MemoryBlock {
    mapping: Arc<Mapping>,
    range: Range<usize>,
}

impl MemoryBlock {
    /// Wraps a part of a mapping. The allocator assigns no byte to two blocks.
    pub(super) fn new(mapping: Arc<Mapping>, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= mapping.len(),
            "block outside of its mapping"
        );
        Self { mapping, range }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: inside the mapping that is held; no byte of it belongs to another block, and other
        // processes access it only during operations, which own the buffer, so this is not called then.
        unsafe {
            std::slice::from_raw_parts(
                self.mapping.at.as_ptr().add(self.range.start),
                self.range.len(),
            )
        }
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`, and this block is borrowed mutably.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.mapping.at.as_ptr().add(self.range.start),
                self.range.len(),
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn memory_of_an_ended_member_is_distinguished_from_other_files() {
        let me = std::process::id();
        let closed = Mapping::open(me, u32::MAX >> 1, 4096).unwrap_err();
        let ended = Mapping::open(u32::MAX >> 1, 3, 4096).unwrap_err();
        let (other, _reader) = std::io::pipe().unwrap();
        let none = Mapping::open(me, other.as_raw_fd() as u32, 4096).unwrap_err();
        let kinds = [closed, ended].map(|error| error.kind());
        assert_eq!(kinds, [io::ErrorKind::NotFound; 2]);
        assert_ne!(none.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_one_mapping_writes_another_one_reads() {
        for len in [4096, 3 << 20] {
            let (file, mine) = Mapping::create(len).unwrap();
            mine.fill(&file, 0..len).unwrap();
            let theirs = Mapping::open(std::process::id(), file.as_raw_fd() as u32, len).unwrap();
            mine.word(64).store(7, Ordering::Release);
            assert_eq!(theirs.word(64).load(Ordering::Acquire), 7);
            mine.span(len - 3..len).write(&[1, 2, 3]);
            let mut read = [0; 3];
            theirs.span(len - 3..len).read(&mut read);
            assert_eq!(read, [1, 2, 3]);
            theirs
                .span(0..3)
                .combine(theirs.span(len - 3..len), |into, from| {
                    into.copy_from_slice(from)
                });
            mine.span(0..3).read(&mut read);
            assert_eq!(read, [1, 2, 3]);
        }
    }

    #[test]
    fn pages_that_were_returned_are_zeros_in_all_mappings() {
        let page = rustix::param::page_size();
        let (file, mine) = Mapping::create(4 * page).unwrap();
        mine.fill(&file, 1..4 * page).unwrap();
        let theirs = Mapping::open(std::process::id(), file.as_raw_fd() as u32, 4 * page).unwrap();
        let read = |mapping: &Mapping, at: usize| {
            let mut byte = [9];
            mapping.span(at..at + 1).read(&mut byte);
            byte[0]
        };
        for at in [0, page, 3 * page - 1, 3 * page] {
            mine.span(at..at + 1).write(&[7]);
            assert_eq!(read(&theirs, at), 7);
        }
        let blocks = |file: &OwnedFd| rustix::fs::fstat(file).unwrap().st_blocks;
        let all = blocks(&file);
        assert!(mine.empty(page - 5..3 * page + 5));
        assert_eq!(blocks(&file), all / 2, "two of four pages");
        let found = [0, page, 3 * page - 1, 3 * page].map(|at| read(&theirs, at));
        assert_eq!(found, [7, 0, 0, 7], "only whole pages");
        mine.fill(&file, page..3 * page).unwrap();
        assert_eq!(blocks(&file), all);
        assert!(!mine.empty(page - 5..page + 5));
        assert!(!mine.empty(0..0));
    }

    #[test]
    fn files_that_are_no_members_memory_are_refused() {
        let (file, mapping) = Mapping::create(4096).unwrap();
        let fd = file.as_raw_fd() as u32;
        assert!(
            Mapping::open(std::process::id(), fd, 8192).is_err(),
            "another length"
        );
        assert!(rustix::fs::ftruncate(&file, 0).is_err(), "sealed");
        let other = tempfile();
        assert!(
            Mapping::open(std::process::id(), other.as_raw_fd() as u32, 4096).is_err(),
            "no seals"
        );
        assert!(Mapping::open(std::process::id(), 999_999, 4096).is_err());
        drop(mapping);
    }

    fn tempfile() -> OwnedFd {
        let file = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        file
    }

    #[test]
    #[should_panic(expected = "outside of its span")]
    fn parts_are_checked() {
        let _ = Span::of(&mut [0; 4]).part(2..5);
    }

    #[test]
    #[should_panic(expected = "overlap")]
    fn combined_spans_are_disjoint() {
        let mut bytes = [0; 4];
        let span = Span::of(&mut bytes);
        span.part(0..3).combine(span.part(2..4), |_, _| ());
    }
}
