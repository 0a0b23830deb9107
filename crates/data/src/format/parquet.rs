//! [`Parquet`]: tables whose row groups are read separately, and only their requested columns.
//!
//! A row group is an extent; its requested columns are decoded at once (at most 1 GiB). Columns are named by their path,
//! such as `label` or `image.bytes`. Paths of lists omit the levels that the format inserts (`tags.list.element` is
//! `tags`), and the numbers of nested lists are concatenated. Dictionaries are resolved. A null is an absent field of the
//! record; a null in a list makes the record bad. Supported compressions are snappy, zstd, lz4 and gzip.
//!
//! The content hash covers the footer, which contains offsets, lengths, numbers of values and statistics of all columns,
//! and the length of the file; not the bytes of the columns.
//!
//! Source: the Apache Parquet format, through the `parquet` crate.

mod column;
mod group;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use ronde_store::StoredObject;

use super::tfrecord::changed;
use super::{
    EXTENT_BYTES_MAX, Extent, FieldSelection, Format, RECORD_BYTES_MAX, RecordFile, Records,
    ScanItem, SharedBytes,
};
use crate::DataError;
use group::RowGroup;

const MAGIC: &[u8; 4] = b"PAR1";
/// Size of the footer's length and the magic number.
const TAIL_BYTES: u64 = 8;
/// Size of the first read, which usually contains the footer.
const FIRST_READ: u64 = 64 << 10;
/// The largest size of a footer, in bytes.
const FOOTER_MAX: u64 = 256 << 20;

/// The format of Parquet tables.
#[derive(Debug, Clone, Default)]
pub struct Parquet {
    wanted: Arc<FieldSelection>,
}

impl Parquet {
    /// Creates the format for the columns in `wanted`.
    #[must_use]
    pub fn new(wanted: FieldSelection) -> Self {
        Self {
            wanted: Arc::new(wanted),
        }
    }
}

fn refused(file: &dyn StoredObject, problem: impl Into<String>) -> DataError {
    DataError::Format {
        file: file.location().to_owned(),
        problem: problem.into(),
    }
}

impl Format for Parquet {
    fn identity(&self) -> String {
        "parquet version 1".to_owned()
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let footer = footer(&*file)?;
        let metadata = caught(|| ParquetMetaDataReader::decode_metadata(&footer));
        let metadata = metadata
            .map_err(|problem| refused(&*file, format!("the footer is damaged: {problem}")))?;
        let hash = blake3::Hasher::new_derive_key("ronde parquet file, version 1")
            .update(&file.bytes().to_le_bytes())
            .update(&footer)
            .finalize();
        let names = names(&metadata);
        let columns = (0..names.len()).filter(|&column| self.wanted.has(&names[column]));
        let columns: Vec<usize> = columns
            .filter(|&column| column::is_read(&metadata, column))
            .collect();
        let mut groups = BTreeMap::new();
        for (number, group) in metadata.row_groups().iter().enumerate() {
            if group.num_rows() > 0 {
                let extent = extent(group, file.bytes()).map_err(|problem| {
                    refused(&*file, format!("cannot read row group {number}: {problem}"))
                })?;
                let bytes: u64 = columns
                    .iter()
                    .map(|&column| uncompressed(group, column))
                    .sum();
                if bytes > RECORD_BYTES_MAX {
                    let problem = format!(
                        "row group {number} has {bytes} bytes in the requested columns, which are decoded at once; the limit is \
                         {RECORD_BYTES_MAX}: write smaller row groups"
                    );
                    return Err(refused(&*file, problem));
                }
                groups.insert(extent.start, (number, extent));
            }
        }
        Ok(Box::new(ParquetFile {
            file,
            table: Arc::new(TableSchema {
                metadata,
                names,
                columns,
            }),
            groups,
            hash: *hash.as_bytes(),
        }))
    }
}

fn uncompressed(group: &RowGroupMetaData, column: usize) -> u64 {
    u64::try_from(group.column(column).uncompressed_size()).unwrap_or(u64::MAX / 4)
}

/// Runs code that parses untrusted bytes; a panic in it is reported as a problem of these bytes.
pub(super) fn caught<T>(
    run: impl FnOnce() -> Result<T, parquet::errors::ParquetError>,
) -> Result<T, String> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("the decoder panicked on damaged bytes".to_owned()),
    }
}

/// Returns the bytes of a file's footer.
fn footer(file: &dyn StoredObject) -> Result<Vec<u8>, DataError> {
    let mut tail = vec![0; file.bytes().min(FIRST_READ) as usize];
    file.read_at(file.bytes() - tail.len() as u64, &mut tail)?;
    let (before, last) = tail
        .split_last_chunk::<{ TAIL_BYTES as usize }>()
        .ok_or_else(|| refused(file, "too short for a Parquet file"))?;
    let &[a, b, c, d, ref magic @ ..] = last;
    match magic {
        magic if magic == MAGIC => {}
        b"PARE" => return Err(refused(file, "encrypted Parquet files are not supported")),
        _ => {
            return Err(refused(
                file,
                "no Parquet magic number at the end of the file; it may be cut off",
            ));
        }
    }
    let length = u64::from(u32::from_le_bytes([a, b, c, d]));
    if length > FOOTER_MAX || length + TAIL_BYTES > file.bytes() {
        return Err(refused(
            file,
            format!("invalid footer length of {length} bytes"),
        ));
    }
    if let Some(start) = (before.len() as u64).checked_sub(length) {
        return Ok(before[start as usize..].to_vec());
    }
    let mut footer = vec![0; length as usize];
    file.read_at(file.bytes() - TAIL_BYTES - length, &mut footer)?;
    Ok(footer)
}

