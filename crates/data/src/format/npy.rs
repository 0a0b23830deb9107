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

mod error;
mod header;
mod npz;
mod rows;
mod zip;

use std::sync::Arc;

use ronde_store::StoredObject;

use super::content::ContentHasher;
use super::{EvenLayout, Extent, Format, RecordFile, Records, ScanItem, SharedBytes};
use crate::error::DataError;
pub use error::NpyError;
use header::NpyHeader;
pub(crate) use header::numbers;
pub use npz::Npz;
use rows::{ArrayRows, EXTENT_BYTES, NpyColumn};

/// The only field of a `.npy` file.
const FIELD: &str = "array";

/// The format of files with one array.
#[derive(Debug, Clone, Copy, Default)]
pub struct Npy;

impl Format for Npy {
    fn identity(&self) -> String {
        "npy version 2".to_owned()
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let header = NpyHeader::read_at(&*file, 0, file.bytes())?;
        Ok(Box::new(NpyFile { file, header }))
    }
}

struct NpyFile {
    file: Arc<dyn StoredObject>,
    header: NpyHeader,
}

impl NpyFile {
    fn column(&self) -> Result<NpyColumn, DataError> {
        NpyColumn::new(FIELD, &self.header, self.header.bytes as u64)
            .map_err(|problem| DataError::format(self.file.location(), problem))
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
