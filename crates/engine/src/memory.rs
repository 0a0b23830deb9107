//! Memory of the host for activations: blocks in a few large slabs, which each thread keeps for the next step.
//!
//! A step needs the same lengths as the previous one, and a dropped block leaves room for others, longer or
//! shorter: see [`Placements`]. Reused memory has old contents: the caller writes every element before reading any, so earlier
//! tensors cannot affect results. Slabs are apart from the heap, which short and long blocks in turns would divide into
//! ranges that are too short for the next ones.

mod placements;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use placements::MemoryUse;
pub(crate) use placements::{Placement, Placements};

/// The least number of floats of a block in a slab; shorter memory is on the heap.
pub(crate) const LENGTH_MIN: usize = 4096;

/// Floats in ordinary memory.
pub struct HostValues(Kind);

enum Kind {
    Heap(Vec<f32>),
    Slab(Block),
}

impl HostValues {
    /// Returns memory of a number of floats, with unspecified contents that were written before: the caller writes each
    /// before it is read. Cost: microseconds; where the system refuses a slab, as with a limit of address space, an allocation.
    #[must_use]
    pub(crate) fn take(length: usize) -> Self {
        let block = match length {
            LENGTH_MIN.. => THREAD.with(|slabs| Block::take(slabs, length)),
            _ => None,
        };
        Self(block.map_or_else(|| Kind::Heap(vec![0.0; length]), Kind::Slab))
    }

    /// Returns the values as a vector. Cost: a copy, unless they were created from one or are few.
    #[must_use]
    pub fn into_vec(self) -> Vec<f32> {
        match self.0 {
            Kind::Heap(values) => values,
            Kind::Slab(block) => block.values().to_vec(),
        }
    }
}

impl From<Vec<f32>> for HostValues {
    fn from(values: Vec<f32>) -> Self {
        Self(Kind::Heap(values))
    }
}

impl Deref for HostValues {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Kind::Heap(values) => values,
            Kind::Slab(block) => block.values(),
        }
    }
}

impl DerefMut for HostValues {
    fn deref_mut(&mut self) -> &mut [f32] {
        match &mut self.0 {
            Kind::Heap(values) => values,
            Kind::Slab(block) => block.values_mut(),
        }
    }
}

impl fmt::Debug for HostValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The slabs of a thread, and the blocks in them.
#[derive(Default)]
struct Slabs {
    placements: Placements,
    memory: Vec<Slab>,
}

/// Zeroed memory, which the system provides page by page when it is written.
struct Slab {
    start: NonNull<f32>,
    layout: Layout,
}

thread_local! {
    static THREAD: Arc<Mutex<Slabs>> = Arc::default();
}

fn locked(slabs: &Mutex<Slabs>) -> MutexGuard<'_, Slabs> {
    slabs.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A part of a slab that no other block has.
struct Block {
    start: NonNull<f32>,
    /// The number of floats that were requested.
    length: usize,
    placement: Placement,
    slabs: Arc<Mutex<Slabs>>,
}

#[expect(unsafe_code, reason = "parts of slabs are slices of their own")]
mod parts {
    use super::*;

    // SAFETY: the memory belongs to the slab alone.
    unsafe impl Send for Slab {}
    // SAFETY: the floats of a block belong to it alone, and it has them as a vector has its elements.
    unsafe impl Send for Block {}
    // SAFETY: as above; a shared block is only read.
    unsafe impl Sync for Block {}

    impl Slab {
        /// Returns a slab of a number of floats; `None` if the system refuses it.
        pub(super) fn new(length: usize) -> Option<Self> {
            let layout = Layout::array::<f32>(length).expect("a slab of memory");
            assert!(layout.size() > 0, "a slab of memory");
            // SAFETY: the layout has a size.
            let start = NonNull::new(unsafe { alloc_zeroed(layout) }.cast())?;
            Some(Self { start, layout })
        }

        /// Returns the first float of a part.
        pub(super) fn at(&self, start: usize) -> NonNull<f32> {
            assert!(
                start * size_of::<f32>() < self.layout.size(),
                "inside the slab"
            );
            // SAFETY: inside the slab, as asserted.
            unsafe { self.start.add(start) }
        }
    }

