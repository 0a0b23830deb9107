//! Helpers for tests of formats: files in memory that are read as a data set reads them.

use std::io::Write;
use std::sync::Arc;

use ronde_store::StoredObject;

use super::{BadRecord, Extent, Format, Record, ScanItem, SharedBytes, Value};
use crate::error::DataError;
use crate::format::object::InMemory;

/// A factory of files in memory.
pub(crate) struct MemoryObject;

impl MemoryObject {
    pub(crate) fn of(bytes: &[u8]) -> Arc<dyn StoredObject> {
        Self::at("memory", bytes)
    }

    pub(crate) fn at(location: &str, bytes: &[u8]) -> Arc<dyn StoredObject> {
        Arc::new(InMemory::new(location, bytes))
    }
}

/// The result of a scan.
pub(crate) struct ScanResult {
    pub(crate) extents: Vec<Extent>,
    pub(crate) bad: Vec<BadRecord>,
    pub(crate) hash: [u8; 32],
}

/// Scans a file in memory.
pub(crate) fn scanned(format: &dyn Format, bytes: &[u8]) -> Result<ScanResult, DataError> {
    scanned_object(format, MemoryObject::of(bytes))
}

/// Scans a file.
pub(crate) fn scanned_object(
    format: &dyn Format,
    file: Arc<dyn StoredObject>,
) -> Result<ScanResult, DataError> {
    let (mut extents, mut bad) = (Vec::new(), Vec::new());
    let length = file.bytes();
    let hash = format.open(file)?.scan(&mut |found| {
        match found {
            ScanItem::Extent(extent) => extents.push(extent),
            ScanItem::Even(even) => {
                assert!(even.fits(length), "{even:?} in {length} bytes");
                let mut record = 0;
                while let Some((extent, 0)) = even.locate(record) {
                    extents.push(extent);
                    record += u64::from(extent.records);
                }
            }
            ScanItem::Bad { record, .. } => bad.push(record),
            ScanItem::Progress => {}
        }
        Ok(())
    })?;
    for extent in &extents {
        assert!(
            extent.records > 0 && extent.start + extent.bytes <= length,
            "{extent:?} of {length}"
        );
    }
    Ok(ScanResult { extents, bad, hash })
}

/// Reads all usable records of a file in memory.
pub(crate) fn read_all(
    format: &dyn Format,
    bytes: &[u8],
) -> Result<Vec<Record<'static>>, DataError> {
    read_object(format, MemoryObject::of(bytes))
}

/// Reads all usable records of a file through extents and ranges.
pub(crate) fn read_object(
    format: &dyn Format,
    file: Arc<dyn StoredObject>,
) -> Result<Vec<Record<'static>>, DataError> {
    let extents = scanned_object(format, file.clone())?.extents;
    let open = format.open(file.clone())?;
    let mut all = Vec::new();
    for extent in extents {
        let mut pieces = Vec::new();
        for range in open.ranges(&extent) {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            file.read_at(range.start, &mut bytes)?;
            pieces.push(SharedBytes::from(bytes));
        }
        let records = open.parse(&extent, pieces)?;
        for number in 0..extent.records {
            all.push(owned(&records.record(number)?));
        }
    }
    Ok(all)
}

/// Returns a record that owns its data.
pub(crate) fn owned(record: &Record<'_>) -> Record<'static> {
    let value = |value: &Value<'_>| match value {
        Value::Bytes(bytes) => Value::Bytes(bytes.to_vec().into()),
        Value::List(list) => Value::List(list.iter().map(|b| b.to_vec().into()).collect()),
        Value::Numbers { dtype, bytes } => Value::Numbers {
            dtype: *dtype,
            bytes: bytes.to_vec().into(),
        },
    };
    let fields = record.fields.iter();
    let fields = fields.map(|(name, v)| (name.to_string().into(), value(v)));
    Record {
        fields: fields.collect(),
    }
}

/// Compresses bytes with gzip.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}
