//! The division of a range of elements among ranks.

use std::ops::Range;

/// Slices start at multiples of this many elements, so that block-wise sums over a slice equal those over the
/// whole range.
pub const ALIGNMENT: usize = 64;

/// Returns slice `index` of `count`. Slices are disjoint, in order, cover `0..len`, differ by at most one block of
/// [`ALIGNMENT`] elements, and start at multiples of it. With fewer blocks than ranks, some slices are empty.
#[must_use]
pub fn slice(len: usize, count: usize, index: usize) -> Range<usize> {
    let blocks = len.div_ceil(ALIGNMENT);
    let bound = |i: usize| ((i * blocks / count) * ALIGNMENT).min(len);
    bound(index)..bound(index + 1)
}

/// Splits a range in two at a multiple of [`ALIGNMENT`] from its start, if there are enough elements.
#[must_use]
pub fn halves(run: Range<usize>) -> (Range<usize>, Range<usize>) {
    let half = run.len() / 2;
    let half = if half >= ALIGNMENT {
        half - half % ALIGNMENT
    } else {
        half
    };
    let middle = run.start + half;
    (run.start..middle, middle..run.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_cover_all_elements_once_and_are_aligned() {
        for len in (0..300).chain([1000, 4096, 4097]) {
            for count in 1..=17 {
                let mut at = 0;
                for index in 0..count {
                    let slice = slice(len, count, index);
                    assert_eq!(slice.start, at);
                    assert!(slice.start.is_multiple_of(ALIGNMENT) || slice.start == len);
                    at = slice.end;
                }
                assert_eq!(at, len);
            }
        }
    }
}
