//! [`ArrayRows`]: consecutive rows of one or several arrays.

use super::super::record_file::changed;
use super::super::{BadRecord, Extent, NumberType, Record, Records, SharedBytes, Value};
use super::error::NpyError;
use super::header::NpyHeader;
use crate::error::DataError;

/// Approximate size of an extent, in bytes.
pub(super) const EXTENT_BYTES: u64 = 64 << 10;

/// An array whose rows are the values of a field.
#[derive(Debug, Clone)]
pub(super) struct NpyColumn {
    pub(super) name: String,
    pub(super) dtype: NumberType,
    pub(super) rows: u64,
    pub(super) row_bytes: u64,
    /// Offset of the first row, if the array is uncompressed.
    pub(super) start: u64,
}

impl NpyColumn {
    /// Creates a column; returns an error for an array without a first axis or with empty rows.
    pub(super) fn new(name: &str, header: &NpyHeader, start: u64) -> Result<Self, NpyError> {
        let Some((&rows, rest)) = header.shape.split_first() else {
            return Err(NpyError::SingleNumber {
                name: name.to_owned(),
            });
        };
        let row = rest
            .iter()
            .try_fold(header.dtype.bytes() as u64, |bytes, &axis| {
                bytes.checked_mul(axis)
            });
        match row.filter(|&bytes| bytes > 0) {
            Some(row_bytes) => Ok(Self {
                name: name.to_owned(),
                dtype: header.dtype,
                rows,
                row_bytes,
                start,
            }),
            None => Err(NpyError::EmptyRows {
                name: name.to_owned(),
                shape: header.shape.clone(),
            }),
        }
    }
}

/// Consecutive rows of some arrays.
pub(super) struct ArrayRows {
    file: String,
    start: u64,
    columns: Vec<(NpyColumn, SharedBytes)>,
}

impl ArrayRows {
    /// One piece per column.
    pub(super) fn new(
        file: &str,
        extent: &Extent,
        columns: Vec<NpyColumn>,
        pieces: Vec<SharedBytes>,
    ) -> Result<Self, DataError> {
        let is_all = columns.len() == pieces.len()
            && columns.iter().zip(&pieces).all(|(column, piece)| {
                let bytes = column.row_bytes.checked_mul(u64::from(extent.records));
                bytes == Some(piece.as_ref().len() as u64)
            });
        if !is_all {
            return Err(changed(file, extent, "its arrays have other lengths"));
        }
        Ok(Self {
            file: file.to_owned(),
            start: extent.start,
            columns: columns.into_iter().zip(pieces).collect(),
        })
    }
}

impl Records for ArrayRows {
    fn record(&self, number: u32) -> Result<Record<'_>, DataError> {
        let mut fields = Vec::with_capacity(self.columns.len());
        for (column, piece) in &self.columns {
            let bytes = column.row_bytes as usize;
            let start = number as usize * bytes;
            let row = piece.as_ref().get(start..start + bytes);
            let row = row.ok_or_else(|| {
                BadRecord::new(
                    self.file.clone(),
                    self.start,
                    None,
                    format_args!("the extent has no row {number}"),
                )
            })?;
            let value = Value::Numbers {
                dtype: column.dtype,
                bytes: row.into(),
            };
            fields.push((column.name.as_str().into(), value));
        }
        Ok(Record { fields })
    }
}
