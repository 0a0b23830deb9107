//! [`EventFile`]: the event file of a run over all its attempts, bounded in size without losing the totals.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ronde_core::{Event, FormatHeader};
use serde::Serialize;

use crate::error::MonitorError;
use crate::event_line::EventLine;
use crate::event_line::parse_event_line;
use crate::event_writer::EventWriter;
use crate::view::RunView;

/// The settings of an event file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventFileSettings {
    /// Only the events of every this many steps are written; the totals cover all steps.
    pub every_steps: u64,
    /// The largest size of the file and its predecessor together, in bytes; 0: not limited.
    pub bytes_max: u64,
}

impl Default for EventFileSettings {
    fn default() -> Self {
        Self {
            every_steps: 1,
            bytes_max: 0,
        }
    }
}

/// Lines of JSON for any writer, without a limit.
pub(crate) struct PlainLines(pub(crate) BufWriter<Box<dyn Write + Send>>);

impl EventWriter for PlainLines {
    fn start(&mut self) -> std::io::Result<()> {
        write_line(&mut self.0, &FormatHeader::of(FormatHeader::EVENTS)).map(|_| ())
    }

    fn write(&mut self, t: f64, event: &Event) -> std::io::Result<()> {
        write_line(&mut self.0, &EventLine { t, event }).map(|_| ())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Writes a value as a line of JSON and returns its length in bytes.
fn write_line(writer: &mut impl Write, value: &impl Serialize) -> std::io::Result<u64> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line)?;
    Ok(line.len() as u64)
}

/// The event file of a run.
///
/// A resumed run appends to the file of its earlier attempts. When the file reaches half of the limit, it is renamed to
/// `events.1.jsonl` (for `events.jsonl`) and a new one begins with an [`Event::RunTotals`], so that the totals of the
/// whole run can be computed from the newest file alone. A new file without these totals, which a crash leaves, is
/// continued from the renamed one.
pub struct EventFile {
    path: PathBuf,
    settings: EventFileSettings,
    writer: BufWriter<File>,
    /// The size of the current file in bytes.
    bytes: u64,
    /// The state of the run from all events, including those that are not written.
    view: RunView,
    clock: RunClock,
}

/// A longer time between two events of an attempt, in seconds, means that the clock was set: some event is written in each
/// step, and steps take less.
const CLOCK_WAS_SET_S: f64 = 12.0 * 3600.0;

/// The duration of a run over all its attempts, from the times of its events.
#[derive(Debug, Clone, Copy, Default)]
struct RunClock {
    /// Seconds before `since`.
    earlier_s: f64,
    /// The time from which the current period is measured.
    since: Option<f64>,
    last: f64,
}

impl RunClock {
    fn tick(&mut self, t: f64, event: &Event) {
        if self.since.is_some() && !(0.0..CLOCK_WAS_SET_S).contains(&(t - self.last)) {
            // The time between the two events is unknown.
            self.earlier_s = self.elapsed_s();
            self.since = Some(t);
        }
        match event {
            Event::AttemptStarted { .. } => {
                self.earlier_s = self.elapsed_s();
                self.since = Some(t);
            }
            Event::RunTotals(totals) => {
                self.earlier_s = totals.elapsed_s;
                self.since = Some(t);
            }
            _ => {
                self.since.get_or_insert(t);
            }
        }
        self.last = t;
    }

    fn elapsed_s(&self) -> f64 {
        let current = self.since.map_or(0.0, |since| self.last - since);
        self.earlier_s + current.max(0.0)
    }
}

impl EventFile {
    /// Creates the file of a new run, and removes the files of an earlier run at the same path.
    ///
    /// # Errors
    /// [`MonitorError::Create`] if the file cannot be created.
    pub fn create(path: &Path, settings: EventFileSettings) -> Result<Self, MonitorError> {
        let file = remove(&previous(path))
            .and_then(|()| remove(path))
            .and_then(|()| File::create_new(path))
            .map_err(|cause| create_error(path, cause))?;
        Ok(Self {
            path: path.to_owned(),
            settings,
            writer: BufWriter::with_capacity(64 << 10, file),
            bytes: 0,
            view: RunView::default(),
            clock: RunClock::default(),
        })
    }

