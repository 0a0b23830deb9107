//! [`Npz`]: several arrays in a zip archive.

use std::ops::Range;
use std::sync::Arc;

use ronde_store::StoredObject;

use super::super::content::ContentHasher;
use super::super::record_file::changed;
use super::super::{
    BadRecord, EXTENT_BYTES_MAX, EvenLayout, Extent, FieldSelection, Format, ItemSink,
    RECORD_BYTES_MAX, RecordFile, Records, ScanItem, SharedBytes,
};
use super::error::NpyError;
use super::header::NpyHeader;
use super::rows::{ArrayRows, EXTENT_BYTES, NpyColumn};
use super::zip::{ZipError, ZipMember, contents, members, wrong_crc};
use crate::error::DataError;

/// The format of files of several arrays with equal numbers of rows.
#[derive(Debug, Clone, Default)]
pub struct Npz {
    wanted: Arc<FieldSelection>,
}

impl Npz {
    /// Creates the format for the arrays in `wanted`.
    #[must_use]
    pub fn new(wanted: FieldSelection) -> Self {
        Self {
            wanted: Arc::new(wanted),
        }
    }
}

impl Format for Npz {
    fn identity(&self) -> String {
        // Extents depend on the first requested array.
        match &*self.wanted {
            FieldSelection::All => "npz version 2".to_owned(),
            FieldSelection::Fields(fields) => format!("npz version 2, {:?}", fields.names()),
        }
    }

    fn open(&self, file: Arc<dyn StoredObject>) -> Result<Box<dyn RecordFile>, DataError> {
        let mut arrays = members(&*file).map_err(|error| match error {
            ZipError::Store(error) => DataError::Store(error),
            ZipError::Problem(problem) => DataError::format(file.location(), problem),
        })?;
        for array in &mut arrays {
            let name = array.name.strip_suffix(".npy").map(str::to_owned);
            array.name = name.unwrap_or_else(|| array.name.clone());
        }
        arrays.retain(|array| self.wanted.has(&array.name));
        arrays.sort_by_key(|array| array.start);
        if arrays
            .windows(2)
            .any(|two| two[0].start + two[0].packed_bytes > two[1].start)
        {
            return Err(DataError::format(
                file.location(),
                "the archive is damaged: its arrays overlap",
            ));
        }
        if arrays.is_empty() {
            return Err(DataError::format(
                file.location(),
                "none of the requested arrays is in the file",
            ));
        }
        let total = |bytes: fn(&ZipMember) -> u64| {
            let mut sizes = arrays.iter().map(bytes);
            sizes.try_fold(0_u64, |sum, bytes| sum.checked_add(bytes))
        };
        // Packed and unpacked arrays are in memory at the same time.
        let is_large = [
            total(|array| array.bytes),
            total(|array| array.packed_bytes),
        ]
        .iter()
        .any(|sum| sum.is_none_or(|bytes| bytes > RECORD_BYTES_MAX));
        let contents = match arrays.iter().any(|array| array.is_deflated) {
            false => NpzContents::Stored(columns(&*file, &arrays)?),
            true if is_large || file.bytes() > EXTENT_BYTES_MAX => {
                let problem = format!(
                    "the compressed arrays exceed {RECORD_BYTES_MAX} bytes: make them smaller, or store them with \
                     numpy.savez"
                );
                return Err(DataError::format(file.location(), problem));
            }
            true => NpzContents::Packed,
        };
        Ok(Box::new(NpzFile {
            file,
            arrays,
            contents,
        }))
    }
}

fn columns(file: &dyn StoredObject, arrays: &[ZipMember]) -> Result<Vec<NpyColumn>, DataError> {
    let mut columns = Vec::new();
    for array in arrays {
        let header = NpyHeader::read_at(file, array.start, array.bytes)?;
        let start = array.start + header.bytes as u64;
        let column = NpyColumn::new(&array.name, &header, start);
        columns.push(column.map_err(|problem| DataError::format(file.location(), problem))?);
    }
    equally_long(&columns).map_err(|problem| DataError::format(file.location(), problem))?;
    Ok(columns)
}

fn equally_long(columns: &[NpyColumn]) -> Result<u64, NpyError> {
    let rows = columns.first().map_or(0, |column| column.rows);
    match columns.iter().find(|column| column.rows != rows) {
        None => Ok(rows),
        Some(other) => Err(NpyError::RowCounts {
            name: other.name.clone(),
            rows: other.rows,
            first: columns[0].name.clone(),
            first_rows: rows,
        }),
    }
}

enum NpzContents {
    /// The arrays are uncompressed; rows can be read directly.
    Stored(Vec<NpyColumn>),
    Packed,
}

struct NpzFile {
    file: Arc<dyn StoredObject>,
    /// The requested arrays by their offsets.
    arrays: Vec<ZipMember>,
    contents: NpzContents,
}

impl NpzFile {
    /// Hashes uncompressed arrays; the second result is the first damage.
    fn check_stored(
        &self,
        hasher: &mut ContentHasher<'_>,
        found: &mut ItemSink<'_>,
    ) -> Result<Option<NpyError>, DataError> {
        let mut damage = None;
        for array in &self.arrays {
            let mut crc = flate2::Crc::new();
            let range = array.start..array.start + array.packed_bytes;
            hasher.add_range_with(range, found, |bytes| crc.update(bytes))?;
            if crc.sum() != array.crc {
                damage.get_or_insert_with(|| wrong_crc(array));
            }
        }
        Ok(damage)
    }

