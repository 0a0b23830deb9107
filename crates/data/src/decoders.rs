//! The parsers of untrusted data files, for fuzzing: each takes bytes and returns an error or nothing.

use std::error::Error;
use std::sync::Arc;

use ronde_store::StoredObject;

use crate::error::DataError;
use crate::format::object::InMemory;
use crate::format::{
    CsvLines, FieldSelection, Format, Npy, Npz, ScanItem, SharedBytes, TfRecord, WebDataset,
};
use crate::index::file_index::FileIndex;

/// A parser of untrusted bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FuzzedFormat {
    /// A TFRecord file.
    TfRecord,
    /// A tar archive.
    Tar,
    /// A `.npy` file.
    Npy,
    /// A `.npz` file.
    Npz,
    /// Comma-separated values.
    Csv,
    /// The stored index of a file.
    Index,
}

const KEY: [u8; 32] = [7; 32];
/// Size of the file that an index describes.
const FILE_BYTES: u64 = 1 << 20;

impl FuzzedFormat {
    /// Reads bytes as a file: all of its records, as a data set does.
    ///
    /// # Errors
    /// Returns the reason why the bytes are refused, or the first unusable record.
    ///
    /// # Panics
    /// Panics for a bug.
    pub fn read(self, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        match self {
            Self::TfRecord => read(&TfRecord::new(FieldSelection::All), bytes),
            Self::Tar => read(&WebDataset::new(FieldSelection::All), bytes),
            Self::Npy => read(&Npy, bytes),
            Self::Npz => read(&Npz::new(FieldSelection::All), bytes),
            Self::Csv => read(&CsvLines::new(None, FieldSelection::All), bytes),
            Self::Index => {
                // With a valid hash, so that the content behind it is parsed, too.
                let content = bytes
                    .get(..bytes.len().saturating_sub(32))
                    .unwrap_or_default();
                let sealed = [content, blake3::hash(content).as_bytes()].concat();
                let index = FileIndex::decode(&sealed, &KEY, "file", FILE_BYTES);
                let index = index.ok_or("no index")?;
                let again = FileIndex::decode(&index.encode(&KEY), &KEY, "file", FILE_BYTES);
                assert_eq!(again, Some(index), "indexes round-trip");
                Ok(())
            }
        }
    }

    /// Returns inputs that must be accepted.
    #[must_use]
    pub fn samples(self) -> Vec<Vec<u8>> {
        match self {
            Self::TfRecord => vec![include_bytes!("../tests/vectors/tensorflow.tfrecord").to_vec()],
            Self::Tar => vec![include_bytes!("../tests/vectors/two.tar").to_vec()],
            Self::Npy => vec![include_bytes!("../tests/vectors/array.npy").to_vec()],
            Self::Npz => vec![
                include_bytes!("../tests/vectors/equal.npz").to_vec(),
                include_bytes!("../tests/vectors/equal_packed.npz").to_vec(),
            ],
            Self::Csv => vec![b"name,value\na,1\n\"b \"\"c\"\"\",2\n".to_vec()],
            Self::Index => {
                let mut index = FileIndex::new();
                for start in [0, 100, 1000] {
                    let extent = crate::format::Extent {
                        start,
                        bytes: 90,
                        records: 1 + (start / 100) as u32,
                    };
                    let _ = index.add(ScanItem::Extent(extent), FILE_BYTES);
                }
                vec![index.encode(&KEY)]
            }
        }
    }
}

/// Scans a file and reads the records.
fn read(format: &dyn Format, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
    let file: Arc<dyn StoredObject> = Arc::new(InMemory::new("memory", bytes));
    let open = format.open(file)?;
    let mut index = FileIndex::new();
    open.scan(&mut |found| {
        let added = index.add(found, bytes.len() as u64);
        added
            .ok_or_else(|| DataError::format("memory", "the file refers to records that exceed it"))
    })?;
    let mut record = 0;
    while let Some((extent, first)) = index.extents.locate(record) {
        assert_eq!(first, 0, "extents start with their first record");
        let piece = |range: std::ops::Range<u64>| {
            let part = bytes.get(range.start as usize..range.end as usize);
            part.map(|part| SharedBytes::from(part.to_vec()))
        };
        let pieces: Option<Vec<SharedBytes>> =
            open.ranges(&extent).into_iter().map(piece).collect();
        let records = open.parse(&extent, pieces.ok_or("a range exceeds the file")?);
        let records = records?;
        for number in 0..extent.records {
            drop(records.record(number)?);
        }
        record += u64::from(extent.records);
    }
    match index.bad.first() {
        Some(bad) => Err(bad.to_string().into()),
        None => Ok(()),
    }
}