    /// Opens the file of a resumed run to append to it, and reads the earlier attempts. An incomplete last line, which
    /// a crash leaves, is removed. Without an earlier file it creates one. If a crash has left a new file without totals,
    /// they are computed from the previous file and written first.
    ///
    /// # Errors
    /// [`MonitorError::Create`] if the file cannot be opened or read.
    pub fn append(path: &Path, settings: EventFileSettings) -> Result<Self, MonitorError> {
        let (mut view, mut clock) = (RunView::default(), RunClock::default());
        let mut continues_previous = false;
        let mut open = || -> std::io::Result<(File, u64)> {
            if path.is_symlink() {
                return Err(std::io::Error::other("it is a symbolic link"));
            }
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            let mut apply = |t: f64, event: &Event| {
                view.apply(event);
                clock.tick(t, event);
            };
            continues_previous = !has_events(&file)? && previous(path).is_file();
            if continues_previous {
                replay(&File::open(previous(path))?, &mut apply)?;
                file.set_len(0)?;
            }
            file.rewind()?;
            let complete = replay(&file, &mut apply)?;
            file.set_len(complete)?;
            file.seek(SeekFrom::End(0))?;
            Ok((file, complete))
        };
        let (file, bytes) = open().map_err(|cause| create_error(path, cause))?;
        view.earlier_s = clock.elapsed_s();
        let mut file = Self {
            path: path.to_owned(),
            settings,
            writer: BufWriter::with_capacity(64 << 10, file),
            bytes,
            view,
            clock,
        };
        if continues_previous {
            let last = file.clock.last;
            file.begin_with_totals(last)
                .map_err(|cause| create_error(path, cause))?;
        }
        Ok(file)
    }

    /// Appends the events of the earlier attempts to `events.1.jsonl` and begins a new file with their totals. For jobs
    /// whose coordinator writes the new file. A crash in between leaves both files complete.
    ///
    /// # Errors
    /// [`MonitorError::Create`] if a file cannot be read or written.
    pub fn archive(path: &Path) -> Result<(), MonitorError> {
        let mut file = Self::append(path, EventFileSettings::default())?;
        let attempt = file.next_attempt();
        let t = ronde_clock::unix_s();
        let mut archive = || {
            append_file(path, &previous(path))?;
            file.begin_new(t, false)?;
            file.write(t, &attempt)?;
            file.flush()
        };
        archive().map_err(|cause| create_error(path, cause))
    }

    /// Returns the state of the run after the events so far.
    #[must_use]
    pub fn view(&self) -> &RunView {
        &self.view
    }

    /// Returns the event that begins the next attempt.
    #[must_use]
    pub fn next_attempt(&self) -> Event {
        Event::AttemptStarted {
            attempt: self.view.attempt.max(1) + 1,
        }
    }

    fn is_written(&self, event: &Event) -> bool {
        let (Event::StepCommitted { step, .. } | Event::StepTimes { step, .. }) = event else {
            return true;
        };
        let next = step.0.saturating_add(1);
        let every = self.settings.every_steps.max(1);
        next.is_multiple_of(every) || next == self.view.steps
    }

    fn write_totals(&mut self, t: f64) -> std::io::Result<()> {
        let totals = Event::RunTotals(Box::new(self.view.totals(self.clock.elapsed_s())));
        self.bytes += write_line(&mut self.writer, &EventLine { t, event: &totals })?;
        Ok(())
    }

    /// Renames the file and begins a new one with the totals.
    fn rotate(&mut self, t: f64) -> std::io::Result<()> {
        self.writer.flush()?;
        self.begin_new(t, true)
    }

    /// Begins a new file with the totals, which replaces the one at the path once they are written. `keeps_current`: the one at the
    /// path becomes the previous one. After an error, the current file continues.
    fn begin_new(&mut self, t: f64, keeps_current: bool) -> std::io::Result<()> {
        let next = self.path.with_extension("next");
        remove(&next)?;
        let writer = BufWriter::with_capacity(64 << 10, File::create_new(&next)?);
        let (current, bytes) = (std::mem::replace(&mut self.writer, writer), self.bytes);
        self.bytes = 0;
        let begun = self.begin_with_totals(t).and_then(|()| {
            let previous = previous(&self.path);
            if keeps_current {
                std::fs::rename(&self.path, &previous)?;
            }
            let renamed = std::fs::rename(&next, &self.path);
            if renamed.is_err() && keeps_current {
                std::fs::rename(&previous, &self.path)?;
            }
            renamed
        });
        if begun.is_err() {
            let failed = std::mem::replace(&mut self.writer, current);
            self.bytes = bytes;
            // Without another attempt to write its lines.
            drop(failed.into_parts());
        }
        begun
    }

