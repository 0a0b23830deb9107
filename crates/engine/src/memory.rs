//! Reuse of the memory of dropped tensors for new ones of the same length, without zeroing or
//! allocating.
//!
//! A step needs the same lengths as the previous one. Reused memory has old contents: the caller
//! writes every element before reading any, so earlier tensors cannot affect results. No more
//! memory is kept than was taken: a sample that a loader allocated, and that no operation takes
//! again, is returned to the system. Memory in use and free memory together are at most what was
//! in use at any time of the last steps: where new memory would exceed this, free memory of the
//! lengths that were not needed for longest is returned to the system.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// The minimum length; shorter allocations are not worth keeping.
const LENGTH_MIN: usize = 4096;
/// The number of uses after which lengths that were neither taken nor returned are freed, and
/// outstanding memory is no longer expected back.
const AGE_MAX: u64 = 8192;

/// Memory of a number of floats.
pub(crate) trait Block {
    /// Returns the number of floats.
    fn length(&self) -> usize;
}

impl Block for Vec<f32> {
    fn length(&self) -> usize {
        self.len()
    }
}

/// Memory that is free, by length.
#[derive(Debug)]
pub(crate) struct FreeLists<B> {
    lengths: BTreeMap<usize, FreeList<B>>,
    uses: u64,
    /// The floats taken and not returned, and the floats that are free.
    out: usize,
    free: usize,
    /// The most floats that were out since the last check, and between the last two.
    most: [usize; 2],
}

impl<B> Default for FreeLists<B> {
    fn default() -> Self {
        Self {
            lengths: BTreeMap::new(),
            uses: 0,
            out: 0,
            free: 0,
            most: [0; 2],
        }
    }
}

#[derive(Debug)]
struct FreeList<B> {
    free: Vec<B>,
    /// The number taken and not returned, and its minimum since the last check.
    out: usize,
    out_min: usize,
    last_use: u64,
}

impl<B> Default for FreeList<B> {
    fn default() -> Self {
        Self {
            free: Vec::new(),
            out: 0,
            out_min: 0,
            last_use: 0,
        }
    }
}

thread_local! {
    /// Memory that must be written before it is read.
    static FREE: RefCell<FreeLists<Vec<f32>>> = RefCell::default();
}

impl<B: Block> FreeLists<B> {
    fn of(&mut self, length: usize) -> &mut FreeList<B> {
        self.uses += 1;
        let now = self.uses;
        if now.is_multiple_of(AGE_MAX) {
            self.forget();
        }
        let length = self.lengths.entry(length).or_default();
        length.last_use = now;
        length
    }

    /// Frees lengths that are not used any more, and no longer expects memory that was not returned.
    fn forget(&mut self) {
        let now = self.uses;
        self.lengths
            .retain(|_, length| now - length.last_use < AGE_MAX);
        (self.out, self.free) = (0, 0);
        for (floats, length) in &mut self.lengths {
            length.out -= length.out_min;
            length.out_min = length.out;
            self.out += floats * length.out;
            self.free += floats * length.free.len();
        }
        self.most = [self.out, self.most[0]];
    }

    /// Returns free memory of a length, if there is any. Otherwise the caller allocates it, and other free memory that
    /// would exceed the limit with it is dropped.
    pub(crate) fn take(&mut self, length: usize) -> Option<B> {
        if length < LENGTH_MIN {
            return None;
        }
        let list = self.of(length);
        list.out += 1;
        let found = list.free.pop();
        self.out += length;
        self.most[0] = self.most[0].max(self.out);
        if found.is_some() {
            self.free -= length;
        } else {
            self.drop_free_memory();
        }
        found
    }

    /// Drops free memory beyond the most that was in use.
    fn drop_free_memory(&mut self) {
        let limit = self.most[0].max(self.most[1]);
        while self.out + self.free > limit {
            let lists = self.lengths.iter_mut();
            let free = lists.filter(|(_, list)| !list.free.is_empty());
            let Some((floats, oldest)) = free.min_by_key(|(_, list)| list.last_use) else {
                return;
            };
            let beyond = (self.out + self.free - limit).div_ceil(*floats);
            let dropped = beyond.min(oldest.free.len());
            oldest.free.drain(..dropped);
            self.free -= dropped * floats;
        }
    }

