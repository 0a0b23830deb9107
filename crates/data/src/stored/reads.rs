//! Which bytes are read at once: neighbouring ranges of a file become one read.

use std::ops::Range;

/// Bytes between two ranges that are read along rather than skipped.
const GAP_BYTES: u64 = 64 << 10;

/// Most bytes of a read, unless one range alone has more.
const READ_BYTES: u64 = 4 << 20;

/// A range of a file that somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ask {
    pub file: usize,
    pub range: Range<u64>,
}

/// Bytes that are read at once, and which of the asks they answer: numbers in the list that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Read {
    pub file: usize,
    pub range: Range<u64>,
    pub asks: Vec<usize>,
}

/// Reads that answer all asks, in the order of files and places.
pub(super) fn plan(asks: &[Ask]) -> Vec<Read> {
    let mut order: Vec<usize> = (0..asks.len()).collect();
    order.sort_by_key(|&number| (asks[number].file, asks[number].range.start));
    let mut reads: Vec<Read> = Vec::new();
    for number in order {
        let Ask { file, range } = &asks[number];
        let joins = |read: &Read| {
            let end = read.range.end.max(range.end);
            let is_near = range.start <= read.range.end.saturating_add(GAP_BYTES);
            let is_within = range.end <= read.range.end;
            read.file == *file && is_near && (is_within || end - read.range.start <= READ_BYTES)
        };
        match reads.last_mut().filter(|read| joins(read)) {
            Some(read) => {
                read.range.end = read.range.end.max(range.end);
                read.asks.push(number);
            }
            None => reads.push(Read {
                file: *file,
                range: range.clone(),
                asks: vec![number],
            }),
        }
    }
    reads
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ask(file: usize, start: u64, bytes: u64) -> Ask {
        let range = start..start + bytes;
        Ask { file, range }
    }

    #[test]
    fn neighbours_are_read_at_once_and_far_ones_are_not() {
        let asks = [
            ask(1, 0, 10),
            ask(0, 100, 50),
            ask(0, 0, 100),
            ask(0, 150 + GAP_BYTES, 1),
            ask(0, 152 + 2 * GAP_BYTES, 1),
        ];
        let found = plan(&asks);
        let expected = [
            (0, 0..151 + GAP_BYTES, vec![2, 1, 3]),
            (0, 152 + 2 * GAP_BYTES..153 + 2 * GAP_BYTES, vec![4]),
            (1, 0..10, vec![0]),
        ];
        for (read, (file, range, asks)) in found.iter().zip(expected) {
            assert_eq!(*read, Read { file, range, asks });
        }
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn a_range_that_is_larger_than_a_read_is_read_whole() {
        let found = plan(&[
            ask(0, 0, 3 * READ_BYTES),
            ask(0, 5, 1),
            ask(0, 3 * READ_BYTES, 1),
        ]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].range, 0..3 * READ_BYTES);
        assert_eq!(found[0].asks, [0, 1]);
    }

    proptest! {
        #[test]
        fn every_ask_is_answered_once_by_a_read_that_covers_it(
            asks in prop::collection::vec((0..3_usize, 0..20_000_000_u64, 0..3_000_000_u64), 0..60)
        ) {
            let asks: Vec<Ask> = asks.into_iter().map(|(f, s, b)| ask(f, s, b)).collect();
            let mut answered = vec![0; asks.len()];
            for read in plan(&asks) {
                for number in read.asks {
                    let range = &asks[number].range;
                    prop_assert_eq!(asks[number].file, read.file);
                    prop_assert!(read.range.start <= range.start && range.end <= read.range.end);
                    answered[number] += 1;
                }
            }
            prop_assert!(answered.iter().all(|&times| times == 1));
        }
    }
}
