//! Memory of tensors that have ended, for the next ones of the same length: neither zeroed nor asked for
//! anew.
//!
//! A step asks for the lengths of the step before. What comes out has old contents: whoever takes it
//! writes every element before any is read, so which tensors came before cannot be seen.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Shorter ones are not worth it.
const LENGTH_MIN: usize = 4096;
/// Lengths that nobody took or gave within so many takes are let go.
const AGE_MAX: u64 = 8192;
/// How often it is looked for such.
const LOOK_EVERY: u64 = 1024;

#[derive(Default)]
struct Free {
    lengths: BTreeMap<usize, Length>,
    takes: u64,
}

#[derive(Default)]
struct Length {
    free: Vec<Vec<f32>>,
    last_use: u64,
}

thread_local! {
    /// Never read before it is written.
    static FREE: RefCell<Free> = RefCell::default();
}

impl Free {
    fn take(&mut self, length: usize) -> Option<Vec<f32>> {
        self.takes += 1;
        let now = self.takes;
        if now.is_multiple_of(LOOK_EVERY) {
            self.lengths
                .retain(|_, length| now - length.last_use < AGE_MAX);
        }
        let of_length = self.lengths.get_mut(&length)?;
        of_length.last_use = now;
        of_length.free.pop()
    }

    fn give(&mut self, values: Vec<f32>) {
        let of_length = self.lengths.entry(values.len()).or_default();
        of_length.last_use = self.takes;
        of_length.free.push(values);
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
        let mut free = Free::default();
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
    fn what_was_given_is_taken_and_short_runs_are_not_kept() {
        give(vec![1.0; LENGTH_MIN]);
        assert!(take(LENGTH_MIN)[0].is_nan());
        assert_eq!(take(LENGTH_MIN), vec![0.0; LENGTH_MIN]);
        give(vec![1.0; 3]);
        assert_eq!(take(3), [0.0; 3]);
    }
}