    /// Keeps memory for reuse, or returns it if it is not expected back.
    pub(crate) fn give(&mut self, block: B) -> Option<B> {
        let floats = block.length();
        if floats < LENGTH_MIN {
            return Some(block);
        }
        let length = self.of(floats);
        if length.out == 0 {
            return Some(block);
        }
        length.out -= 1;
        length.out_min = length.out_min.min(length.out);
        length.free.push(block);
        self.out -= floats;
        self.free += floats;
        None
    }
}

/// Returns `length` values, which the caller writes before they are read.
pub(crate) fn take(length: usize) -> Vec<f32> {
    let found = FREE.with_borrow_mut(|free| free.take(length));
    found.unwrap_or_else(|| vec![0.0; length])
}

/// Returns memory for reuse. Cost: none.
pub(crate) fn give(values: Vec<f32>) {
    if values.is_empty() || values.len() != values.capacity() {
        return;
    }
    #[cfg(test)]
    let values = vec![f32::NAN; values.len()];
    // A thread that ends can no longer keep memory.
    let _ = FREE.try_with(|free| drop(free.borrow_mut().give(values)));
}

/// Returns the free memory of this thread to the system. Called between phases that need other lengths, such as training and
/// evaluation, so that the peak is that of the larger one instead of their sum. Cost: the next pass allocates anew.
pub fn release_free_memory() {
    let _ = FREE.try_with(|free| free.take());
}

#[cfg(test)]
mod tests {
    use super::*;

    const N: usize = LENGTH_MIN;

    #[test]
    fn a_length_is_reused_until_it_is_no_longer_needed() {
        let mut free = FreeLists::default();
        for length in [N, N, N + 1, N + 2] {
            assert_eq!(free.take(length), None);
        }
        free.give(vec![1.0; N]);
        free.give(vec![2.0; N]);
        free.give(vec![3.0; N + 2]);
        assert_eq!(free.take(N), Some(vec![2.0; N]));
        for _ in 0..2 * AGE_MAX {
            let one = free.take(N).unwrap();
            free.give(one);
        }
        assert_eq!(free.lengths.keys().collect::<Vec<_>>(), [&N]);
    }

    #[test]
    fn free_memory_of_other_lengths_makes_room() {
        let mut free = FreeLists::default();
        let blocks = |free: &mut FreeLists<Vec<f32>>, length: usize, count: usize| -> Vec<_> {
            let one = |_| free.take(length).unwrap_or_else(|| vec![0.0; length]);
            (0..count).map(one).collect()
        };
        // Two phases of 4 N each, of different lengths, and one of both.
        for _ in 0..3 {
            for (length, count) in [(N, 4), (2 * N, 2), (4 * N, 1)] {
                let taken = blocks(&mut free, length, count);
                assert!(free.out + free.free <= 4 * N, "{} {}", free.out, free.free);
                for block in taken {
                    free.give(block);
                }
            }
            assert_eq!((free.out, free.free), (0, 4 * N));
        }
        let both = [blocks(&mut free, N, 4), blocks(&mut free, 2 * N, 2)].concat();
        assert_eq!((free.out, free.free), (8 * N, 0));
        for block in both {
            free.give(block);
        }
        // There is room for all lengths now, so none is allocated again.
        for length in [N, 2 * N] {
            assert!(free.take(length).is_some());
        }
    }

    #[test]
    fn no_more_is_kept_than_was_taken() {
        let mut free = FreeLists::default();
        let kept =
            |free: &FreeLists<Vec<f32>>| free.lengths.get(&N).map_or(0, |length| length.free.len());
        // A step that takes one, and returns that one and another that was allocated elsewhere.
        for _ in 0..10 {
            let own = free.take(N).unwrap_or_else(|| vec![0.0; N]);
            free.give(own);
            free.give(vec![0.0; N]);
            assert_eq!(kept(&free), 1);
        }
        // Many that are not returned, and are eventually no longer expected.
        for _ in 0..100 {
            free.take(N);
        }
        for _ in 0..AGE_MAX {
            let own = free.take(N).unwrap_or_else(|| vec![0.0; N]);
            free.give(own);
        }
        for _ in 0..100 {
            free.give(vec![0.0; N]);
        }
        assert!(kept(&free) <= 2, "{}", kept(&free));
    }

    #[test]
    fn returned_memory_is_reused_and_short_allocations_are_not_kept() {
        give(take(LENGTH_MIN));
        assert!(take(LENGTH_MIN)[0].is_nan());
        assert_eq!(take(LENGTH_MIN), vec![0.0; LENGTH_MIN]);
        give(vec![1.0; 3]);
        assert_eq!(take(3), [0.0; 3]);
    }
}
