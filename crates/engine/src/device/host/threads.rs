//! [`Threads`]: the threads among which the host device divides its kernels.
//!
//! Only outputs are divided, never the terms of a sum, so the number of threads does not change a bit.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::helpers::Helpers;

/// The least number of floats that a thread reads or writes; less does not pay for the wait for it.
const FLOATS_MIN: usize = if cfg!(test) { 4 } else { 16_384 };

/// The calling thread and its helpers.
#[derive(Debug, Default)]
pub(super) struct Threads {
    /// One thread fewer than compute; `None` for the calling thread alone.
    helpers: Option<Helpers>,
}

impl Threads {
    /// Starts all threads but the calling one. They inherit its cores.
    pub(super) fn start(count: usize) -> std::io::Result<Self> {
        let helpers = (count > 1).then(|| Helpers::start(count - 1));
        Ok(Self {
            helpers: helpers.transpose()?,
        })
    }

    /// Returns the number of threads that compute.
    pub(super) fn count(&self) -> usize {
        1 + self.helpers.as_ref().map_or(0, Helpers::count)
    }

    /// Divides `0..items` into ranges of similar length, at most one per thread, which handle enough of the
    /// `floats`.
    pub(super) fn ranges(&self, items: usize, floats: usize) -> Vec<Range<usize>> {
        let parts = self.count().min(floats / FLOATS_MIN).min(items).max(1);
        (0..parts)
            .map(|part| items * part / parts..items * (part + 1) / parts)
            .collect()
    }

    /// Calls `work` for each part, at most one per thread, and returns when all calls have.
    pub(super) fn each<T: Send>(&self, parts: Vec<T>, work: impl Fn(T) + Sync) {
        let Some(helpers) = self.helpers.as_ref().filter(|_| parts.len() > 1) else {
            return parts.into_iter().for_each(work);
        };
        let parts: Vec<Mutex<Option<T>>> = parts
            .into_iter()
            .map(|part| Mutex::new(Some(part)))
            .collect();
        helpers.run(parts.len(), &|index| {
            let part = parts[index]
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            part.into_iter().for_each(&work);
        });
    }
}

/// Splits values of `items` equal parts at ranges of them.
pub(super) fn split<'a>(
    mut values: &'a mut [f32],
    items: usize,
    ranges: &[Range<usize>],
) -> Vec<&'a mut [f32]> {
    let each = values.len() / items.max(1);
    let cut = |range: &Range<usize>| {
        let (part, rest) = std::mem::take(&mut values).split_at_mut(range.len() * each);
        values = rest;
        part
    };
    ranges.iter().map(cut).collect()
}

/// Returns the part of values of `items` equal parts at a range of them.
pub(super) fn part<'a>(values: &'a [f32], items: usize, range: &Range<usize>) -> &'a [f32] {
    let each = values.len() / items.max(1);
    &values[range.start * each..range.end * each]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_divided_among_threads_if_it_is_worth_it() {
        let threads = Threads::start(3).unwrap();
        assert_eq!(threads.count(), 3);
        assert_eq!(threads.ranges(10, 1 << 20), [0..3, 3..6, 6..10]);
        assert_eq!(threads.ranges(2, 1 << 20), [0..1, 1..2]);
        assert_eq!(threads.ranges(10, 3), vec![0..10; 1]);
        assert_eq!(threads.ranges(0, 1 << 20), vec![0..0; 1]);
        let mut values = vec![0.0; 30];
        let ranges = threads.ranges(10, 1 << 20);
        let parts = split(&mut values, 10, &ranges).into_iter().zip(1..);
        threads.each(parts.collect(), |(part, number)| part.fill(number as f32));
        assert_eq!([values[8], values[9], values[29]], [1.0, 2.0, 3.0]);
        assert_eq!(part(&values, 10, &(3..6)), [2.0; 9]);
        assert_eq!(Threads::default().ranges(10, 1 << 20), vec![0..10; 1]);
    }
}
