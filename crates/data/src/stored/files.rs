//! [`OpenFiles`]: the files of a set, opened on demand.

use std::sync::{Arc, Mutex, PoisonError};

use ronde_store::StoredObject;

use crate::error::DataError;
use crate::format::{Format, RecordFile};
use crate::index::DataFile;

/// The maximum number of open files.
const OPEN_MAX: usize = 64;

/// An open file: its bytes and its parser.
#[derive(Clone)]
pub(super) struct OpenFile {
    pub object: Arc<dyn StoredObject>,
    pub records: Arc<dyn RecordFile>,
}

/// The files of a set, some of them open.
pub(super) struct OpenFiles {
    list: Vec<Arc<dyn DataFile>>,
    format: Arc<dyn Format>,
    /// The open files, the most recently used one last.
    open: Mutex<Vec<(usize, OpenFile)>>,
}

impl OpenFiles {
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

    /// Opens a file, or returns it if it is open.
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
