//! [`ObjectReader`]: sequential reading of a stored object; [`InMemory`]: an object in memory.

use std::io::{self, Read};
use std::sync::Arc;

use ronde_store::{Stamp, StoreError, StoredObject, Version};

use crate::error::DataError;
use crate::format::BadRecord;

/// A reader of an object from a given offset.
pub(crate) struct ObjectReader {
    object: Arc<dyn StoredObject>,
    position: u64,
}

impl ObjectReader {
    pub(crate) fn new(object: Arc<dyn StoredObject>, position: u64) -> Self {
        Self { object, position }
    }
}

impl Read for ObjectReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.object.bytes().saturating_sub(self.position);
        let bytes = left.min(into.len() as u64) as usize;
        if bytes > 0 {
            let read = self.object.read_at(self.position, &mut into[..bytes]);
            read.map_err(io::Error::other)?;
            self.position += bytes as u64;
        }
        Ok(bytes)
    }
}

/// Converts a read error: to the store's error, or to a bad record if decompression failed at `offset`.
pub(crate) fn failed(file: &str, offset: u64, error: io::Error) -> DataError {
    let cause = error.to_string();
    match error.downcast::<StoreError>() {
        Ok(error) => DataError::Store(error),
        Err(_) => DataError::Record(BadRecord::new(
            file,
            offset,
            None,
            format_args!("cannot decompress: {cause}"),
        )),
    }
}

/// Returns whether the bytes start with the magic number of gzip.
pub(crate) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b, 8])
}

/// Decompresses gzip data to at most `bytes_max` bytes.
pub(crate) fn unpack(file: &str, packed: &[u8], bytes_max: u64) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let mut decoder = flate2::bufread::MultiGzDecoder::new(packed).take(bytes_max + 1);
    let read = decoder.read_to_end(&mut bytes);
    read.map_err(|error| failed(file, bytes.len() as u64, error))?;
    if bytes.len() as u64 > bytes_max {
        return Err(DataError::Record(BadRecord::new(
            file,
            bytes_max,
            None,
            format_args!("its unpacked contents exceed {bytes_max} bytes; make its shards smaller"),
        )));
    }
    Ok(bytes)
}

/// A file in memory.
pub(crate) struct InMemory {
    bytes: Vec<u8>,
    location: String,
}

impl InMemory {
    pub(crate) fn new(location: &str, bytes: impl Into<Vec<u8>>) -> Self {
        Self {
            bytes: bytes.into(),
            location: location.to_owned(),
        }
    }
}

impl StoredObject for InMemory {
    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let part = usize::try_from(start)
            .ok()
            .and_then(|start| self.bytes.get(start..start.checked_add(into.len())?));
        let part = part.ok_or_else(|| StoreError::Damaged {
            location: self.location.clone(),
            problem: "the range exceeds the file".to_owned(),
        })?;
        into.copy_from_slice(part);
        Ok(())
    }

    fn stamp(&self) -> Stamp {
        Stamp::of("memory", self.location.as_bytes())
    }

    fn version(&self) -> Result<Version, StoreError> {
        Err(StoreError::NotFound {
            operation: "version",
            location: self.location.clone(),
        })
    }

    fn location(&self) -> &str {
        &self.location
    }
}
