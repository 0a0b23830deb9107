//! [`Files`]: the files of a set, opened when they are needed.

use std::sync::{Arc, Mutex, PoisonError};

use ronde_store::StoredObject;

use crate::DataError;
use crate::format::{Format, RecordFile};
use crate::index::DataFile;

/// Files that are kept open.
const OPEN_MAX: usize = 64;

/// A file that is open: its bytes, and what knows how to take them apart.
#[derive(Clone)]
pub(super) struct OpenFile {
    pub object: Arc<dyn StoredObject>,
    pub records: Arc<dyn RecordFile>,
}

/// The files of a set.
pub(super) struct Files {
    list: Vec<Arc<dyn DataFile>>,
    format: Arc<dyn Format>,
    /// Those that are open, the one that was used last at the end.
    open: Mutex<Vec<(usize, OpenFile)>>,
}

impl Files {
    pub(super) fn new(list: Vec<Arc<dyn DataFile>>, format: Arc<dyn Format>) -> Self {
        Self {
            list,
            format,
            open: Mutex::default(),
        }
    }

    pub(super) fn location(&self, number: usize) -> &str {
        self.list[number].location()
    }

    /// Opens a file, or gives it as it is open.
    pub(super) fn open(&self, number: usize) -> Result<OpenFile, DataError> {
        if let Some(file) = self.find(number) {
            return Ok(file);
        }
        let object = self.list[number].open()?;
        let records = self.format.open(Arc::clone(&object))?.into();
        let file = OpenFile { object, records };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= OPEN_MAX {
            open.remove(0);
        }
        open.push((number, file.clone()));
        Ok(file)
    }

    fn find(&self, number: usize) -> Option<OpenFile> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let place = open.iter().position(|(other, _)| *other == number)?;
        let entry = open.remove(place);
        let file = entry.1.clone();
        open.push(entry);
        Some(file)
    }
}
