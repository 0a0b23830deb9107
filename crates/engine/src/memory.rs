//! Reuse of the memory of dropped tensors for new ones of the same length, without zeroing or
//! allocating.
//!
//! A step needs the same lengths as the previous one. Reused memory has old contents: the caller
//! writes every element before reading any, so earlier tensors cannot affect results. No more
//! memory is kept than was taken: a sample that a loader allocated, and that no operation takes
//! again, is returned to the system.

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
}

impl<B> Default for FreeLists<B> {
    fn default() -> Self {
        Self {
            lengths: BTreeMap::new(),
            uses: 0,
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
            self.lengths
                .retain(|_, length| now - length.last_use < AGE_MAX);
            for length in self.lengths.values_mut() {
                length.out -= length.out_min;
                length.out_min = length.out;
            }
        }
        let length = self.lengths.entry(length).or_default();
        length.last_use = now;
        length
    }

    /// Returns free memory of a length, if there is any.
    pub(crate) fn take(&mut self, length: usize) -> Option<B> {
        if length < LENGTH_MIN {
            return None;
        }
        let length = self.of(length);
        length.out += 1;
        length.free.pop()
    }

    /// Keeps memory for reuse, or returns it if it is not expected back.
    pub(crate) fn give(&mut self, block: B) -> Option<B> {
        if block.length() < LENGTH_MIN {
            return Some(block);
        }
        let length = self.of(block.length());
        if length.out == 0 {
            return Some(block);
        }
        length.out -= 1;
        length.out_min = length.out_min.min(length.out);
        length.free.push(block);
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
        for length in [N, N, N + 2] {
            assert_eq!(free.take(length), None);
        }
        free.give(vec![1.0; N]);
        free.give(vec![2.0; N]);
        free.give(vec![3.0; N + 2]);
        assert_eq!(free.take(N + 1), None);
        assert_eq!(free.take(N), Some(vec![2.0; N]));
        for _ in 0..2 * AGE_MAX {
            let one = free.take(N).unwrap();
            free.give(one);
        }
        assert_eq!(free.lengths.keys().collect::<Vec<_>>(), [&N]);
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
