//! [`EventFollower`]: reads the event files of a run from the beginning and continues while they grow.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ronde_core::Event;
use ronde_tracking::{parse_event_line, previous};

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;
/// Longest line; longer ones are skipped.
const LINE_BYTES_MAX: usize = 4 << 20;

/// The part of the event files that a call of [`EventFollower::read`] has read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadProgress {
    /// Whether events were read.
    pub has_events: bool,
    /// Whether the files were replaced, so that all earlier events belong to another run.
    pub restarted: bool,
    /// Whether the end of the files was reached.
    pub at_end: bool,
}

/// Reads `events.1.jsonl` and `events.jsonl` of a run incrementally. When the file is renamed and continued in a new one,
/// the rest of the renamed file is read first. A line that is not complete yet is read when it is; a damaged one is
/// skipped. Reads about 250 MB of events a second and holds 1 MB while it reads.
#[derive(Debug)]
pub struct EventFollower {
    path: PathBuf,
    open: Option<OpenPart>,
    /// Number of lines that could not be read.
    damaged: u64,
}

/// The file that is read at present.
#[derive(Debug)]
struct OpenPart {
    file: File,
    inode: u64,
    /// Bytes that were read, including `rest`.
    offset: u64,
    /// The beginning of a line whose end was not read yet.
    rest: Vec<u8>,
    /// Whether the present line is too long and is skipped up to its end.
    skips_line: bool,
}

impl OpenPart {
    fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let inode = file.metadata()?.ino();
        Ok(Self {
            file,
            inode,
            offset: 0,
            rest: Vec::new(),
            skips_line: false,
        })
    }
}

impl EventFollower {
    /// Creates a follower of an event file, which need not exist yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            open: None,
            damaged: 0,
        }
    }

    /// Returns the number of lines that could not be read.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Returns the number of bytes of the present file that were read.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.offset)
    }

    /// Reads up to about `bytes_max` bytes of new events and passes each one with its time to `visit`. If the files were
    /// replaced, nothing is read by this call, and the next one begins with the new files.
    ///
    /// # Errors
    /// The operating system's error: the file is missing or cannot be read.
    pub fn read(
        &mut self,
        bytes_max: usize,
        visit: &mut dyn FnMut(f64, &Event),
    ) -> std::io::Result<ReadProgress> {
        let mut progress = ReadProgress::default();
        let mut left = bytes_max;
        let mut buffer = vec![0; READ_BYTES.min(bytes_max.max(1))];
        loop {
            let Some(open) = &mut self.open else {
                self.open_first()?;
                continue;
            };
            if open.file.metadata()?.len() < open.offset {
                return Ok(self.restart());
            }
            open.file.seek(SeekFrom::Start(open.offset))?;
            let read = open.file.read(&mut buffer)?;
            if read > 0 {
                open.offset += read as u64;
                progress.has_events |= lines(open, &buffer[..read], &mut self.damaged, visit);
                left = left.saturating_sub(read);
                if left == 0 {
                    return Ok(progress);
                }
                continue;
            }
            let current = std::fs::metadata(&self.path)?.ino();
            if current == open.inode {
                progress.at_end = true;
                return Ok(progress);
            }
            // The file was renamed and continued, unless a new run has replaced it.
            let renamed = std::fs::metadata(previous(&self.path)).map(|data| data.ino());
            if !renamed.is_ok_and(|inode| inode == open.inode) {
                return Ok(self.restart());
            }
            self.open = Some(OpenPart::open(&self.path)?);
        }
    }

    /// Opens the oldest part.
    fn open_first(&mut self) -> std::io::Result<()> {
        let first = OpenPart::open(&previous(&self.path));
        let part = first.or_else(|_| OpenPart::open(&self.path));
        self.open = Some(part?);
        Ok(())
    }

    fn restart(&mut self) -> ReadProgress {
        *self = Self::new(&self.path);
        ReadProgress {
            restarted: true,
            ..ReadProgress::default()
        }
    }
}

/// Visits the events of the lines that are complete, and keeps the rest. Returns whether there was an event.
fn lines(
    open: &mut OpenPart,
    mut bytes: &[u8],
    damaged: &mut u64,
    visit: &mut dyn FnMut(f64, &Event),
) -> bool {
    let mut has_events = false;
    while let Some(end) = bytes.iter().position(|byte| *byte == b'\n') {
        let (line, after) = (&bytes[..end], &bytes[end + 1..]);
        bytes = after;
        if std::mem::take(&mut open.skips_line) {
            *damaged += 1;
            continue;
        }
        let whole;
        let line = if open.rest.is_empty() {
            line
        } else {
            open.rest.extend_from_slice(line);
            whole = std::mem::take(&mut open.rest);
            &whole
        };
        match parse_event_line(line) {
            Some((t, event)) => {
                has_events = true;
                visit(t, &event);
            }
            None if line.starts_with(b"{\"format\"") => {}
            None => *damaged += 1,
        }
    }
    if open.rest.len() + bytes.len() > LINE_BYTES_MAX {
        open.skips_line = true;
        open.rest = Vec::new();
    } else if !open.skips_line {
        open.rest.extend_from_slice(bytes);
    }
    has_events
}

/// Visits the events at the beginning and at the end of an event file, for a quick summary. Reads at most `bytes` at each
/// end. `visit` receives whether an event may be far from the end, its time and the event.
///
/// # Errors
/// The operating system's error: the file is missing or cannot be read.
pub(crate) fn ends(
    path: &Path,
    bytes: u64,
    visit: &mut dyn FnMut(bool, f64, &Event),
) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut text = Vec::new();
    let mut visit_lines = |is_far: bool, text: &[u8]| {
        for line in text.split(|byte| *byte == b'\n') {
            if let Some((t, event)) = parse_event_line(line) {
                visit(is_far, t, &event);
            }
        }
    };
    let is_long = length > 2 * bytes;
    let head = if is_long { bytes } else { length };
    file.by_ref().take(head).read_to_end(&mut text)?;
    visit_lines(is_long, &text);
    if is_long {
        text.clear();
        file.seek(SeekFrom::Start(length - bytes))?;
        file.take(bytes).read_to_end(&mut text)?;
        visit_lines(false, &text);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
