//! [`IndexFile`]: the file that stores the result of a scan.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::DataFile;
use super::file_index::FileIndex;
use crate::error::DataError;
use crate::file_tasks::{TaskClaim, failed};

/// The largest size of an index, enough for 500 million extents.
const INDEX_BYTES_MAX: u64 = 8 << 30;

/// The file that stores the index of one data file.
pub(super) struct IndexFile {
    path: PathBuf,
    key: [u8; 32],
}

impl IndexFile {
    pub(super) fn new(folder: &Path, file: &dyn DataFile, format: &str) -> Self {
        let key = key_of("ronde index key, version 1", file, format);
        let name = format!("{}.index", &blake3::Hash::from(key).to_hex()[..32]);
        Self {
            path: folder.join(name),
            key,
        }
    }

    /// Loads the index; `None` if there is none that can be used.
    pub(super) fn load(&self, file: &dyn DataFile) -> Result<Option<FileIndex>, DataError> {
        let read = |cause| failed("read", &self.path, cause);
        // A pipe or device of that name would block.
        let metadata = match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(read)?,
        };
        if !metadata.is_file() {
            return Ok(None);
        }
        let mut stored = File::open(&self.path).map_err(read)?;
        let bytes = stored.metadata().map_err(read)?.len();
        if bytes > INDEX_BYTES_MAX {
            return Ok(None);
        }
        let mut contents = Vec::with_capacity(bytes as usize);
        Read::by_ref(&mut stored)
            .take(bytes)
            .read_to_end(&mut contents)
            .map_err(read)?;
        let location = file.location();
        Ok(FileIndex::decode(
            &contents,
            &self.key,
            location,
            file.bytes(),
        ))
    }

    /// Claims the right to scan; `None` while another process or thread has it.
    pub(super) fn claim(&self) -> Result<Option<TaskClaim>, DataError> {
        TaskClaim::take(self.path.with_extension("lock"))
    }

    /// Stores the index atomically. It is not flushed to disk: a damaged index is detected by its hash.
    pub(super) fn store(&self, index: &FileIndex, _claim: &TaskClaim) -> Result<(), DataError> {
        let partial = self.path.with_extension("partial");
        let written = File::create(&partial)
            .and_then(|mut file| file.write_all(&index.encode(&self.key)))
            .and_then(|()| std::fs::rename(&partial, &self.path));
        written.map_err(|cause| {
            let _ = std::fs::remove_file(&partial);
            failed("write", &self.path, cause)
        })
    }
}

/// Hashes the properties of a data file and of the reading that an index depends on.
pub(crate) fn key_of(context: &str, file: &dyn DataFile, how: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in [file.location(), file.stamp(), how] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.update(&file.bytes().to_le_bytes());
    *hasher.finalize().as_bytes()
}
