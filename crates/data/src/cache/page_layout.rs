//! [`PageLayout`]: the pages of an object, and the pages that cover a range.

use std::ops::Range;

/// The division of an object into pages of equal length; the last page may be shorter.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageLayout {
    /// The bytes of the object.
    pub(super) bytes: u64,
    /// The bytes of a page.
    pub(super) page_bytes: u64,
}

impl PageLayout {
    /// Returns the number of pages; an empty object has none.
    pub(super) fn count(&self) -> u64 {
        self.bytes.div_ceil(self.page_bytes)
    }

    /// Returns the byte range of a page.
    pub(super) fn range(&self, page: u64) -> Range<u64> {
        let start = page.saturating_mul(self.page_bytes).min(self.bytes);
        start..start.saturating_add(self.page_bytes).min(self.bytes)
    }

    /// Returns the pages that overlap a byte range, up to the end of the object.
    pub(super) fn covering(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.min(self.bytes);
        if range.start >= end {
            return 0..0;
        }
        range.start / self.page_bytes..end.div_ceil(self.page_bytes)
    }
}

/// Groups `pages`, in ascending order, into runs of at most `most` neighbours.
pub(super) fn runs(pages: &[u64], most: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &page in pages {
        match runs.last_mut() {
            Some(run) if run.end == page && run.end - run.start < most => run.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

/// Returns the intersection of two ranges, which may be empty.
pub(super) fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pages_cover_the_object_once(bytes in 0_u64..5000, page_bytes in 1_u64..700) {
            let pages = PageLayout { bytes, page_bytes };
            let mut at = 0;
            for page in 0..pages.count() {
                let range = pages.range(page);
                prop_assert_eq!(range.start, at);
                prop_assert!(range.end > range.start && range.end - range.start <= page_bytes);
                at = range.end;
            }
            prop_assert_eq!(at, bytes);
        }

        #[test]
        fn a_range_is_covered_by_exactly_the_pages_that_it_overlaps(
            bytes in 0_u64..5000, page_bytes in 1_u64..700, start in 0_u64..6000, length in 0_u64..6000,
        ) {
            let pages = PageLayout { bytes, page_bytes };
            let range = start..start + length;
            let covering = pages.covering(&range);
            for page in 0..pages.count() {
                let overlaps = !overlap(&pages.range(page), &range).is_empty();
                prop_assert_eq!(covering.contains(&page), overlaps, "page {}", page);
            }
            let covered: u64 = covering.map(|page| {
                let part = overlap(&pages.range(page), &range);
                part.end - part.start
            }).sum();
            let asked = overlap(&(0..bytes), &range);
            prop_assert_eq!(covered, asked.end - asked.start);
        }

        #[test]
        fn runs_hold_every_page_once(present in prop::collection::vec(any::<bool>(), 0..60), most in 1_u64..9) {
            let pages: Vec<u64> = (0..).zip(&present).filter(|(_, is)| **is).map(|(page, _)| page).collect();
            let runs = runs(&pages, most);
            let flat: Vec<u64> = runs.iter().cloned().flatten().collect();
            prop_assert_eq!(&flat, &pages);
            prop_assert!(runs.iter().all(|run| run.end - run.start <= most));
            // Neighbours are in different runs only if the first run is full.
            for two in runs.windows(2) {
                prop_assert!(two[0].end < two[1].start || two[0].end - two[0].start == most);
            }
        }
    }

    #[test]
    fn the_largest_numbers_do_not_overflow() {
        let pages = PageLayout {
            bytes: u64::MAX,
            page_bytes: 4 << 20,
        };
        assert_eq!(pages.range(pages.count() - 1).end, u64::MAX);
        assert!(pages.range(u64::MAX).is_empty());
        assert_eq!(pages.covering(&(u64::MAX - 1..u64::MAX)).end, pages.count());
    }
}
