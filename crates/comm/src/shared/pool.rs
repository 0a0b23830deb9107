//! [`MemoryPool`]: blocks of shared memory for buffers that peers read and write in place.
//!
//! Blocks have 16 sizes per power of two, are cut from segments whose size grows with
//! demand, and are reused when their buffers are dropped. Segments live until the group and
//! all its buffers are gone; the pages of free blocks can be returned to the system before. The pool is bounded; beyond the limit, groups allocate ordinary memory.
//!
//! The pages of a block are filled when it is taken for the first time, and a free block serves a buffer that is up to a quarter
//! shorter. The pages of free blocks are returned when the size of buckets changes. Segments stay mapped, because other members
//! have mapped them too, and are filled again on use.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ronde_core::buffer::{ALIGNMENT, AllocationError, Memory};
use ronde_core::{Buffer, DType, MemoryKind};

use super::control::{ControlMemory, SEGMENTS_MAX};
use super::mapping::{Mapping, MemoryBlock, Span};

/// Minimum size of a segment, in bytes; each one is a quarter of those before it.
const FIRST_SEGMENT: usize = 1 << 20;
/// Maximum size of a segment, in bytes, unless a single block is larger.
const SEGMENT_BYTES: usize = 64 << 20;
/// Maximum size of all segments of a member, in bytes.
const POOL_BYTES_MAX: usize = 32 << 30;

/// The location of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BufferLocation {
    pub(super) id: u32,
    pub(super) offset: usize,
}

#[derive(Debug)]
struct PoolSegment {
    file: OwnedFd,
    mapping: Arc<Mapping>,
    used: usize,
}

#[derive(Debug, Default)]
struct FreeBlocks {
    segments: Vec<PoolSegment>,
    /// Segment of each start address.
    addresses: BTreeMap<usize, u32>,
    /// Blocks to reuse, by size.
    free: BTreeMap<usize, Vec<BufferLocation>>,
    /// The same, without their pages.
    empty: BTreeMap<usize, Vec<BufferLocation>>,
    bytes: usize,
}

/// The shared memory of one member besides its control memory.
#[derive(Debug)]
pub(super) struct MemoryPool {
    owner: Arc<str>,
    control: Arc<ControlMemory>,
    blocks: Mutex<FreeBlocks>,
    /// Whether the group has failed: peers may still write to announced memory.
    spoiled: AtomicBool,
}

