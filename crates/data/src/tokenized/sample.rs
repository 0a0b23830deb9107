//! [`TokenSample`]: the tokens of the beginning of a text, in memory, to check a data set.

use std::sync::{Arc, Mutex, PoisonError};

use ronde_store::{StoreError, StoredObject, Upload};

use crate::error::DataError;
use crate::format::object::InMemory;
use crate::index::DataFile;

/// A token file in memory.
pub(super) struct TokenSample {
    location: String,
    bytes: Vec<u8>,
}

impl DataFile for TokenSample {
    fn location(&self) -> &str {
        &self.location
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn stamp(&self) -> &'static str {
        "memory"
    }

    fn open(&self) -> Result<Arc<dyn StoredObject>, DataError> {
        Ok(Arc::new(InMemory::new(&self.location, self.bytes.clone())))
    }
}

/// The bytes that a [`TokenSample`] will have.
#[derive(Clone, Default)]
pub(super) struct SampleBytes(Arc<Mutex<Vec<u8>>>);

impl SampleBytes {
    /// Returns the sample of the text at `location`.
    pub(super) fn sample(&self, location: &str) -> TokenSample {
        let bytes = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        TokenSample {
            location: location.to_owned(),
            bytes,
        }
    }
}

impl Upload for SampleBytes {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend_from_slice(bytes);
        Ok(())
    }

    fn publish(self: Box<Self>) -> Result<(), StoreError> {
        Ok(())
    }
}
