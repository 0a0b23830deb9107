//! [`FileIndex`]: the result of scanning one file, and its encoding.
//!
//! Encoding: `RONDEIDX`, a version (4 bytes), the key (32 bytes), the content hash (32 bytes), then variable-length
//! integers of 7 bits per byte: number and size of the bad records, the listed ones, the extents; finally the blake3 hash of all
//! preceding bytes.

use super::BAD_LISTED_MAX;
use super::extents::{ExtentList, Extents};
use crate::format::{BadRecord, EXTENT_BYTES_MAX, EvenLayout, Extent, ScanItem};

const MAGIC: &[u8] = b"RONDEIDX";
/// Version 3: archives that follow the end mark of a tar file are read.
const VERSION: u32 = 3;
const HASH_BYTES: usize = 32;
const EVEN: u64 = 1;
const LISTED: u64 = 2;
/// The largest size of an error text, in bytes.
const PROBLEM_BYTES_MAX: usize = 1 << 10;

/// The result of scanning one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileIndex {
    pub(crate) hash: [u8; HASH_BYTES],
    pub(crate) extents: Extents,
    /// The first bad records.
    pub(crate) bad: Vec<BadRecord>,
    pub(crate) bad_count: u64,
    /// The number of bytes of the file that cannot be used because of bad records.
    pub(crate) bad_bytes: u64,
}

impl FileIndex {
    pub(crate) fn new() -> Self {
        Self {
            hash: [0; HASH_BYTES],
            extents: Extents::Listed(ExtentList::default()),
            bad: Vec::new(),
            bad_count: 0,
            bad_bytes: 0,
        }
    }

    /// Adds an item found in a file of `bytes` bytes; `None` if it is impossible.
    pub(crate) fn add(&mut self, found: ScanItem, bytes: u64) -> Option<()> {
        match found {
            ScanItem::Extent(extent) => {
                let Extents::Listed(listed) = &mut self.extents else {
                    return None;
                };
                (listed.push(&extent) && listed.end() <= bytes).then_some(())
            }
            ScanItem::Even(even) => {
                let is_first = self.extents == Extents::Listed(ExtentList::default());
                self.extents = Extents::Even(even);
                (is_first && even.fits(bytes)).then_some(())
            }
            ScanItem::Progress => Some(()),
            ScanItem::Bad {
                record: mut bad,
                bytes: lost,
            } => {
                if self.bad.len() < BAD_LISTED_MAX {
                    bad.problem = bad.problem.chars().take(PROBLEM_BYTES_MAX / 4).collect();
                    self.bad.push(bad);
                }
                self.bad_count += 1;
                self.bad_bytes = self.bad_bytes.saturating_add(lost).min(bytes);
                Some(())
            }
        }
    }

    /// Encodes the index under a key.
    pub(crate) fn encode(&self, key: &[u8; HASH_BYTES]) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(&self.hash);
        number(&mut out, self.bad_count);
        number(&mut out, self.bad_bytes);
        number(&mut out, self.bad.len() as u64);
        for bad in &self.bad {
            number(&mut out, bad.offset);
            number(
                &mut out,
                bad.record.map_or(0, |record| record.saturating_add(1)),
            );
            number(&mut out, bad.problem.len() as u64);
            out.extend_from_slice(bad.problem.as_bytes());
        }
        match &self.extents {
            Extents::Even(even) => {
                number(&mut out, EVEN);
                let records = u64::from(even.extent_records);
                for value in [
                    even.start,
                    even.record_bytes,
                    even.tail_bytes,
                    even.records,
                    records,
                ] {
                    number(&mut out, value);
                }
            }
            Extents::Listed(listed) => {
                number(&mut out, LISTED);
                number(&mut out, listed.len() as u64);
                let mut end = 0;
                for extent in (0..listed.len()).map(|n| listed.extent(n)) {
                    number(&mut out, extent.start - end);
                    number(&mut out, extent.bytes);
                    number(&mut out, u64::from(extent.records));
                    end = extent.start + extent.bytes;
                }
            }
        }
        let hash = blake3::hash(&out);
        out.extend_from_slice(hash.as_bytes());
        out
    }

    /// Decodes the index of a file at `location` with `file_bytes` bytes; `None` if it is damaged, of another version or
    /// of another file. Memory: at most seven times the input.
    pub(crate) fn decode(
        bytes: &[u8],
        key: &[u8; HASH_BYTES],
        location: &str,
        file_bytes: u64,
    ) -> Option<Self> {
        let (content, hash) = bytes.split_last_chunk::<HASH_BYTES>()?;
        let rest = content.strip_prefix(MAGIC)?;
        let rest = rest.strip_prefix(&VERSION.to_le_bytes()[..])?;
        let rest = rest.strip_prefix(&key[..])?;
        if blake3::hash(content).as_bytes() != hash {
            return None;
        }
        let (content_hash, rest) = rest.split_first_chunk::<HASH_BYTES>()?;
        let mut reader = IndexReader(rest);
        let mut index = Self {
            hash: *content_hash,
            bad_count: reader.number()?,
            bad_bytes: reader.number()?,
            ..Self::new()
        };
        let listed = reader.number()?;
        if listed > (BAD_LISTED_MAX as u64).min(index.bad_count) {
            return None;
        }
        for _ in 0..listed {
            let (offset, record) = (reader.number()?, reader.number()?);
            let problem = reader.text()?;
            index.bad.push(BadRecord::new(
                location,
                offset,
                record.checked_sub(1),
                problem,
            ));
        }
        match reader.number()? {
            EVEN => index.add(ScanItem::Even(reader.even()?), file_bytes)?,
            LISTED => reader.listed(&mut index, file_bytes)?,
            _ => return None,
        }
        reader.0.is_empty().then_some(index)
    }
}

