//! [`RowGroup`]: the requested columns of a row group, decoded.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parquet::column::reader::get_column_reader;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;

use super::column::ParquetColumn;
use super::column_type::ColumnType;
use super::error::{TableError, caught};
use crate::error::DataError;
use crate::format::{BadRecord, Record, Records, SharedBytes};

/// The contents of a footer and the requested columns.
pub(super) struct TableSchema {
    pub(super) metadata: ParquetMetaData,
    pub(super) names: Vec<String>,
    pub(super) columns: Vec<usize>,
}

/// The bytes of a column with their offset in the file.
struct ColumnBytes {
    start: u64,
    bytes: Bytes,
}

impl Length for ColumnBytes {
    fn len(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

impl ChunkReader for ColumnBytes {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        let at = start
            .checked_sub(self.start)
            .and_then(|at| usize::try_from(at).ok());
        match at.filter(|&at| at <= self.bytes.len()) {
            Some(at) => Ok(self.bytes.slice(at..).reader()),
            None => Err(ParquetError::EOF("a page is outside its column".to_owned())),
        }
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let mut rest = self.get_read(start)?.into_inner();
        match length <= rest.len() {
            true => Ok(rest.split_to(length)),
            false => Err(ParquetError::EOF("a page exceeds its column".to_owned())),
        }
    }
}

/// The requested columns of a row group.
pub(super) struct RowGroup {
    file: String,
    start: u64,
    rows: u32,
    columns: Vec<ParquetColumn>,
}

impl RowGroup {
    /// Decodes columns from their bytes.
    pub(super) fn decode(
        file: &str,
        table: &TableSchema,
        number: usize,
        ranges: Vec<((usize, Range<u64>), SharedBytes)>,
    ) -> Result<Self, TableError> {
        let group = table.metadata.row_group(number);
        let rows = u32::try_from(group.num_rows()).map_err(|_| TableError::TooManyRows)?;
        let start = ranges.first().map_or(0, |((_, range), _)| range.start);
        let mut columns = Vec::new();
        for ((column, range), piece) in ranges {
            let name = &table.names[column];
            let kind = ColumnType::of(table.metadata.file_metadata().schema_descr(), column)?;
            let chunk = Arc::new(ColumnBytes {
                start: range.start,
                bytes: Bytes::from_owner(piece),
            });
            let decoded = caught(|| {
                let chunk_metadata = group.column(column);
                let pages = SerializedPageReader::new(chunk, chunk_metadata, rows as usize, None)?;
                let descr = chunk_metadata.column_descr_ptr();
                let reader = get_column_reader(descr.clone(), Box::new(pages));
                ParquetColumn::read(name, &descr, kind, reader, rows as usize)
            });
            let decoded = decoded.map_err(|cause| TableError::Decode {
                name: name.clone(),
                cause: Box::new(cause),
            })?;
            columns.push((column, decoded));
        }
        // In the order of the schema, not of their offsets.
        columns.sort_by_key(|(column, _)| *column);
        Ok(Self {
            file: file.to_owned(),
            start,
            rows,
            columns: columns.into_iter().map(|(_, column)| column).collect(),
        })
    }
}

impl Records for RowGroup {
    fn record(&self, number: u32) -> Result<Record<'_>, DataError> {
        let bad = |problem: TableError| {
            BadRecord::new(
                self.file.clone(),
                self.start,
                None,
                format_args!("row {number} of the row group: {problem}"),
            )
        };
        if number >= self.rows {
            return Err(bad(TableError::NoSuchRow).into());
        }
        let mut record = Record::default();
        for column in &self.columns {
            let value = column.value(number as usize).map_err(&bad)?;
            let field = value.map(|value| (column.name.as_str().into(), value));
            record.fields.extend(field);
        }
        Ok(record)
    }
}
