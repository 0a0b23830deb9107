//! [`Kept`]: the file that keeps what a scan found.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::DataFile;
use super::stored::FileIndex;
use crate::DataError;
use crate::divide::{Claim, failed};

/// Most bytes of an index: that of 500 million extents.
const INDEX_BYTES_MAX: u64 = 8 << 30;

/// Where the index of one data file is kept.
pub(super) struct Kept {
    path: PathBuf,
    key: [u8; 32],
}

impl Kept {
    pub(super) fn new(folder: &Path, file: &dyn DataFile, format: &str) -> Self {
        let key = key_of("ronde index key, version 1", file, format);
        let name = format!("{}.index", &blake3::Hash::from(key).to_hex()[..32]);
        Self {
            path: folder.join(name),
            key,
        }
    }

    /// What was kept; `None` where nothing is, or nothing that can be used.
    pub(super) fn load(&self, file: &dyn DataFile) -> Result<Option<FileIndex>, DataError> {
        let read = |cause| failed("read", &self.path, cause);
        let mut kept = match File::open(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            other => other.map_err(read)?,
        };
        let bytes = kept.metadata().map_err(read)?.len();
        if bytes > INDEX_BYTES_MAX {
            return Ok(None);
        }
        let mut contents = Vec::with_capacity(bytes as usize);
        Read::by_ref(&mut kept)
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

    /// Takes the right to scan; `None` while another process, or thread, has it.
    pub(super) fn claim(&self) -> Result<Option<Claim>, DataError> {
        Claim::take(self.path.with_extension("lock"))
    }

    /// Keeps what was found: as a whole or not at all. Not flushed to the disk: a damaged index is told by its hash.
    pub(super) fn store(&self, index: &FileIndex, _claim: &Claim) -> Result<(), DataError> {
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

/// What changes with a data file and with how it is read.
pub(crate) fn key_of(context: &str, file: &dyn DataFile, how: &str) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(context);
    for part in [file.location(), file.stamp(), how] {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part.as_bytes());
    }
    hasher.update(&file.bytes().to_le_bytes());
    *hasher.finalize().as_bytes()
}