    /// Reads and hashes the compressed bytes of all requested arrays.
    fn packed(
        &self,
        hasher: &mut ContentHasher<'_>,
        found: &mut ItemSink<'_>,
    ) -> Result<Vec<SharedBytes>, DataError> {
        let mut packed = Vec::new();
        for array in &self.arrays {
            let mut bytes = Vec::with_capacity(array.packed_bytes as usize);
            let range = array.start..array.start + array.packed_bytes;
            hasher.add_range_with(range, found, |part| bytes.extend_from_slice(part))?;
            packed.push(SharedBytes::from(bytes));
        }
        Ok(packed)
    }

    /// Unpacks all arrays and verifies their checksums.
    fn unpack(&self, packed: &[SharedBytes]) -> Result<Vec<Vec<u8>>, NpyError> {
        let arrays = self.arrays.iter().zip(packed);
        arrays
            .map(|(array, packed)| contents(array, packed.as_ref()))
            .collect()
    }

    /// Returns the rows of unpacked arrays.
    fn columns(&self, unpacked: Vec<Vec<u8>>) -> Result<Vec<(NpyColumn, SharedBytes)>, NpyError> {
        let mut columns = Vec::new();
        for (array, file) in self.arrays.iter().zip(unpacked) {
            let header = NpyHeader::read(&file)?;
            let column = NpyColumn::new(&array.name, &header, 0)?;
            let numbers = column.rows.checked_mul(column.row_bytes);
            let end = numbers.and_then(|bytes| bytes.checked_add(header.bytes as u64));
            let short = || NpyError::ArrayCutOff {
                name: array.name.clone(),
            };
            let end = end
                .filter(|&end| end <= file.len() as u64)
                .ok_or_else(short)? as usize;
            let piece = SharedBytes::new(Arc::new(file), header.bytes..end).ok_or_else(short)?;
            columns.push((column, piece));
        }
        let all: Vec<NpyColumn> = columns.iter().map(|(column, _)| column.clone()).collect();
        equally_long(&all)?;
        Ok(columns)
    }

    /// Returns the result of a scan of a damaged file, which is not used.
    fn damaged(&self, problem: NpyError, found: &mut ItemSink<'_>) -> Result<[u8; 32], DataError> {
        found(ScanItem::Bad {
            record: BadRecord::new(self.file.location(), 0, None, problem),
            bytes: self.file.bytes(),
        })?;
        Ok([0; 32])
    }
}

impl RecordFile for NpzFile {
    fn scan(
        &self,
        found: &mut dyn FnMut(ScanItem) -> Result<(), DataError>,
    ) -> Result<[u8; 32], DataError> {
        let mut hasher = ContentHasher::new(&*self.file, "ronde npz content, version 2");
        for array in &self.arrays {
            let description = format!("{} {} {:08x}\n", array.name, array.bytes, array.crc);
            hasher.add(description.as_bytes());
        }
        match &self.contents {
            NpzContents::Stored(columns) => {
                if let Some(problem) = self.check_stored(&mut hasher, found)? {
                    return self.damaged(problem, found);
                }
                let first = &columns[0];
                // The number of rows whose values in all arrays fill an extent.
                let row: u64 = columns.iter().map(|column| column.row_bytes).sum();
                let extent_bytes = EXTENT_BYTES / row.max(1) * first.row_bytes;
                found(ScanItem::Even(EvenLayout::new(
                    first.start,
                    first.row_bytes,
                    0,
                    first.rows,
                    extent_bytes,
                )))?;
            }
            NpzContents::Packed => {
                let packed = self.packed(&mut hasher, found)?;
                let unpacked = match self.unpack(&packed) {
                    Ok(unpacked) => unpacked,
                    Err(problem) => return self.damaged(problem, found),
                };
                drop(packed);
                let columns = self
                    .columns(unpacked)
                    .map_err(|problem| DataError::format(self.file.location(), problem))?;
                let rows = columns.first().map_or(0, |(column, _)| column.rows);
                let rows = u32::try_from(rows).map_err(|_| {
                    DataError::format(self.file.location(), "the arrays have too many rows")
                })?;
                if rows > 0 {
                    found(ScanItem::Extent(Extent {
                        start: 0,
                        bytes: self.file.bytes(),
                        records: rows,
                    }))?;
                }
            }
        }
        Ok(hasher.finish())
    }

    fn ranges(&self, extent: &Extent) -> Vec<Range<u64>> {
        match &self.contents {
            NpzContents::Stored(columns) => {
                let first = extent.start.saturating_sub(columns[0].start) / columns[0].row_bytes;
                let rows = columns.iter().map(|column| {
                    let start = column.start + first * column.row_bytes;
                    start..start + u64::from(extent.records) * column.row_bytes
                });
                rows.collect()
            }
            NpzContents::Packed => {
                let whole = self.arrays.iter();
                whole
                    .map(|array| array.start..array.start + array.packed_bytes)
                    .collect()
            }
        }
    }

    fn parse(
        &self,
        extent: &Extent,
        pieces: Vec<SharedBytes>,
    ) -> Result<Box<dyn Records>, DataError> {
        let file = self.file.location();
        let (columns, pieces) = match &self.contents {
            NpzContents::Stored(columns) => (columns.clone(), pieces),
            NpzContents::Packed => self
                .unpack(&pieces)
                .and_then(|unpacked| self.columns(unpacked))
                .map_err(|problem| changed(file, extent, problem))?
                .into_iter()
                .unzip(),
        };
        Ok(Box::new(ArrayRows::new(file, extent, columns, pieces)?))
    }
}
