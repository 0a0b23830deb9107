//! [`LogReader`]: a text file that is copied as it grows, also when it is replaced by a new one.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

use crate::error::SubmitError;

/// Interval at which a growing file is read.
const FOLLOW_EVERY: Duration = Duration::from_millis(100);
/// Bytes that are copied at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// The extension of the file to which a file is renamed when a new one begins.
const PREVIOUS: &str = "1.log";

/// A position in a text file that may be replaced by a new one of the same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// The number of the file on its disk.
    inode: u64,
    /// When the file was created, because its number is used again after its end; 0 if that is not known.
    created_ns: u64,
    /// The number of bytes before the position.
    pub(crate) offset: u64,
}

impl LogPosition {
    fn start_of(metadata: &Metadata) -> Self {
        let created = metadata.created().ok();
        let since = created.and_then(|created| created.duration_since(UNIX_EPOCH).ok());
        Self {
            inode: metadata.ino(),
            created_ns: since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0)),
            offset: 0,
        }
    }

    fn is_in_file_of(self, other: Self) -> bool {
        (self.inode, self.created_ns) == (other.inode, other.created_ns)
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.inode, self.created_ns, self.offset)
    }
}

impl FromStr for LogPosition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u64>, _> = text.split(':').map(str::parse).collect();
        match numbers.as_deref() {
            Ok([inode, created_ns, offset]) => Ok(Self {
                inode: *inode,
                created_ns: *created_ns,
                offset: *offset,
            }),
            _ => Err("expected three numbers with `:` between them".to_owned()),
        }
    }
}

/// Takes the bytes at a position.
pub(crate) type LogChunks<'a> = dyn FnMut(LogPosition, &[u8]) -> std::io::Result<()> + 'a;

/// A position in a growing text file.
#[derive(Debug)]
pub struct LogReader {
    path: PathBuf,
    /// The file that is read, which may have another name by now.
    file: Option<File>,
    position: LogPosition,
    /// Whether the reader continues from a position.
    continues: bool,
}

