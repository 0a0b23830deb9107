//! [`Extents`]: a compact list of the extents of one file.

use crate::format::{EvenLayout, Extent};

/// The extents of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Extents {
    /// They are described by a few numbers.
    Even(EvenLayout),
    /// They are listed individually.
    Listed(ExtentList),
}

/// Extents at any offsets, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ExtentList {
    starts: Vec<u64>,
    lengths: Vec<u32>,
    /// The number of the first record of each extent; empty while every extent has one record.
    firsts: Vec<u64>,
    records: u64,
}

impl ExtentList {
    /// Appends an extent; returns `false` if it overlaps the last one, has no record, or is too large.
    pub(crate) fn push(&mut self, extent: &Extent) -> bool {
        let end = self.end();
        let length = u32::try_from(extent.bytes);
        let sound = extent.start >= end && extent.records > 0;
        let (Ok(length), true, Some(_)) = (length, sound, extent.start.checked_add(extent.bytes))
        else {
            return false;
        };
        if extent.records > 1 && self.firsts.is_empty() {
            self.firsts = (0..self.starts.len() as u64).collect();
            self.firsts.push(self.records);
        } else if !self.firsts.is_empty() {
            self.firsts.push(self.records);
        }
        self.starts.push(extent.start);
        self.lengths.push(length);
        self.records += u64::from(extent.records);
        true
    }

    /// Returns the end of the last extent.
    pub(crate) fn end(&self) -> u64 {
        match (self.starts.last(), self.lengths.last()) {
            (Some(start), Some(&length)) => start + u64::from(length),
            _ => 0,
        }
    }

    /// Releases excess capacity.
    pub(crate) fn close(&mut self) {
        self.starts.shrink_to_fit();
        self.lengths.shrink_to_fit();
        self.firsts.shrink_to_fit();
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns the number of the first record of an extent.
    fn first(&self, number: usize) -> u64 {
        match self.firsts.is_empty() {
            true => number as u64,
            false => self.firsts[number],
        }
    }

    pub(crate) fn extent(&self, number: usize) -> Extent {
        let next = match number + 1 < self.len() {
            true => self.first(number + 1),
            false => self.records,
        };
        Extent {
            start: self.starts[number],
            bytes: u64::from(self.lengths[number]),
            records: (next - self.first(number)) as u32,
        }
    }

    fn locate(&self, record: u64) -> Option<(Extent, u32)> {
        if record >= self.records {
            return None;
        }
        let number = match self.firsts.is_empty() {
            true => record as usize,
            false => self.firsts.partition_point(|&first| first <= record) - 1,
        };
        let within = (record - self.first(number)) as u32;
        Some((self.extent(number), within))
    }
}

impl Extents {
    /// Returns the number of records.
    pub(crate) fn records(&self) -> u64 {
        match self {
            Self::Even(even) => even.records,
            Self::Listed(listed) => listed.records,
        }
    }

    /// Returns the extent that contains a record, and the record's number there.
    pub(crate) fn locate(&self, record: u64) -> Option<(Extent, u32)> {
        match self {
            Self::Even(even) => even.locate(record),
            Self::Listed(listed) => listed.locate(record),
        }
    }

    /// Returns the total size of all extents in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Even(even) => even.records * even.record_bytes,
            Self::Listed(listed) => listed.lengths.iter().map(|&n| u64::from(n)).sum(),
        }
    }

    /// Returns the number of records of the largest extent.
    pub(crate) fn records_max(&self) -> u64 {
        match self {
            Self::Even(even) => u64::from(even.extent_records).min(even.records),
            Self::Listed(listed) if listed.firsts.is_empty() => listed.records.min(1),
            Self::Listed(listed) => {
                let all = (0..listed.len()).map(|number| listed.extent(number).records);
                all.max().map_or(0, u64::from)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_found_in_its_extent() {
        for counts in [&[1, 1, 1][..], &[3, 1, 2], &[1, 1, 4, 1], &[]] {
            let mut listed = ExtentList::default();
            let (mut expected, mut start) = (Vec::new(), 5);
            for &records in counts {
                let extent = Extent {
                    start,
                    bytes: 10,
                    records,
                };
                assert!(listed.push(&extent));
                expected.extend((0..records).map(|n| (extent, n)));
                start += 13;
            }
            let extents = Extents::Listed(listed);
            assert_eq!(extents.records(), expected.len() as u64);
            for (record, &expected) in expected.iter().enumerate() {
                assert_eq!(extents.locate(record as u64), Some(expected));
            }
            assert_eq!(extents.locate(expected.len() as u64), None);
            assert_eq!(
                extents.records_max(),
                u64::from(counts.iter().copied().max().unwrap_or(0))
            );
            assert_eq!(extents.bytes(), 10 * counts.len() as u64);
        }
    }

    #[test]
    fn extents_that_overlap_or_are_empty_are_refused() {
        let mut listed = ExtentList::default();
        let extent = |start, bytes, records| Extent {
            start,
            bytes,
            records,
        };
        assert!(listed.push(&extent(10, 5, 1)));
        assert!(!listed.push(&extent(14, 5, 1)));
        assert!(!listed.push(&extent(15, 5, 0)));
        assert!(!listed.push(&extent(15, 1 << 32, 1)));
        assert!(!listed.push(&extent(u64::MAX, 1, 1)));
        assert!(listed.push(&extent(15, 5, 1)));
    }
}
