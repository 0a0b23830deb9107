//! [`Extent`]: a place in a file; [`Even`]: many of them that follow from a few numbers.

/// Bytes of a file that are read and taken apart together: one record, or some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Count of bytes, at most [`super::EXTENT_BYTES_MAX`].
    pub bytes: u64,
    /// Count of records; at least one.
    pub records: u32,
}

/// Records of one length without anything between them, cut into extents of equally many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Even {
    /// First byte of the first record.
    pub start: u64,
    /// From one record to the next; at least one.
    pub record_bytes: u64,
    /// Bytes behind the last record of an extent that belong to it, too: the next token of a text.
    pub tail_bytes: u64,
    /// Count of records.
    pub records: u64,
    /// Records of an extent; the last one may have fewer. At least one.
    pub extent_records: u32,
}

impl Even {
    /// Such records in extents of about `extent_bytes` bytes.
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

    /// Whether its numbers can be those of a file of `bytes` bytes, and its extents can be read.
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

    /// The extent in which a record lies, and its number there; `None` behind the last record.
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
        let even = Even::new(10, 6, 2, 11, 25);
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
        let sound = Even::new(0, 8, 0, 8, 64);
        assert!(sound.fits(64));
        for hostile in [
            Even {
                start: u64::MAX,
                ..sound
            },
            Even {
                record_bytes: u64::MAX,
                ..sound
            },
            Even {
                records: u64::MAX,
                ..sound
            },
            Even {
                record_bytes: 0,
                ..sound
            },
            Even {
                extent_records: 0,
                ..sound
            },
            Even {
                tail_bytes: u64::MAX,
                ..sound
            },
            Even {
                extent_records: u32::MAX,
                ..sound
            },
        ] {
            assert!(!hostile.fits(64), "{hostile:?}");
        }
    }
}