impl LogReader {
    /// Begins at the start of a file, which need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            file: None,
            position: LogPosition::default(),
            continues: false,
        }
    }

    /// Begins at a position that another reader of the file has reached. If that file does not exist any more, everything
    /// that was written since is read that still exists.
    #[must_use]
    pub fn after(path: impl Into<PathBuf>, position: LogPosition) -> Self {
        Self {
            position,
            continues: true,
            ..Self::new(path)
        }
    }

    /// Copies the bytes since the last call. A file that was replaced by a new one is read to its end before the new one,
    /// and a file that became shorter from its start. Returns whether there were any.
    ///
    /// # Errors
    /// The file cannot be read, or `out` cannot be written.
    pub fn copy(&mut self, out: &mut dyn Write) -> Result<bool, SubmitError> {
        self.pass(&mut |_, bytes| out.write_all(bytes).and_then(|()| out.flush()))
    }

    /// Passes on the bytes since the last call with their positions, as [`LogReader::copy`] does.
    pub(crate) fn pass(&mut self, chunks: &mut LogChunks<'_>) -> Result<bool, SubmitError> {
        if std::mem::take(&mut self.continues) {
            self.find_position()?;
        }
        let mut shown = self.pass_file(chunks)?;
        let Some((next, start)) = self.open(&self.path)? else {
            return Ok(shown);
        };
        if self.file.is_some() && self.position.is_in_file_of(start) {
            return Ok(shown);
        }
        // Nothing is written to a file any more once the next one has its name.
        shown |= self.pass_file(chunks)?;
        if self.file.is_some()
            && let Some((between, place)) = self.open(&self.path.with_extension(PREVIOUS))?
            && !place.is_in_file_of(self.position)
            && !place.is_in_file_of(start)
        {
            (self.file, self.position) = (Some(between), place);
            shown |= self.pass_file(chunks)?;
        }
        (self.file, self.position) = (Some(next), start);
        Ok(self.pass_file(chunks)? || shown)
    }

    /// Opens the file of the position with which the reader begins.
    fn find_position(&mut self) -> Result<(), SubmitError> {
        let previous = self.path.with_extension(PREVIOUS);
        let (current, previous) = (self.open(&self.path)?, self.open(&previous)?);
        let is_here = |found: &Option<(File, LogPosition)>| {
            found
                .as_ref()
                .is_some_and(|(_, start)| self.position.is_in_file_of(*start))
        };
        if is_here(&current) {
            self.file = current.map(|(file, _)| file);
        } else if is_here(&previous) {
            self.file = previous.map(|(file, _)| file);
        } else if let Some((file, start)) = previous {
            (self.file, self.position) = (Some(file), start);
        }
        Ok(())
    }

    /// Opens a file, if it exists.
    fn open(&self, path: &std::path::Path) -> Result<Option<(File, LogPosition)>, SubmitError> {
        let file = match File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(SubmitError::file("read", path))?,
        };
        let metadata = file.metadata().map_err(SubmitError::file("read", path))?;
        Ok(Some((file, LogPosition::start_of(&metadata))))
    }

    /// Passes on the rest of the open file.
    fn pass_file(&mut self, chunks: &mut LogChunks<'_>) -> Result<bool, SubmitError> {
        let failed = |error| SubmitError::file("read", &self.path)(error);
        let Some(file) = &mut self.file else {
            return Ok(false);
        };
        if file.metadata().map_err(failed)?.len() < self.position.offset {
            self.position.offset = 0;
        }
        let begun = self.position.offset;
        file.seek(SeekFrom::Start(begun)).map_err(failed)?;
        loop {
            let mut bytes = Vec::new();
            let mut chunk = Read::by_ref(file).take(CHUNK_BYTES);
            chunk.read_to_end(&mut bytes).map_err(failed)?;
            if bytes.is_empty() {
                return Ok(self.position.offset > begun);
            }
            let written = chunks(self.position, &bytes);
            written.map_err(SubmitError::file("write", "the standard output".as_ref()))?;
            self.position.offset += bytes.len() as u64;
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
        let mut chunks = |_, bytes: &[u8]| out.write_all(bytes).and_then(|()| out.flush());
        self.follow_chunks(&mut chunks, is_over)
    }

    /// Passes the file on as it grows, until `is_over` and everything has been passed on.
    pub(crate) fn follow_chunks(
        &mut self,
        chunks: &mut LogChunks<'_>,
        is_over: &mut dyn FnMut() -> bool,
    ) -> Result<(), SubmitError> {
        loop {
            // Looked at before the last copy, so that no output is missed.
            let over = is_over();
            self.pass(chunks)?;
            if over {
                return Ok(());
            }
            ronde_clock::pause(FOLLOW_EVERY);
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

    /// Renames a file as a rank does whose output has reached the limit, and begins the next one.
    fn rotate(path: &std::path::Path, text: &str) {
        std::fs::rename(path, path.with_extension(PREVIOUS)).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn append(path: &std::path::Path, text: &str) {
        let mut file = File::options().append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn no_line_is_lost_or_repeated_when_a_file_is_rotated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        let (mut log, mut out) = (LogReader::new(&path), Vec::new());
        std::fs::write(&path, "1\n").unwrap();
        log.copy(&mut out).unwrap();
        append(&path, "2\n");
        // The new file is longer than the part of the previous one that was read.
        rotate(&path, "3\n4\n5\n");
        log.copy(&mut out).unwrap();
        append(&path, "6\n");
        rotate(&path, "7\n");
        append(&path, "8\n");
        rotate(&path, "9\n");
        log.copy(&mut out).unwrap();
        assert!(!log.copy(&mut out).unwrap());
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "1\n2\n3\n4\n5\n6\n7\n8\n9\n"
        );
    }

    #[test]
    fn a_reader_continues_where_another_one_was_interrupted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rank-0.log");
        std::fs::write(&path, "1\n").unwrap();
        let mut first = LogReader::new(&path);
        first.copy(&mut Vec::new()).unwrap();
        let position: LogPosition = first.position.to_string().parse().unwrap();
        assert_eq!(position, first.position);
        let rest = || {
            let mut out = Vec::new();
            LogReader::after(&path, position).copy(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(rest(), "");
        append(&path, "2\n");
        assert_eq!(rest(), "2\n");
        rotate(&path, "3\n");
        assert_eq!(rest(), "2\n3\n");
        drop(first);
        rotate(&path, "4\n");
        assert_eq!(rest(), "3\n4\n", "the file of the position is gone");
        assert!("1:2".parse::<LogPosition>().is_err());
    }
}