/// Returns the names of all columns: their paths without the levels that the format inserts into lists.
fn names(metadata: &ParquetMetaData) -> Vec<String> {
    let schema = metadata.file_metadata().schema_descr();
    let name = |column: &parquet::schema::types::ColumnDescPtr| {
        let parts = column.path().parts();
        let mut shown: Vec<&str> = Vec::new();
        let mut at = 0;
        while at < parts.len() {
            let pair = (parts[at].as_str(), parts.get(at + 1).map(String::as_str));
            let is_list = column.max_rep_level() > 0 && at > 0;
            match pair {
                ("list", Some("element" | "item")) | ("bag", Some("array_element" | "array"))
                    if is_list =>
                {
                    at += 2;
                }
                (part, _) => {
                    shown.push(part);
                    at += 1;
                }
            }
        }
        shown.join(".")
    };
    schema.columns().iter().map(name).collect()
}

/// Returns the extent of all columns of a row group.
fn extent(group: &RowGroupMetaData, file_bytes: u64) -> Result<Extent, String> {
    let (mut start, mut end) = (u64::MAX, 0);
    for number in 0..group.num_columns() {
        let range = range(group, number)?;
        start = start.min(range.start);
        end = end.max(range.end);
    }
    let records = u32::try_from(group.num_rows()).map_err(|_| "it has too many rows")?;
    let bytes = end.saturating_sub(start);
    match bytes {
        0 => Err("it has no columns".to_owned()),
        _ if end > file_bytes => Err("it exceeds the end of the file".to_owned()),
        bytes if bytes > EXTENT_BYTES_MAX => Err(format!(
            "it has {bytes} bytes; the limit is {EXTENT_BYTES_MAX}"
        )),
        bytes => Ok(Extent {
            start,
            bytes,
            records,
        }),
    }
}

/// Returns the byte range of a column in a row group.
fn range(group: &RowGroupMetaData, column: usize) -> Result<Range<u64>, String> {
    // `byte_range` panics on negative numbers.
    let (start, length) = caught(|| Ok(group.column(column).byte_range()))?;
    let end = start
        .checked_add(length)
        .ok_or("the end of a column overflows")?;
    Ok(start..end)
}

/// The contents of a footer and the requested columns.
pub(super) struct TableSchema {
    pub(super) metadata: ParquetMetaData,
    pub(super) names: Vec<String>,
    pub(super) columns: Vec<usize>,
}

struct ParquetFile {
    file: Arc<dyn StoredObject>,
    table: Arc<TableSchema>,
    /// The row groups by their offsets.
    groups: BTreeMap<u64, (usize, Extent)>,
    hash: [u8; 32],
}

impl ParquetFile {
    /// Returns the requested columns of a row group in the order of their offsets.
    fn column_ranges(&self, extent: &Extent) -> Vec<(usize, Range<u64>)> {
        let Some((number, _)) = self.groups.get(&extent.start) else {
            return Vec::new();
        };
        let group = self.table.metadata.row_group(*number);
        let columns = self.table.columns.iter();
        let mut column_ranges: Vec<_> = columns
            .filter_map(|&column| Some((column, range(group, column).ok()?)))
            .collect();
        column_ranges.sort_by_key(|(_, range)| range.start);
        column_ranges
    }
}

impl RecordFile for ParquetFile {
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        for (_, extent) in self.groups.values() {
            found(ScanItem::Extent(*extent))?;
        }
        Ok(self.hash)
    }

    fn ranges(&self, extent: &Extent) -> Vec<Range<u64>> {
        self.column_ranges(extent)
            .into_iter()
            .map(|(_, range)| range)
            .collect()
    }

    fn parse(
        &self,
        extent: &Extent,
        pieces: Vec<SharedBytes>,
    ) -> Result<Box<dyn Records>, DataError> {
        let location = self.file.location();
        let other = |problem: &str| changed(location, extent, problem);
        let (number, existing) = self
            .groups
            .get(&extent.start)
            .ok_or_else(|| other("it has no such row group"))?;
        if existing != extent {
            return Err(other("a row group has different rows"));
        }
        let column_ranges = self.column_ranges(extent);
        let fits = |((_, range), piece): (&(usize, Range<u64>), &SharedBytes)| {
            piece.as_ref().len() as u64 == range.end - range.start
        };
        if pieces.len() != column_ranges.len() || !column_ranges.iter().zip(&pieces).all(fits) {
            return Err(other("the bytes passed do not match the columns"));
        }
        let group = RowGroup::decode(
            location,
            &self.table,
            *number,
            column_ranges.into_iter().zip(pieces).collect(),
        );
        Ok(Box::new(group.map_err(|problem| super::BadRecord {
            file: location.to_owned(),
            offset: extent.start,
            record: None,
            problem,
        })?))
    }
}

#[cfg(test)]
mod tests;
