//! [`RecordsFile`]: a file of a set, read directly or through a cache.

use std::sync::Arc;

use ronde_store::StoredObject;

use crate::cache::Cache;
use crate::error::DataError;
use crate::index::DataFile;
use crate::source::SourceFile;

/// A file of a set.
pub(crate) struct RecordsFile {
    file: SourceFile,
    location: String,
    stamp: String,
    cache: Option<Arc<Cache>>,
}

impl RecordsFile {
    pub(crate) fn new(file: &SourceFile, cache: Option<Arc<Cache>>) -> Self {
        Self {
            location: file.location(),
            stamp: file.stamp().to_string(),
            file: file.clone(),
            cache,
        }
    }
}

impl DataFile for RecordsFile {
    fn location(&self) -> &str {
        &self.location
    }

    fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    fn stamp(&self) -> &str {
        &self.stamp
    }

    fn open(&self) -> Result<Arc<dyn StoredObject>, DataError> {
        match &self.cache {
            Some(cache) => cache.object(&self.file),
            None => Ok(self.file.open()?.into()),
        }
    }
}
