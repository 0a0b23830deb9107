//! [`publish`]: writes a file so that a reader sees either the old or the new contents.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::ModelError;

/// Checks that a file can be replaced at a path: renaming a file to a device or a folder would remove it, or fail late.
///
/// # Errors
/// Something other than a file is there.
pub fn check_target(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() && !found.is_symlink() => {
            Err(io::Error::other("it exists and is not a regular file"))
        }
        // A missing folder is reported by the write.
        _ => Ok(()),
    }
}

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
/// The file cannot be written, and the temporary file is removed; or the path is not that of a file.
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
        check_target(path).map_err(ModelError::Write)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let error = publish(&socket, b"new").unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
        assert!(publish(folder.path(), b"new").is_err());
        let file = folder.path().join("file");
        for contents in [b"1", b"2"] {
            publish(&file, contents).unwrap();
            assert_eq!(std::fs::read(&file).unwrap(), contents);
        }
        let names = std::fs::read_dir(folder.path()).unwrap();
        assert_eq!(names.count(), 2);
    }
}
