//! [`NpyError`]: why an array of numpy cannot be read.

use super::super::RECORD_BYTES_MAX;
use super::header::{AXES_MAX, HEADER_BYTES_MAX};

/// The reason why an array of numpy cannot be read.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NpyError {
    /// The file does not have the magic number.
    #[error("not a .npy file")]
    NotNpy,
    /// The file ends inside the header.
    #[error("the header is cut off")]
    HeaderCutOff,
    /// The version is not supported.
    #[error("unsupported version {major} of the .npy format")]
    Version {
        /// The major version.
        major: u8,
    },
    /// The header is too long.
    #[error("the header has {bytes} bytes; the limit is {HEADER_BYTES_MAX}")]
    HeaderLength {
        /// Its length.
        bytes: usize,
    },
    /// The header is not text.
    #[error("the header is not UTF-8")]
    HeaderEncoding,
    /// The header has another key.
    #[error("the header has an unknown key {key:?}")]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A sign is missing in the header.
    #[error("the header lacks {sign:?} where it is expected")]
    MissingSign {
        /// The sign.
        sign: char,
    },
    /// A string of the header has no end.
    #[error("the header has an unterminated string")]
    Unterminated,
    /// A required key is missing in the header.
    #[error("the header lacks descr, fortran_order or shape")]
    MissingKey,
    /// The array is in column-major order.
    #[error("column-major (Fortran) order is not supported: save numpy.ascontiguousarray of it")]
    ColumnMajor,
    /// The elements are structures.
    #[error("structured arrays are not supported, only plain ones")]
    Structured,
    /// The type of the elements is not supported.
    #[error(
        "unsupported type {descr:?}: only little-endian integers, floats and booleans are supported"
    )]
    Type {
        /// Its description.
        descr: String,
    },
    /// The shape is not a list of numbers.
    #[error("the shape is not a list of numbers")]
    Shape,
    /// The array has too many axes.
    #[error("the array has more than {AXES_MAX} axes")]
    TooManyAxes,
    /// The number of elements overflows.
    #[error("the shape {shape:?} has too many elements")]
    TooManyElements {
        /// The shape.
        shape: Vec<u64>,
    },
    /// The length of the file is not that of the shape.
    #[error("an array of shape {shape:?} ({dtype}) does not match its {bytes} bytes")]
    Length {
        /// The shape.
        shape: Vec<u64>,
        /// The type of the elements.
        dtype: &'static str,
        /// The length of the file.
        bytes: u64,
    },
    /// The file ends inside the numbers.
    #[error("the array ends before its last number")]
    NumbersCutOff,
    /// The array has no axis.
    #[error("array {name:?} is a single number; its first axis must be the record")]
    SingleNumber {
        /// The name of the array.
        name: String,
    },
    /// The rows have no elements.
    #[error("the rows of array {name:?} with shape {shape:?} are empty")]
    EmptyRows {
        /// The name of the array.
        name: String,
        /// The shape.
        shape: Vec<u64>,
    },
    /// Two arrays of a file have different numbers of rows.
    #[error(
        "array {name:?} has {rows} rows, array {first:?} has {first_rows}: the numbers of rows must be equal, or request \
         only some arrays"
    )]
    RowCounts {
        /// The name of an array.
        name: String,
        /// Its rows.
        rows: u64,
        /// The name of the first array.
        first: String,
        /// Its rows.
        first_rows: u64,
    },
    /// The file ends inside an array.
    #[error("array {name:?} is cut off")]
    ArrayCutOff {
        /// The name of the array.
        name: String,
    },
    /// An array is too large to be unpacked.
    #[error(
        "array {name:?} has {bytes} bytes, which is too large to be unpacked: the limit is {RECORD_BYTES_MAX}"
    )]
    TooLarge {
        /// The name of the array.
        name: String,
        /// Its unpacked length.
        bytes: u64,
    },
    /// An array cannot be unpacked.
    #[error("cannot unpack array {name:?}: {cause}")]
    Unpack {
        /// The name of the array.
        name: String,
        /// The cause.
        cause: String,
    },
    /// An array does not have its checksum.
    #[error("array {name:?} is damaged: wrong CRC-32")]
    Checksum {
        /// The name of the array.
        name: String,
    },
}
