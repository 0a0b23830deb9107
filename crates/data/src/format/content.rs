//! [`ContentHasher`]: the hash of the bytes of a file that are trained on.

use std::ops::Range;

use ronde_store::StoredObject;

use super::{ItemSink, ScanItem};
use crate::error::DataError;

/// Bytes that are read at once.
const CHUNK: u64 = 1 << 20;

/// The hash of the bytes of a file that are trained on. It makes equal files equal wherever they are stored, and changed
/// files different.
pub(super) struct ContentHasher<'a> {
    file: &'a dyn StoredObject,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl<'a> ContentHasher<'a> {
    /// Creates a hasher. `context` is unique for each format and version.
    pub(super) fn new(file: &'a dyn StoredObject, context: &str) -> Self {
        Self {
            file,
            hasher: blake3::Hasher::new_derive_key(context),
            buffer: Vec::new(),
        }
    }

    /// Adds bytes, such as a file's header.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// Reads and adds a range of the file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, and any error of `found`.
    pub(super) fn add_range(
        &mut self,
        range: Range<u64>,
        found: &mut ItemSink<'_>,
    ) -> Result<(), DataError> {
        self.add_range_with(range, found, |_| {})
    }

    /// Reads and adds a range of the file, and passes its bytes to `each`.
    ///
    /// # Errors
    /// As [`Self::add_range`].
    pub(super) fn add_range_with(
        &mut self,
        range: Range<u64>,
        found: &mut ItemSink<'_>,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), DataError> {
        let mut start = range.start;
        while start < range.end {
            let bytes = (range.end - start).min(CHUNK);
            self.buffer.resize(bytes as usize, 0);
            self.file.read_at(start, &mut self.buffer)?;
            self.hasher.update(&self.buffer);
            each(&self.buffer);
            start += bytes;
            found(ScanItem::Progress)?;
        }
        Ok(())
    }

    /// Returns the hash.
    pub(super) fn finish(self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }
}
