//! [`Parquet`]: tables whose row groups are read separately, and only their requested columns.
//!
//! A row group is an extent; its requested columns are decoded at once (at most 1 GiB). Columns are named by their path,
//! such as `label` or `image.bytes`. Paths of lists omit the levels that the format inserts (`tags.list.element` is
//! `tags`). Dictionaries are resolved. A null is an absent field of the
//! record; a null in a list makes the record bad. Supported compressions are snappy, zstd, lz4 and gzip.
//!
//! Integers, floats, booleans, strings, binary and UUIDs are supported, and decimals of up to 38 digits, which become
//! doubles. Requested columns of other types are refused by name, and so are nested lists, maps, encryption, brotli and
//! LZO.
//!
//! The content hash covers the footer, the length of the file, and the bytes of the requested columns.
//!
//! Source: the Apache Parquet format, through the `parquet` crate.

mod column;
mod column_type;
mod error;
mod footer;
mod group;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use column_type::ColumnType;
use error::{TableError, caught};
use footer::footer;
use group::{RowGroup, TableSchema};
use parquet::basic::Compression;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader, RowGroupMetaData};
use ronde_store::StoredObject;

use super::content::ContentHasher;
use super::record_file::changed;
use super::{
    EXTENT_BYTES_MAX, Extent, FieldSelection, Format, RECORD_BYTES_MAX, RecordFile, Records,
    ScanItem, SharedBytes,
};
use crate::error::DataError;

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

impl Format for Parquet {
    fn identity(&self) -> String {
        // The content hash covers the requested columns.
        match &*self.wanted {
            FieldSelection::All => "parquet version 2".to_owned(),
            FieldSelection::Fields(fields) => format!("parquet version 2, {:?}", fields.names()),
        }
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let footer = footer(&*file)?;
        let metadata = caught(|| ParquetMetaDataReader::decode_metadata(&footer));
        let metadata = metadata.map_err(|problem| {
            DataError::format(file.location(), format!("the footer is damaged: {problem}"))
        })?;
        let names = names(&metadata);
        let columns = self
            .columns(&metadata, &names)
            .map_err(|problem| DataError::format(file.location(), problem))?;
        let mut groups = BTreeMap::new();
        for (number, group) in metadata.row_groups().iter().enumerate() {
            if group.num_rows() > 0 {
                let extent = check_group(group, &names, &columns)
                    .and_then(|()| extent(group, file.bytes()))
                    .map_err(|problem| {
                        DataError::format(
                            file.location(),
                            format!("cannot read row group {number}: {problem}"),
                        )
                    })?;
                groups.insert(extent.start, (number, extent));
            }
        }
        Ok(Box::new(ParquetFile {
            file,
            footer,
            table: Arc::new(TableSchema {
                metadata,
                names,
                columns,
            }),
            groups,
        }))
    }
}

impl Parquet {
    /// Returns the requested columns. If all are requested, those of unsupported types are left out.
    fn columns(
        &self,
        metadata: &ParquetMetaData,
        names: &[String],
    ) -> Result<Vec<usize>, TableError> {
        let schema = metadata.file_metadata().schema_descr();
        let mut columns = Vec::new();
        for (column, name) in names.iter().enumerate() {
            if !self.wanted.has(name) {
                continue;
            }
            match (ColumnType::of(schema, column), &*self.wanted) {
                (Ok(_), _) => columns.push(column),
                (Err(_), FieldSelection::All) => {}
                (Err(cause), _) => {
                    return Err(TableError::Column {
                        name: name.clone(),
                        cause: Box::new(cause),
                    });
                }
            }
            if names[..column].contains(name) {
                return Err(TableError::SameName { name: name.clone() });
            }
        }
        Ok(columns)
    }
}

/// Refuses a row group whose requested columns are too large or compressed by an unsupported method.
fn check_group(
    group: &RowGroupMetaData,
    names: &[String],
    columns: &[usize],
) -> Result<(), TableError> {
    let mut bytes = 0_u64;
    for &column in columns {
        let compression = group.column(column).compression();
        if matches!(compression, Compression::BROTLI(_) | Compression::LZO) {
            let compression = match compression {
                Compression::LZO => "LZO",
                _ => "brotli",
            };
            return Err(TableError::Compression {
                name: names[column].clone(),
                compression,
            });
        }
        bytes = bytes.saturating_add(uncompressed(group, column));
    }
    match bytes <= RECORD_BYTES_MAX {
        true => Ok(()),
        false => Err(TableError::GroupBytes { bytes }),
    }
}

fn uncompressed(group: &RowGroupMetaData, column: usize) -> u64 {
    u64::try_from(group.column(column).uncompressed_size()).unwrap_or(u64::MAX)
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
fn extent(group: &RowGroupMetaData, file_bytes: u64) -> Result<Extent, TableError> {
    let (mut start, mut end) = (u64::MAX, 0);
    for number in 0..group.num_columns() {
        let range = range(group, number)?;
        start = start.min(range.start);
        end = end.max(range.end);
    }
    let records = u32::try_from(group.num_rows()).map_err(|_| TableError::TooManyRows)?;
    let bytes = end.saturating_sub(start);
    match bytes {
        0 => Err(TableError::NoColumns),
        _ if end > file_bytes => Err(TableError::BeyondFile),
        bytes if bytes > EXTENT_BYTES_MAX => Err(TableError::ExtentBytes { bytes }),
        bytes => Ok(Extent {
            start,
            bytes,
            records,
        }),
    }
}

/// Returns the byte range of a column in a row group.
fn range(group: &RowGroupMetaData, column: usize) -> Result<Range<u64>, TableError> {
    // `byte_range` panics on negative numbers.
    let (start, length) = caught(|| Ok(group.column(column).byte_range()))?;
    let end = start.checked_add(length).ok_or(TableError::ColumnEnd)?;
    Ok(start..end)
}

struct ParquetFile {
    file: Arc<dyn StoredObject>,
    table: Arc<TableSchema>,
    /// The row groups by their offsets.
    groups: BTreeMap<u64, (usize, Extent)>,
    footer: Vec<u8>,
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
        let mut hasher = ContentHasher::new(&*self.file, "ronde parquet content, version 2");
        hasher.add(&self.file.bytes().to_le_bytes());
        hasher.add(&self.footer);
        for (_, extent) in self.groups.values() {
            for (_, range) in self.column_ranges(extent) {
                hasher.add_range(range, found)?;
            }
            found(ScanItem::Extent(*extent))?;
        }
        Ok(hasher.finish())
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
        Ok(Box::new(group.map_err(|problem| {
            super::BadRecord::new(location, extent.start, None, problem)
        })?))
    }
}

#[cfg(test)]
mod tests;