impl MemoryPool {
    pub(super) fn new(owner: &str, control: Arc<ControlMemory>) -> Arc<Self> {
        Arc::new(Self {
            owner: owner.into(),
            control,
            blocks: Mutex::default(),
            spoiled: AtomicBool::new(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, FreeBlocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a buffer of shared memory; of ordinary memory if the pool is full or the buffer is empty.
    /// Old contents remain unless `zeroed`.
    ///
    /// # Errors
    /// The system has no memory for the elements.
    pub(super) fn allocate(
        self: &Arc<Self>,
        dtype: DType,
        len: usize,
        zeroed: bool,
    ) -> Result<Buffer, AllocationError> {
        let Some(bytes) = len.checked_mul(dtype.size()).filter(|&bytes| bytes > 0) else {
            return Buffer::try_host(dtype, len);
        };
        let Some((block, location, fresh)) = self.take(class(bytes)) else {
            return Buffer::try_host(dtype, len);
        };
        let mut memory = SharedMemory {
            size: block.bytes().len(),
            block,
            location,
            pool: Arc::clone(self),
        };
        if zeroed && !fresh {
            memory.block.bytes_mut()[..bytes].fill(0);
        }
        Ok(Buffer::from_memory(dtype, len, Box::new(memory)))
    }

    fn take(&self, size: usize) -> Option<(MemoryBlock, BufferLocation, bool)> {
        if self.spoiled.load(Ordering::Relaxed) {
            return None;
        }
        let mut blocks = self.lock();
        let pop = |lots: &mut BTreeMap<usize, Vec<BufferLocation>>| {
            // A block that is a little longer saves memory for another one.
            let mut fitting = lots.range_mut(size..=size + size / 4);
            fitting.find_map(|(&size, lots)| Some((lots.pop()?, size)))
        };
        let ((location, size), fresh) = match pop(&mut blocks.free) {
            Some(found) => (found, false),
            None => {
                let empty = pop(&mut blocks.empty);
                let (location, size) = match empty {
                    Some(found) => found,
                    None => (blocks.cut(size, &self.control)?, size),
                };
                if blocks.fill(location, size).is_err() {
                    blocks.empty.entry(size).or_default().push(location);
                    return None;
                }
                // The pages at the ends of an empty block are old.
                ((location, size), empty.is_none())
            }
        };
        let mapping = Arc::clone(&blocks.segments[location.id as usize].mapping);
        Some((
            MemoryBlock::new(mapping, location.offset..location.offset + size),
            location,
            fresh,
        ))
    }

    /// Returns the location of a buffer's bytes; `None` if they are not in this pool.
    pub(super) fn find(&self, buffer: &Buffer) -> Option<BufferLocation> {
        if buffer.memory_kind() != MemoryKind::Shared || buffer.is_empty() {
            return None;
        }
        let bytes = buffer.bytes();
        let (address, blocks) = (bytes.as_ptr() as usize, self.lock());
        let (&start, &id) = blocks.addresses.range(..=address).next_back()?;
        let offset = address - start;
        let end = offset + bytes.len();
        (end <= blocks.segments[id as usize].mapping.len()).then_some(BufferLocation { id, offset })
    }

    /// Returns the mapping of a segment.
    pub(super) fn mapping(&self, id: u32) -> Arc<Mapping> {
        Arc::clone(&self.lock().segments[id as usize].mapping)
    }

    /// Returns the pages of free blocks to the system. Cost: the next buffers of their sizes allocate them again.
    pub(super) fn release_free_memory(&self) {
        if self.spoiled.load(Ordering::Relaxed) {
            return;
        }
        let mut blocks = self.lock();
        for (size, lots) in std::mem::take(&mut blocks.free) {
            for lot in lots {
                let mapping = &blocks.segments[lot.id as usize].mapping;
                let is_empty = mapping.empty(lot.offset..lot.offset + size);
                let lists = match is_empty {
                    true => &mut blocks.empty,
                    false => &mut blocks.free,
                };
                lists.entry(size).or_default().push(lot);
            }
        }
    }

    /// Stops the reuse of blocks.
    pub(super) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }
}

impl FreeBlocks {
    /// Allocates the pages of a block.
    fn fill(&self, location: BufferLocation, size: usize) -> io::Result<()> {
        let segment = &self.segments[location.id as usize];
        let bytes = location.offset..location.offset + size;
        segment.mapping.fill(&segment.file, bytes)
    }

    /// Cuts a block that was never used.
    fn cut(&mut self, size: usize, control: &ControlMemory) -> Option<BufferLocation> {
        let fits = |segment: &PoolSegment| segment.mapping.len() - segment.used >= size;
        if !self.segments.last().is_some_and(fits) {
            self.grow(size, control)?;
        }
        let id = self.segments.len() - 1;
        let segment = &mut self.segments[id];
        let offset = segment.used;
        segment.used += size;
        Some(BufferLocation {
            id: id as u32,
            offset,
        })
    }

    fn grow(&mut self, size: usize, control: &ControlMemory) -> Option<()> {
        let id = self.segments.len();
        let next = (self.bytes / 4)
            .clamp(FIRST_SEGMENT, SEGMENT_BYTES)
            .max(size);
        let len = next.next_multiple_of(if next > 2 << 20 { 2 << 20 } else { 4096 });
        if id >= SEGMENTS_MAX || self.bytes + len > POOL_BYTES_MAX {
            return None;
        }
        let (file, mapping) = Mapping::create(len).ok()?;
        control.enter_segment(id as u32, file.as_raw_fd() as u32, len as u64);
        self.addresses.insert(mapping.address(), id as u32);
        self.bytes += len;
        self.segments.push(PoolSegment {
            file,
            mapping: Arc::new(mapping),
            used: 0,
        });
        Some(())
    }
}

/// Returns the size of a block for `bytes`: up to a sixteenth more.
fn class(bytes: usize) -> usize {
    let step = (bytes.next_power_of_two() / 32).max(ALIGNMENT);
    bytes.next_multiple_of(step)
}

/// Memory of a buffer; returned to the pool when dropped.
struct SharedMemory {
    block: MemoryBlock,
    location: BufferLocation,
    size: usize,
    pool: Arc<MemoryPool>,
}

impl Memory for SharedMemory {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Shared
    }

    fn owner(&self) -> &str {
        &self.pool.owner
    }

    fn bytes(&self) -> &[u8] {
        self.block.bytes()
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self.block.bytes_mut()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if !self.pool.spoiled.load(Ordering::Relaxed) {
            let mut blocks = self.pool.lock();
            blocks
                .free
                .entry(self.size)
                .or_default()
                .push(self.location);
        }
    }
}

/// Returns the bytes of a buffer as peers see them.
pub(super) fn span(mapping: &Mapping, offset: u64, bytes: usize) -> Option<Span<'_>> {
    let start = usize::try_from(offset).ok()?;
    let end = start.checked_add(bytes)?;
    (end <= mapping.len()).then(|| mapping.span(start..end))
}

#[cfg(test)]
mod tests {
    use super::super::control::CONTROL_BYTES;
    use super::*;

