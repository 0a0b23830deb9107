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
    publish_by(path, |file| {
        file.write_all(bytes).map_err(ModelError::Write)
    })
}

/// Publishes the file that `write` writes, and returns its result. Failed writes name the file.
pub(crate) fn publish_by<T>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<T, ModelError>,
) -> Result<T, ModelError> {
    let temporary = temporary(path);
    let publish = || {
        let mut file = File::create(&temporary).map_err(ModelError::Write)?;
        let written = write(&mut file)?;
        complete(&file, &temporary, path).map_err(ModelError::Write)?;
        Ok(written)
    };
    publish().map_err(|error| {
        // Report the write error; ignore an error of removing the temporary file.
        let _ = std::fs::remove_file(&temporary);
        match error {
            ModelError::Write(source) => ModelError::File {
                action: "write",
                path: path.to_owned(),
                source,
            },
            other => other,
        }
    })
}

/// Makes a file durable under its final name.
fn complete(file: &File, temporary: &Path, path: &Path) -> io::Result<()> {
    file.sync_all()?;
    std::fs::rename(temporary, path)?;
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
