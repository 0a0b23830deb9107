//! [`TableError`]: why a Parquet table cannot be read.

use parquet::errors::ParquetError;

use super::super::{EXTENT_BYTES_MAX, RECORD_BYTES_MAX};
use super::column_type::DIGITS_MAX;

/// The reason why a table cannot be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum TableError {
    #[error(transparent)]
    Parquet(#[from] ParquetError),
    /// The library panics on some damaged bytes.
    #[error("the decoder panicked on damaged bytes")]
    Panicked,
    #[error("{types} are not supported; store the column as integers or floats")]
    Convertible { types: &'static str },
    #[error("{types} are not supported")]
    Types { types: &'static str },
    #[error("the type {name} is not supported")]
    OtherType { name: String },
    #[error("the logical type {name} is not supported")]
    LogicalType { name: String },
    #[error(
        "decimals of {precision} digits, {scale} of them after the point, are not supported; the limit is {DIGITS_MAX} \
         digits"
    )]
    Decimal { precision: i32, scale: i32 },
    #[error("its path is not in the schema")]
    NotInSchema,
    #[error("cannot read column {name:?}: {cause}")]
    Column {
        name: String,
        cause: Box<TableError>,
    },
    #[error("cannot decode column {name:?}: {cause}")]
    Decode {
        name: String,
        cause: Box<TableError>,
    },
    #[error("two columns have the name {name:?}")]
    SameName { name: String },
    #[error(
        "column {name:?} is compressed by {compression}, which is not supported: use zstd, snappy, gzip or lz4"
    )]
    Compression {
        name: String,
        compression: &'static str,
    },
    #[error(
        "it has {bytes} bytes in the requested columns, which are decoded at once; the limit is {RECORD_BYTES_MAX}: write \
         smaller row groups"
    )]
    GroupBytes { bytes: u64 },
    #[error("it has {bytes} bytes; the limit is {EXTENT_BYTES_MAX}")]
    ExtentBytes { bytes: u64 },
    #[error("it has too many rows")]
    TooManyRows,
    #[error("it has no columns")]
    NoColumns,
    #[error("it exceeds the end of the file")]
    BeyondFile,
    #[error("the end of a column overflows")]
    ColumnEnd,
    #[error("no such row")]
    NoSuchRow,
    #[error("the list in column {name:?} has a null")]
    Null { name: String },
    #[error("the column is cut off")]
    ColumnCutOff,
}

/// Runs code that parses untrusted bytes; a panic in it is reported as a problem of these bytes.
pub(super) fn caught<T>(run: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, TableError> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
        Ok(result) => Ok(result?),
        Err(_) => Err(TableError::Panicked),
    }
}
