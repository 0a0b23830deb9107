//! Memory of tensors that have ended, for the next ones of the same length: neither zeroed nor asked for
//! anew.
//!
//! A step asks for the lengths of the step before. What comes out has old contents: whoever takes it
//! writes every element before any is read, so which tensors came before cannot be seen. As much is kept as
//! was taken: a sample that a loader made, and that nobody takes again, goes back to the system.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Shorter ones are not worth it.
const LENGTH_MIN: usize = 4096;
/// Lengths that nobody took or gave within so many uses are let go, and what was out all that time is not
/// waited for.
const AGE_MAX: u64 = 8192;

#[derive(Default)]
struct FreeLists {
    lengths: BTreeMap<usize, FreeList>,
    uses: u64,
}

#[derive(Default)]
struct FreeList {
    free: Vec<Vec<f32>>,
    /// How many were taken and have not come back, and the fewest since it was last looked.
    out: usize,
    out_min: usize,
    last_use: u64,
}

thread_local! {
    /// Never read before it is written.
    static FREE: RefCell<FreeLists> = RefCell::default();
}

impl FreeLists {
    fn of(&mut self, length: usize) -> &mut FreeList {
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

    fn take(&mut self, length: usize) -> Option<Vec<f32>> {
        let length = self.of(length);
        length.out += 1;
        length.free.pop()
    }

    fn give(&mut self, values: Vec<f32>) {
        let length = self.of(values.len());
        if length.out > 0 {
            length.out -= 1;
            length.out_min = length.out_min.min(length.out);
            length.free.push(values);
        }
    }
}

/// `length` values that the caller writes before anybody reads them.
pub(crate) fn take(length: usize) -> Vec<f32> {
    let found = if length < LENGTH_MIN {
        None
    } else {
        FREE.with_borrow_mut(|free| free.take(length))
    };
    found.unwrap_or_else(|| vec![0.0; length])
}

/// Takes memory back. Cost: none.
pub(crate) fn give(values: Vec<f32>) {
    if values.len() < LENGTH_MIN || values.len() != values.capacity() {
        return;
    }
    #[cfg(test)]
    let values = vec![f32::NAN; values.len()];
    // A thread that ends has no memory to give to any more.
    let _ = FREE.try_with(|free| free.borrow_mut().give(values));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_comes_again_until_nobody_asks_for_it() {
        let mut free = FreeLists::default();
        for length in [5, 5, 7] {
            assert_eq!(free.take(length), None);
        }
        free.give(vec![1.0; 5]);
        free.give(vec![2.0; 5]);
        free.give(vec![3.0; 7]);
        assert_eq!(free.take(6), None);
        assert_eq!(free.take(5), Some(vec![2.0; 5]));
        for _ in 0..2 * AGE_MAX {
            let one = free.take(5).unwrap();
            free.give(one);
        }
        assert_eq!(free.lengths.keys().collect::<Vec<_>>(), [&5]);
    }

    #[test]
    fn no_more_is_kept_than_was_taken() {
        let mut free = FreeLists::default();
        let kept = |free: &FreeLists| free.lengths.get(&5).map_or(0, |length| length.free.len());
        // A step that takes one, and gives that one back and one that came from elsewhere.
        for _ in 0..10 {
            let own = free.take(5).unwrap_or_else(|| vec![0.0; 5]);
            free.give(own);
            free.give(vec![0.0; 5]);
            assert_eq!(kept(&free), 1);
        }
        // Many that do not come back, and are not waited for in the end.
        for _ in 0..100 {
            free.take(5);
        }
        for _ in 0..AGE_MAX {
            let own = free.take(5).unwrap_or_else(|| vec![0.0; 5]);
            free.give(own);
        }
        for _ in 0..100 {
            free.give(vec![0.0; 5]);
        }
        assert!(kept(&free) <= 2, "{}", kept(&free));
    }

    #[test]
    fn what_was_given_is_taken_and_short_runs_are_not_kept() {
        give(take(LENGTH_MIN));
        assert!(take(LENGTH_MIN)[0].is_nan());
        assert_eq!(take(LENGTH_MIN), vec![0.0; LENGTH_MIN]);
        give(vec![1.0; 3]);
        assert_eq!(take(3), [0.0; 3]);
    }
}
