//! Files that are written atomically, and the end of text files.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;

use serde::Serialize;

use crate::error::SubmitError;

/// The end of an output that a message shows.
const TAIL_BYTES: u64 = 4096;
/// The number of its lines.
const TAIL_LINES: usize = 20;

/// Writes a value as JSON to a file that only its owner may read, and replaces the file atomically.
pub(crate) fn publish_json(path: &Path, value: &impl Serialize) -> Result<(), SubmitError> {
    let failed = |error: std::io::Error| SubmitError::file("write", path)(error);
    let text = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    // A temporary file has mode 600.
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(&text).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Writes a value as JSON to a file that only its owner may read, unless there is one. Returns whether it was written.
pub(crate) fn publish_new_json(path: &Path, value: &impl Serialize) -> Result<bool, SubmitError> {
    let failed = |error: std::io::Error| SubmitError::file("write", path)(error);
    let text = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(failed)?;
    file.write_all(&text).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(true),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(failed(error.error)),
    }
}

/// Returns the last lines of a text file, or an empty text if it cannot be read.
pub(crate) fn last_lines(path: &Path) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>(bytes)
    };
    let bytes = read().unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
