//! [`NewestStart`]: the newest start of an attempt in an event file, whose middle a quick summary does not read.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ronde_core::Event;
use ronde_tracking::parse_event_line;

/// The most bytes before the end of a file that are searched when it is seen for the first time.
const FIRST_BYTES_MAX: u64 = 16 << 20;
/// Longest line; the rest of a longer one is another line, which is not an event.
const LINE_BYTES_MAX: u64 = 4 << 20;
/// Bytes at the beginning of a line that have the name of its event.
const NAME_BYTES: usize = 96;
/// The name of the event.
const NAME: &[u8] = b"\"run_started\"";

/// Searches an event file, and then its new lines.
#[derive(Debug, Default)]
pub(super) struct NewestStart {
    inode: u64,
    offset: u64,
    event: Option<Event>,
}

impl NewestStart {
    /// Reads the lines since the last call, or a new file. Returns the newest [`Event::RunStarted`] so far.
    ///
    /// # Errors
    /// The operating system's error: the file is missing or cannot be read.
    pub(super) fn read(&mut self, path: &Path) -> std::io::Result<Option<&Event>> {
        let mut file = File::open(path)?;
        let data = file.metadata()?;
        if data.ino() != self.inode || data.len() < self.offset {
            *self = Self {
                inode: data.ino(),
                offset: data.len().saturating_sub(FIRST_BYTES_MAX),
                event: None,
            };
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut part = reader.by_ref().take(LINE_BYTES_MAX);
            let length = part.read_until(b'\n', &mut line)?;
            let is_whole = line.ends_with(b"\n") || length as u64 == LINE_BYTES_MAX;
            if !is_whole {
                return Ok(self.event.as_ref());
            }
            self.offset += length as u64;
            let start = &line[..line.len().min(NAME_BYTES)];
            let is_start = start.windows(NAME.len()).any(|name| name == NAME);
            if is_start && let Some((_, event @ Event::RunStarted { .. })) = parse_event_line(&line)
            {
                self.event = Some(event);
            }
        }
    }
}
