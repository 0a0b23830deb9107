//! [`Extent`]: a byte range of a file that holds records; [`EvenLayout`]: many extents described by a few numbers.

/// A byte range of a file that is read and parsed as one unit: one or more records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Offset of the first byte.
    pub start: u64,
    /// Number of bytes, at most [`super::EXTENT_BYTES_MAX`].
    pub bytes: u64,
    /// Number of records; at least one.
    pub records: u32,
}

/// Contiguous records of equal size, divided into extents with equal numbers of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvenLayout {
    /// Offset of the first record.
    pub start: u64,
    /// Distance between the starts of consecutive records; at least one.
    pub record_bytes: u64,
    /// Bytes after the last record of an extent that also belong to it: the next token of a text.
    pub tail_bytes: u64,
    /// Number of records.
    pub records: u64,
    /// Records per extent; the last extent may have fewer. At least one.
    pub extent_records: u32,
}

impl EvenLayout {
    /// Creates a layout with extents of about `extent_bytes` bytes.
    #[must_use]
    pub fn new(
        start: u64,
        record_bytes: u64,
        tail_bytes: u64,
        records: u64,
        extent_bytes: u64,
    ) -> Self {
        let record_bytes = record_bytes.max(1);
        let extent_records = (extent_bytes / record_bytes).clamp(1, u64::from(u32::MAX)) as u32;
        Self {
            start,
            record_bytes,
            tail_bytes,
            records,
            extent_records,
        }
    }

    /// Returns whether the layout is possible in a file of `bytes` bytes and each of its extents can be read.
    #[must_use]
    pub fn fits(&self, bytes: u64) -> bool {
        let end = || {
            let all = self.records.checked_mul(self.record_bytes)?;
            all.checked_add(self.start)?.checked_add(self.tail_bytes)
        };
        let extent = u64::from(self.extent_records).checked_mul(self.record_bytes);
        let extent = extent.and_then(|all| all.checked_add(self.tail_bytes));
        let is_read = extent.is_some_and(|all| all <= super::EXTENT_BYTES_MAX);
        self.record_bytes > 0
            && self.extent_records > 0
            && is_read
            && (self.records == 0 || end().is_some_and(|end| end <= bytes))
    }

    /// Returns the extent that contains a record and the record's number there, or `None` past the last record.
    #[must_use]
    pub fn locate(&self, record: u64) -> Option<(Extent, u32)> {
        if record >= self.records {
            return None;
        }
        let each = u64::from(self.extent_records);
        let first = record / each * each;
        let records = each.min(self.records - first);
        let extent = Extent {
            start: self.start + first * self.record_bytes,
            bytes: records * self.record_bytes + self.tail_bytes,
            records: records as u32,
        };
        Some((extent, (record - first) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_in_the_extent_that_holds_them() {
        let even = EvenLayout::new(10, 6, 2, 11, 25);
        assert_eq!(even.extent_records, 4);
        let mut seen = 0;
        while let Some((extent, number)) = even.locate(seen) {
            let record = extent.start + u64::from(number) * 6;
            assert_eq!(record, 10 + seen * 6);
            assert!(number < extent.records && extent.start + extent.bytes <= 10 + 66 + 2);
            seen += 1;
        }
        assert_eq!(seen, 11);
        assert_eq!(even.locate(10).unwrap().0.records, 3);
        assert!(even.fits(78) && !even.fits(77));
    }

    #[test]
    fn hostile_numbers_do_not_fit() {
        let sound = EvenLayout::new(0, 8, 0, 8, 64);
        assert!(sound.fits(64));
        for hostile in [
            EvenLayout {
                start: u64::MAX,
                ..sound
            },
            EvenLayout {
                record_bytes: u64::MAX,
                ..sound
            },
            EvenLayout {
                records: u64::MAX,
                ..sound
            },
            EvenLayout {
                record_bytes: 0,
                ..sound
            },
            EvenLayout {
                extent_records: 0,
                ..sound
            },
            EvenLayout {
                tail_bytes: u64::MAX,
                ..sound
            },
            EvenLayout {
                extent_records: u32::MAX,
                ..sound
            },
        ] {
            assert!(!hostile.fits(64), "{hostile:?}");
        }
    }
}
