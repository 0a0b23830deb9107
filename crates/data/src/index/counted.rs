//! [`CountedObject`]: counts the bytes that a scan reads.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ronde_store::{Stamp, StoreError, StoredObject, Version};

/// An object that counts the bytes read from it.
pub(super) struct CountedObject {
    object: Arc<dyn StoredObject>,
    read: Arc<AtomicU64>,
}

impl CountedObject {
    /// Wraps an object; `read` counts its bytes.
    pub(super) fn new(object: Arc<dyn StoredObject>, read: &Arc<AtomicU64>) -> Self {
        Self {
            object,
            read: Arc::clone(read),
        }
    }
}

impl StoredObject for CountedObject {
    fn bytes(&self) -> u64 {
        self.object.bytes()
    }

    fn prefetch(&self, ranges: &[Range<u64>]) {
        self.object.prefetch(ranges);
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        self.object.read_at(start, into)?;
        self.read.fetch_add(into.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn stamp(&self) -> Stamp {
        self.object.stamp()
    }

    fn version(&self) -> Result<Version, StoreError> {
        self.object.version()
    }

    fn location(&self) -> &str {
        self.object.location()
    }
}