    impl Drop for Slab {
        fn drop(&mut self) {
            // SAFETY: allocated with this layout; blocks keep their slab.
            unsafe { dealloc(self.start.as_ptr().cast(), self.layout) };
        }
    }

    impl Block {
        pub(super) fn values(&self) -> &[f32] {
            // SAFETY: the block has `length` floats of the slab, which were zeroed at first, and the slab lives as long as it.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
        }

        pub(super) fn values_mut(&mut self) -> &mut [f32] {
            // SAFETY: as above, and no other block has them.
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
        }
    }

    /// Returns the pages of a free range to the system, which provides zeroed ones when they are written again.
    #[cfg(target_os = "linux")]
    pub(super) fn release(slab: &Slab, range: Placement) {
        use rustix::mm::{Advice, madvise};

        let page = rustix::param::page_size();
        let start = slab.at(range.start).as_ptr().cast::<u8>();
        let skipped = start.align_offset(page);
        let bytes = range.length * size_of::<f32>();
        let whole = bytes.saturating_sub(skipped) / page * page;
        if whole > 0 {
            // SAFETY: whole pages inside a free range, which no block reads before it is written; zeros are floats too.
            // A refusal costs memory only.
            let _ = unsafe { madvise(start.add(skipped).cast(), whole, Advice::LinuxDontNeed) };
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(super) fn release(_slab: &Slab, _range: Placement) {}
}

impl Block {
    /// Takes a block; `None` if it needs a slab that the system refuses.
    fn take(slabs: &Arc<Mutex<Slabs>>, length: usize) -> Option<Self> {
        let mut all = locked(slabs);
        let placement = match all.placements.take_from_slabs(length) {
            Some(placement) => placement,
            None => {
                let memory = Slab::new(Placements::slab_length(length))?;
                all.memory.push(memory);
                all.placements.take(length)
            }
        };
        let start = all.memory[placement.slab].at(placement.start);
        drop(all);
        Some(Self {
            start,
            length,
            placement,
            slabs: slabs.clone(),
        })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        #[cfg(test)]
        self.values_mut().fill(f32::NAN);
        locked(&self.slabs).placements.give(self.placement);
    }
}

/// Returns the free memory of this thread to the system. Called between phases that need other lengths, such as training and
/// evaluation, so that the peak is that of the larger one instead of their sum. Cost: the next pass gets zeroed pages anew.
pub fn release_free_memory() {
    THREAD.with(|slabs| {
        let slabs = locked(slabs);
        for range in slabs.placements.free_ranges() {
            parts::release(&slabs.memory[range.slab], range);
        }
    });
}

/// Returns the memory that activations of this thread take.
#[must_use]
pub fn host_memory() -> MemoryUse {
    THREAD.with(|slabs| locked(slabs).placements.memory())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_reused_and_have_memory_of_their_own() {
        let mut blocks: Vec<HostValues> = (0..8)
            .map(|number| {
                let mut block = HostValues::take(LENGTH_MIN + number);
                block.fill(number as f32);
                block
            })
            .collect();
        for (number, block) in blocks.iter().enumerate() {
            assert_eq!(block.len(), LENGTH_MIN + number);
            assert!(block.iter().all(|value| *value == number as f32));
        }
        let taken = host_memory().taken;
        drop(blocks.remove(3));
        let again = HostValues::take(LENGTH_MIN);
        assert!(again.iter().all(|value| value.is_nan()));
        assert_eq!(host_memory().taken, taken);
        // Blocks live longer than the thread that took them.
        let other = std::thread::spawn(|| {
            let mut block = HostValues::take(LENGTH_MIN);
            block.fill(7.0);
            block
        });
        assert_eq!(other.join().unwrap().into_vec(), [7.0; LENGTH_MIN]);
    }

    #[test]
    fn released_memory_can_be_used_again() {
        let mut kept = HostValues::take(3 * LENGTH_MIN);
        kept.fill(1.0);
        drop(HostValues::take(1 << 20));
        release_free_memory();
        let mut again = HostValues::take(1 << 20);
        again.fill(2.0);
        assert!(kept.iter().all(|value| *value == 1.0));
        assert!(again.iter().all(|value| *value == 2.0));
    }
}
