//! [`RecordsFile`]: a file of a set, read from where it is.

use std::sync::Arc;

use ronde_store::StoredObject;

use crate::DataError;
use crate::index::DataFile;
use crate::source::SourceFile;

/// A file of a set.
pub(crate) struct RecordsFile {
    file: SourceFile,
    location: String,
    stamp: String,
}

impl RecordsFile {
    pub(crate) fn new(file: &SourceFile) -> Self {
        Self {
            location: file.location(),
            stamp: file.stamp().to_string(),
            file: file.clone(),
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
        Ok(self.file.open()?.into())
    }
}
