//! [`LogReader`]: a text file that is copied as it grows.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::time::Duration;

use crate::clock;
use crate::error::SubmitError;

/// Interval at which a growing file is read.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);
/// Bytes that are copied at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// A position in a growing text file.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    offset: u64,
}

impl LogReader {
    /// Begins at the start of a file, which need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            offset: 0,
        }
    }

    /// Copies the bytes since the last call. A file that became shorter was replaced by a new one and is read from its
    /// start. Returns whether there were any.
    ///
    /// # Errors
    /// The file cannot be read, or `out` cannot be written.
    pub fn copy(&mut self, out: &mut dyn Write) -> Result<bool, SubmitError> {
        let failed = |error| SubmitError::file("read", &self.path)(error);
        let mut file = match File::open(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            file => file.map_err(failed)?,
        };
        let length = file.metadata().map_err(failed)?.len();
        if length < self.offset {
            self.offset = 0;
        }
        let begun = self.offset;
        file.seek(SeekFrom::Start(self.offset)).map_err(failed)?;
        loop {
            let mut bytes = Vec::new();
            let mut chunk = Read::by_ref(&mut file).take(CHUNK_BYTES);
            chunk.read_to_end(&mut bytes).map_err(failed)?;
            if bytes.is_empty() {
                return Ok(self.offset > begun);
            }
            let written = out.write_all(&bytes).and_then(|()| out.flush());
            written.map_err(SubmitError::file("write", "the standard output".as_ref()))?;
            self.offset += bytes.len() as u64;
        }
    }

    /// Copies the file as it grows, until `is_over` and everything has been copied.
    ///
    /// # Errors
    /// As [`LogReader::copy`].
    pub fn follow(
        &mut self,
        out: &mut dyn Write,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), SubmitError> {
        loop {
            // Looked at before the last copy, so that no output is missed.
            let over = is_over();
            self.copy(out)?;
            if over {
                return Ok(());
            }
            clock::pause(FOLLOW_EVERY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_and_a_replaced_file_are_copied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("output.log");
        let (mut log, mut out) = (LogReader::new(&path), Vec::new());
        assert!(!log.copy(&mut out).unwrap(), "there is no file yet");
        std::fs::write(&path, "one\n").unwrap();
        assert!(log.copy(&mut out).unwrap());
        assert!(!log.copy(&mut out).unwrap());
        std::fs::write(&path, "one\ntwo\n").unwrap();
        let mut turns = 0;
        log.follow(&mut out, &mut || {
            turns += 1;
            turns == 2
        })
        .unwrap();
        std::fs::write(&path, "x\n").unwrap();
        log.copy(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "one\ntwo\nx\n");
    }
}
