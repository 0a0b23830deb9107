//! Arrays as numpy stores them: `.npy` files whose first axis counts the records.
//!
//! Little-endian numbers and booleans, row-major; nothing else, and no Python objects.
//!
//! Source: `numpy/lib/format.py`, versions 1.0, 2.0 and 3.0.

mod header;

use std::borrow::Cow;

use super::NumberType;
pub(crate) use header::Header;

/// The numbers of a whole `.npy` file.
pub(crate) fn numbers(file: &[u8]) -> Result<(NumberType, Cow<'_, [u8]>), String> {
    let header = Header::read(file)?;
    let bytes = header.elements()?.checked_mul(header.dtype.bytes() as u64);
    let numbers = bytes
        .and_then(|bytes| usize::try_from(bytes).ok())
        .and_then(|bytes| file[header.bytes..].get(..bytes));
    let short = || "the array ends before its last number".to_owned();
    Ok((header.dtype, numbers.ok_or_else(short)?.into()))
}
