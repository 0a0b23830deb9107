//! Plans reads: neighbouring ranges of a file are combined into one read.

use std::ops::Range;

/// The maximum gap between two ranges that are combined.
const GAP_BYTES: u64 = 64 << 10;

/// The maximum number of bytes of a read, unless a single range has more.
const READ_BYTES: u64 = 4 << 20;

/// A requested byte range of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ByteRequest {
    pub file: usize,
    pub range: Range<u64>,
}

/// A read of one byte range, with the indices of the requests that it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CoalescedRead {
    pub file: usize,
    pub range: Range<u64>,
    pub requests: Vec<usize>,
}

/// Returns reads that cover all requests, in the order of files and offsets.
pub(super) fn plan(requests: &[ByteRequest]) -> Vec<CoalescedRead> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&number| (requests[number].file, requests[number].range.start));
    let mut reads: Vec<CoalescedRead> = Vec::new();
    for number in order {
        let ByteRequest { file, range } = &requests[number];
        let joins = |read: &CoalescedRead| {
            let end = read.range.end.max(range.end);
            let is_near = range.start <= read.range.end.saturating_add(GAP_BYTES);
            let is_within = range.end <= read.range.end;
            read.file == *file && is_near && (is_within || end - read.range.start <= READ_BYTES)
        };
        match reads.last_mut().filter(|read| joins(read)) {
            Some(read) => {
                read.range.end = read.range.end.max(range.end);
                read.requests.push(number);
            }
            None => reads.push(CoalescedRead {
                file: *file,
                range: range.clone(),
                requests: vec![number],
            }),
        }
    }
    reads
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn request(file: usize, start: u64, bytes: u64) -> ByteRequest {
        let range = start..start + bytes;
        ByteRequest { file, range }
    }

    #[test]
    fn neighbouring_ranges_are_combined_and_distant_ones_are_not() {
        let requests = [
            request(1, 0, 10),
            request(0, 100, 50),
            request(0, 0, 100),
            request(0, 150 + GAP_BYTES, 1),
            request(0, 152 + 2 * GAP_BYTES, 1),
        ];
        let found = plan(&requests);
        let expected = [
            (0, 0..151 + GAP_BYTES, vec![2, 1, 3]),
            (0, 152 + 2 * GAP_BYTES..153 + 2 * GAP_BYTES, vec![4]),
            (1, 0..10, vec![0]),
        ];
        for (read, (file, range, requests)) in found.iter().zip(expected) {
            assert_eq!(
                *read,
                CoalescedRead {
                    file,
                    range,
                    requests
                }
            );
        }
        assert_eq!(found.len(), 3);
    }

    #[test]
    fn a_range_larger_than_the_maximum_read_is_read_at_once() {
        let found = plan(&[
            request(0, 0, 3 * READ_BYTES),
            request(0, 5, 1),
            request(0, 3 * READ_BYTES, 1),
        ]);
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].range, 0..3 * READ_BYTES);
        assert_eq!(found[0].requests, [0, 1]);
    }

    proptest! {
        #[test]
        fn every_request_is_covered_by_exactly_one_read(
            requests in prop::collection::vec((0..3_usize, 0..20_000_000_u64, 0..3_000_000_u64), 0..60)
        ) {
            let requests: Vec<ByteRequest> = requests.into_iter().map(|(f, s, b)| request(f, s, b)).collect();
            let mut answered = vec![0; requests.len()];
            for read in plan(&requests) {
                for number in read.requests {
                    let range = &requests[number].range;
                    prop_assert_eq!(requests[number].file, read.file);
                    prop_assert!(read.range.start <= range.start && range.end <= read.range.end);
                    answered[number] += 1;
                }
            }
            prop_assert!(answered.iter().all(|&times| times == 1));
        }
    }
}