/// Appends an integer, 7 bits per byte.
fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

struct IndexReader<'a>(&'a [u8]);

impl IndexReader<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut value = 0_u64;
        for at in 0..10 {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let part = u64::from(byte & 0x7f);
            value |= part
                .checked_shl(7 * at)
                .filter(|&shifted| shifted >> (7 * at) == part)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let bytes = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        (bytes <= PROBLEM_BYTES_MAX).then(|| String::from_utf8_lossy(text).into_owned())
    }

    fn even(&mut self) -> Option<EvenLayout> {
        Some(EvenLayout {
            start: self.number()?,
            record_bytes: self.number()?,
            tail_bytes: self.number()?,
            records: self.number()?,
            extent_records: self.number()?.try_into().ok()?,
        })
    }

    fn listed(&mut self, index: &mut FileIndex, file_bytes: u64) -> Option<()> {
        let mut end = 0_u64;
        for _ in 0..self.number()? {
            let extent = Extent {
                start: end.checked_add(self.number()?)?,
                bytes: self.number()?,
                records: self.number()?.try_into().ok()?,
            };
            if extent.bytes > EXTENT_BYTES_MAX {
                return None;
            }
            end = extent.start.checked_add(extent.bytes)?;
            index.add(ScanItem::Extent(extent), file_bytes)?;
        }
        if let Extents::Listed(listed) = &mut index.extents {
            listed.close();
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<FileIndex> {
        let bad = |record| BadRecord {
            file: "f".into(),
            offset: 3,
            record,
            problem: "é".into(),
        };
        let mut listed = FileIndex::new();
        for (start, records) in [(0, 1), (20, 3), (31, 1)] {
            let extent = Extent {
                start,
                bytes: 10,
                records,
            };
            listed.add(ScanItem::Extent(extent), 100).unwrap();
        }
        listed.hash = [7; 32];
        let item = |record| ScanItem::Bad {
            record: bad(record),
            bytes: 7,
        };
        listed.add(item(Some(0)), 100).unwrap();
        listed.add(item(None), 100).unwrap();
        assert_eq!((listed.bad_count, listed.bad_bytes), (2, 14));
        let mut even = FileIndex::new();
        even.add(ScanItem::Even(EvenLayout::new(1, 2, 3, 4, 5)), 100)
            .unwrap();
        vec![FileIndex::new(), listed, even]
    }

    #[test]
    fn indexes_round_trip() {
        for index in samples() {
            let bytes = index.encode(&[9; 32]);
            assert_eq!(FileIndex::decode(&bytes, &[9; 32], "f", 100), Some(index));
            assert_eq!(FileIndex::decode(&bytes, &[8; 32], "f", 100), None);
        }
    }

    #[test]
    fn damaged_and_hostile_indexes_are_refused() {
        for index in samples() {
            let bytes = index.encode(&[9; 32]);
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 4;
                assert_eq!(
                    FileIndex::decode(&damaged, &[9; 32], "f", 100),
                    None,
                    "byte {at}"
                );
                assert_eq!(FileIndex::decode(&bytes[..at], &[9; 32], "f", 100), None);
            }
            // With a valid hash, too: any result but a panic or an extent outside the file is fine.
            let content = &bytes[..bytes.len() - HASH_BYTES];
            for at in 76..content.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut hostile = content.to_vec();
                    hostile[at] = value;
                    let hash = blake3::hash(&hostile);
                    hostile.extend_from_slice(hash.as_bytes());
                    let read = FileIndex::decode(&hostile, &[9; 32], "f", 100);
                    if let Some(Extents::Listed(listed)) = read.map(|index| index.extents) {
                        assert!(listed.end() <= 100);
                    }
                }
            }
        }
    }
}
