//! Arrays stored by numpy: [`Npy`], a file with one array, and [`Npz`], a file with several. The first axis is the record.
//!
//! Supported are little-endian numbers and booleans in row-major order; Python objects are not. The field of a `.npy`
//! file is `array`; the fields of a `.npz` file are the names of its arrays, which must have equal numbers of rows.
//! From `.npy` files and uncompressed arrays (`numpy.savez`) only the requested rows are read. A `.npz` file with
//! compressed arrays (`numpy.savez_compressed`) is one extent, which is unpacked at once (at most 1 GiB).
//!
//! A scan reads the whole file, or the requested arrays of a `.npz` file: the content hash covers all of their bytes, and
//! the CRC-32 of each array is verified.
//!
//! Sources: `numpy/lib/format.py`, versions 1.0, 2.0 and 3.0; PKWARE's APPNOTE 6.3.

mod header;
mod npz;
mod rows;
mod zip;

use std::borrow::Cow;
use std::sync::Arc;

use ronde_store::StoredObject;

use super::content::ContentHasher;
use super::{EvenLayout, Extent, Format, NumberType, RecordFile, Records, ScanItem, SharedBytes};
use crate::error::DataError;
pub(crate) use header::{HEADER_BYTES_MAX, NpyHeader};
pub use npz::Npz;
use rows::{ArrayRows, NpyColumn};

/// Approximate size of an extent, in bytes.
const EXTENT_BYTES: u64 = 64 << 10;
/// The only field of a `.npy` file.
const FIELD: &str = "array";
/// The largest number of bytes before a header's text.
const BEFORE_HEADER: usize = 12;

/// Returns the numbers of a complete `.npy` file.
pub(crate) fn numbers(file: &[u8]) -> Result<(NumberType, Cow<'_, [u8]>), String> {
    let header = NpyHeader::read(file)?;
    let bytes = header.elements()?.checked_mul(header.dtype.bytes() as u64);
    let numbers = bytes
        .and_then(|bytes| usize::try_from(bytes).ok())
        .and_then(|bytes| file[header.bytes..].get(..bytes));
    let short = || "the array ends before its last number".to_owned();
    Ok((header.dtype, numbers.ok_or_else(short)?.into()))
}

/// The format of files with one array.
#[derive(Debug, Clone, Copy, Default)]
pub struct Npy;

impl Format for Npy {
    fn identity(&self) -> String {
        "npy version 2".to_owned()
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let header = header_at(&*file, 0, file.bytes())?;
        Ok(Box::new(NpyFile { file, header }))
    }
}

/// Reads the header of an array that starts at `start` and occupies at most `bytes` bytes.
fn header_at(file: &dyn StoredObject, start: u64, bytes: u64) -> Result<NpyHeader, DataError> {
    let refused = |problem: String| DataError::Format {
        file: file.location().to_owned(),
        problem,
    };
    let most = (BEFORE_HEADER + HEADER_BYTES_MAX) as u64;
    // Most headers have 128 bytes.
    let mut head = vec![0; bytes.min(256) as usize];
    file.read_at(start, &mut head)?;
    let header = match NpyHeader::read(&head) {
        Err(_) if bytes > 256 => {
            head.resize(bytes.min(most) as usize, 0);
            file.read_at(start, &mut head)?;
            NpyHeader::read(&head)
        }
        other => other,
    };
    let header = header.map_err(refused)?;
    let numbers = header.elements().map_err(refused)?;
    let needed = numbers.checked_mul(header.dtype.bytes() as u64);
    let needed = needed.and_then(|needed| needed.checked_add(header.bytes as u64));
    if needed != Some(bytes) {
        return Err(refused(format!(
            "an array of shape {:?} ({}) does not match its {bytes} bytes",
            header.shape,
            header.dtype.name()
        )));
    }
    Ok(header)
}

struct NpyFile {
    file: Arc<dyn StoredObject>,
    header: NpyHeader,
}

impl NpyFile {
    fn column(&self) -> Result<NpyColumn, DataError> {
        NpyColumn::new(FIELD, &self.header, self.header.bytes as u64).map_err(|problem| {
            DataError::Format {
                file: self.file.location().to_owned(),
                problem,
            }
        })
    }
}

impl RecordFile for NpyFile {
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        let column = self.column()?;
        let even = EvenLayout::new(column.start, column.row_bytes, 0, column.rows, EXTENT_BYTES);
        let mut hasher = ContentHasher::new(&*self.file, "ronde npy content, version 2");
        hasher.add_range(0..self.file.bytes(), found)?;
        found(ScanItem::Even(even))?;
        Ok(hasher.finish())
    }

    fn parse(
        &self,
        extent: &Extent,
        pieces: Vec<SharedBytes>,
    ) -> Result<Box<dyn Records>, DataError> {
        let columns = vec![self.column()?];
        let location = self.file.location();
        Ok(Box::new(ArrayRows::new(location, extent, columns, pieces)?))
    }
}

#[cfg(test)]
mod tests;