    fn pool() -> Arc<MemoryPool> {
        let (_file, mapping) = Mapping::create(CONTROL_BYTES).unwrap();
        MemoryPool::new("group test", Arc::new(ControlMemory::new(mapping)))
    }

    #[test]
    fn buffers_are_zeroed_aligned_disjoint_and_reused() {
        let pool = pool();
        let lens = [1, 64, 65, 1000, 100_000, 3 << 20, 7];
        let mut buffers: Vec<Buffer> = lens
            .iter()
            .map(|&n| pool.allocate(DType::U8, n, true).unwrap())
            .collect();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.memory_kind(), MemoryKind::Shared);
            assert_eq!(buffer.bytes().as_ptr().align_offset(ALIGNMENT), 0);
            assert!(buffer.bytes().iter().all(|&b| b == 0));
            buffer.bytes_mut().fill(i as u8 + 1);
        }
        for (i, buffer) in buffers.iter().enumerate() {
            assert!(buffer.bytes().iter().all(|&b| b == i as u8 + 1));
        }
        let lots: Vec<_> = buffers.iter().map(|b| pool.find(b).unwrap()).collect();
        drop(buffers);
        let again = pool.allocate(DType::U8, 3 << 20, true).unwrap();
        assert_eq!(pool.find(&again), Some(lots[5]));
        assert!(again.bytes().iter().all(|&b| b == 0));
        assert_eq!(pool.find(&Buffer::host(DType::U8, 10)), None);
        assert_eq!(
            pool.allocate(DType::F32, 0, true).unwrap().memory_kind(),
            MemoryKind::Host
        );
    }

    #[test]
    fn released_memory_is_allocated_again_and_buffers_in_use_keep_theirs() {
        let pool = pool();
        let fill = |buffer: &mut Buffer, byte| buffer.bytes_mut().fill(byte);
        let mut kept = pool.allocate(DType::U8, 1 << 20, true).unwrap();
        let mut dropped = pool.allocate(DType::U8, 3 << 20, true).unwrap();
        let mut short = pool.allocate(DType::U8, 100, true).unwrap();
        fill(&mut kept, 1);
        fill(&mut dropped, 2);
        fill(&mut short, 3);
        let place = pool.find(&dropped);
        drop((dropped, short));
        let resident = |pool: &MemoryPool| {
            let blocks = pool.lock();
            let files = blocks.segments.iter().map(|segment| &segment.file);
            let each = files.map(|file| rustix::fs::fstat(file).unwrap().st_blocks * 512);
            each.sum::<i64>()
        };
        let before = resident(&pool);
        pool.release_free_memory();
        let after = resident(&pool);
        assert!(before - after >= (3 << 20) - 8192, "{before} {after}");
        assert!(kept.bytes().iter().all(|&b| b == 1));
        let again = pool.allocate(DType::U8, 3 << 20, true).unwrap();
        assert_eq!(pool.find(&again), place);
        assert!(again.bytes().iter().all(|&b| b == 0));
        assert!(resident(&pool) >= before - 8192);
        let short = pool.allocate(DType::U8, 100, true).unwrap();
        assert!(short.bytes().iter().all(|&b| b == 0));
    }

    #[test]
    fn a_free_block_serves_a_buffer_that_is_a_little_shorter() {
        let pool = pool();
        let first = pool.allocate(DType::U8, 1 << 20, true).unwrap();
        let place = pool.find(&first);
        drop(first);
        let mut shorter = pool.allocate(DType::U8, 900_000, true).unwrap();
        assert_eq!((pool.find(&shorter), shorter.len()), (place, 900_000));
        shorter.bytes_mut().fill(1);
        let half = pool.allocate(DType::U8, 1 << 19, true).unwrap();
        drop(shorter);
        let again = pool.allocate(DType::U8, 1 << 20, true).unwrap();
        assert_eq!(pool.find(&again), place);
        assert!(again.bytes().iter().all(|&b| b == 0));
        assert_ne!(pool.find(&half), place);
    }

    #[test]
    fn a_spoiled_pool_allocates_nothing_that_peers_may_write_to() {
        let pool = pool();
        let buffer = pool.allocate(DType::U8, 100, true).unwrap();
        pool.spoil();
        drop(buffer);
        assert_eq!(
            pool.allocate(DType::U8, 100, true).unwrap().memory_kind(),
            MemoryKind::Host
        );
    }

    #[test]
    fn sizes_are_at_most_a_sixteenth_more() {
        for bytes in (1..5000).chain([1 << 20, (1 << 20) + 1, 12_345_678]) {
            let size = class(bytes);
            assert!(size >= bytes && size.is_multiple_of(ALIGNMENT));
            assert!(
                size <= bytes + (bytes / 16).max(ALIGNMENT),
                "{bytes}: {size}"
            );
        }
    }
}
