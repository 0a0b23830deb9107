//! [`publish`]: writes a file so that a reader sees either the old or the new contents.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::ModelError;

/// Returns the name of the temporary file that is renamed to `path` once it is complete.
#[must_use]
pub fn temporary(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".tmp-ronde");
    path.with_file_name(name)
}

/// Writes a file atomically: a reader sees either the old or the new contents.
///
/// # Errors
/// The file cannot be written; the temporary file is removed.
pub fn publish(path: &Path, bytes: &[u8]) -> Result<(), ModelError> {
    publish_by(path, |file| file.write_all(bytes))
}

/// Publishes the file that `write` writes, and returns its result.
pub(crate) fn publish_by<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> io::Result<T>,
) -> Result<T, ModelError> {
    let temporary = temporary(path);
    let write = || {
        let mut file = File::create(&temporary)?;
        let written = write(&mut file)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(written)
    };
    write().map_err(|source| {
        // Report the write error; ignore an error of removing the temporary file.
        let _ = std::fs::remove_file(&temporary);
        ModelError::File {
            action: "write",
            path: path.to_owned(),
            source,
        }
    })
}