    /// Ends an incomplete last line, which readers then skip.
    fn end_line(&mut self) -> std::io::Result<()> {
        let mut last = [b'\n'];
        let file = File::open(&self.path)?;
        if let Some(at) = file.metadata()?.len().checked_sub(1) {
            file.read_exact_at(&mut last, at)?;
        }
        if last != [b'\n'] {
            self.writer.write_all(b"\n")?;
            self.bytes += 1;
        }
        Ok(())
    }

    /// Writes the header and the totals of a new file completely, so that it can be continued without the previous one.
    fn begin_with_totals(&mut self, t: f64) -> std::io::Result<()> {
        self.start()?;
        self.write_totals(t)?;
        self.writer.flush()
    }
}

impl EventWriter for EventFile {
    fn start(&mut self) -> std::io::Result<()> {
        if self.bytes == 0 {
            let header = FormatHeader::of(FormatHeader::EVENTS);
            self.bytes += write_line(&mut self.writer, &header)?;
        }
        Ok(())
    }

    fn write(&mut self, t: f64, event: &Event) -> std::io::Result<()> {
        self.view.apply(event);
        self.clock.tick(t, event);
        if !self.is_written(event) {
            return Ok(());
        }
        self.bytes += write_line(&mut self.writer, &EventLine { t, event })?;
        let thins = self.settings.every_steps > 1;
        if thins
            && matches!(
                event,
                Event::StepCommitted { .. } | Event::RunFinished { .. }
            )
        {
            self.write_totals(t)?;
        }
        if self.settings.bytes_max > 0 && self.bytes >= self.settings.bytes_max / 2 {
            self.rotate(t)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }

    fn skip(&mut self, t: f64, event: &Event) {
        self.view.apply(event);
        self.clock.tick(t, event);
    }

    fn resume(&mut self, t: f64) -> std::io::Result<()> {
        self.writer.flush()?;
        self.end_line()?;
        self.start()?;
        // They cover the events that are missing.
        self.write_totals(t)?;
        self.writer.flush()
    }
}

/// Appends a file to another one, which is replaced once the result is complete.
fn append_file(from: &Path, to: &Path) -> std::io::Result<()> {
    let whole = to.with_extension("whole");
    remove(&whole)?;
    let mut writer = File::create_new(&whole)?;
    match File::open(to) {
        Ok(mut earlier) => drop(std::io::copy(&mut earlier, &mut writer)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    std::io::copy(&mut File::open(from)?, &mut writer)?;
    std::fs::rename(whole, to)
}

/// Calls `visit` for each event in the files of a run, with its Unix time in seconds, oldest first.
///
/// # Errors
/// A file cannot be read; the previous part need not exist.
pub(crate) fn read_events(path: &Path, visit: &mut dyn FnMut(f64, &Event)) -> std::io::Result<()> {
    match File::open(previous(path)) {
        Ok(earlier) => drop(replay(&earlier, visit)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    replay(&File::open(path)?, visit)?;
    Ok(())
}

/// Returns whether a file has a complete event.
fn has_events(file: &File) -> std::io::Result<bool> {
    let mut has_events = false;
    replay(file, &mut |_, _| has_events = true)?;
    Ok(has_events)
}

/// Reads all complete lines after the header and returns their length in bytes. Lines of a newer version are skipped.
fn replay(file: &File, visit: &mut dyn FnMut(f64, &Event)) -> std::io::Result<u64> {
    let mut reader = BufReader::new(file);
    let (mut complete, mut line) = (0, Vec::new());
    loop {
        line.clear();
        let length = reader.read_until(b'\n', &mut line)?;
        if line.pop() != Some(b'\n') {
            return Ok(complete);
        }
        complete += length as u64;
        if let Some((t, event)) = parse_event_line(&line) {
            visit(t, &event);
        }
    }
}

/// Returns the path of the previous part of an event file: `events.1.jsonl` for `events.jsonl`.
#[must_use]
pub fn previous(path: &Path) -> PathBuf {
    let extension = path.extension().unwrap_or_default().to_string_lossy();
    path.with_extension(format!("1.{extension}"))
}

/// Removes a file, if there is one, so that a symbolic link is replaced and never followed.
fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn create_error(path: &Path, cause: std::io::Error) -> MonitorError {
    MonitorError::Create {
        path: path.to_owned(),
        cause,
    }
}

#[cfg(test)]
mod tests;
