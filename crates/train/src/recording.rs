//! `RecordingThread`: writes the activity of this worker into the folder of its run, while a recording is requested.
//!
//! A file in that folder requests a recording ([`RecordingRequest`]), so it can be started and stopped while the run is under way. The
//! thread looks for it five times a second. During a recording it moves spans from the rings of the computing thread, of the background threads and of
//! the group's flight recorder to a file, twenty times a second; the recorded threads never wait for it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ronde_comm::ProcessGroup;
use ronde_core::background_spans::BackgroundSpans;
use ronde_core::recording::{RecordingLine, RecordingSection};
use ronde_core::spans::{SpanRecorder, TimeSpan};
use ronde_core::{Collectives, Event, Rank, Tracker};

use crate::clock_alignment::ClockAlignment;
use crate::flight_records::FlightRecordWriter;

/// The allowed difference between the clocks of hosts, in milliseconds.
const CLOCK_SKEW_MS: u64 = 3_600_000;
/// How often the thread looks for a request.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often spans are written.
const WRITE_EVERY: Duration = Duration::from_millis(50);
/// Largest file of a worker; later spans are dropped and counted.
const FILE_BYTES_MAX: u64 = 32 << 20;
/// The name of the file that requests a recording.
const REQUEST: &str = "request";
/// The end of the names of the files with spans.
const SPANS: &str = "spans";

/// A request to record a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordingRequest {
    /// The time of the request in milliseconds since 1970, which identifies the recording.
    pub id: u64,
    /// The time at which the recording ends, in milliseconds since 1970; `None`: when it is stopped.
    pub until_ms: Option<u64>,
}

impl RecordingRequest {
    /// The name of the folder of a recording, inside the run's folder.
    pub const FOLDER: &str = "trace";

    /// Requests a recording of the run in a folder, for a time or until [`RecordingRequest::withdraw`]. Removes the previous
    /// recording.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn submit(run: &Path, limit: Option<Duration>) -> io::Result<Self> {
        Self::remove(run)?;
        let folder = run.join(Self::FOLDER);
        fs::create_dir_all(&folder)?;
        let id = ronde_clock::unix_ms();
        let until_ms = limit.map(|limit| id.saturating_add(limit.as_millis() as u64));
        // A worker never reads a part of it.
        let temporary = folder.join(format!("{REQUEST}.new"));
        fs::write(&temporary, format!("{id} {}\n", until_ms.unwrap_or(0)))?;
        fs::rename(&temporary, folder.join(REQUEST))?;
        Ok(Self { id, until_ms })
    }

    /// Ends a recording. Returns whether there was one.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn withdraw(run: &Path) -> io::Result<bool> {
        let was_active = Self::read(run).is_some_and(|request| request.is_active());
        match fs::remove_file(run.join(Self::FOLDER).join(REQUEST)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(was_active),
        }
    }

    /// Removes the request and the files of the last recording.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove(run: &Path) -> io::Result<()> {
        Self::withdraw(run)?;
        let entries = match fs::read_dir(run.join(Self::FOLDER)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == SPANS) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// Returns the request in a run's folder; `None` if there is none or it is not valid.
    #[must_use]
    pub fn read(run: &Path) -> Option<Self> {
        let text = fs::read_to_string(run.join(Self::FOLDER).join(REQUEST)).ok()?;
        let (id, until_ms) = text.trim().split_once(' ')?;
        let until_ms = until_ms.parse().ok()?;
        Some(Self {
            id: id.parse().ok()?,
            until_ms: (until_ms != 0).then_some(until_ms),
        })
    }

    /// Returns whether the recording has not ended yet. One with a limit has also ended if the clock was set back since:
    /// it would last too long.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_active_at(ronde_clock::unix_ms())
    }

    fn is_active_at(&self, now_ms: u64) -> bool {
        let is_before_start = now_ms.saturating_add(CLOCK_SKEW_MS) < self.id;
        self.until_ms
            .is_none_or(|until| now_ms < until && !is_before_start)
    }
}

/// The state that a worker's threads share with the thread that writes its recording.
#[derive(Debug)]
pub(crate) struct WorkerRecorder {
    pub(crate) spans: Arc<SpanRecorder>,
    /// The activity of the threads of the loader and of checkpoints.
    pub(crate) background: Arc<BackgroundSpans>,
    alignment: Mutex<ClockAlignment>,
}

impl Default for WorkerRecorder {
    fn default() -> Self {
        Self {
            spans: Arc::new(SpanRecorder::new(ronde_clock::host_ns)),
            background: Arc::new(BackgroundSpans::new(ronde_clock::host_ns)),
            alignment: Mutex::default(),
        }
    }
}

impl WorkerRecorder {
    pub(crate) fn align(&self, alignment: ClockAlignment) {
        *self.lock() = alignment;
    }

    /// Starts or stops recording.
    fn switch(&self, is_on: bool) {
        self.spans.switch(is_on);
        self.background.switch(is_on);
    }

    /// Moves the spans of all threads to `spans`; returns the number of those that were dropped.
    fn drain(&self, spans: &mut Vec<TimeSpan>) -> u64 {
        self.spans.drain(spans) + self.background.drain(spans)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ClockAlignment> {
        self.alignment
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request to write all spans now; the answer follows when they are written.
type FlushRequest = Sender<()>;

/// The thread that writes the recordings of a worker; ends when dropped, after the last spans are written.
pub(crate) struct RecordingThread {
    requests: Option<Sender<FlushRequest>>,
    thread: Option<JoinHandle<()>>,
}

impl RecordingThread {
    /// Starts the thread. A worker whose system starts no more threads is not recorded.
    pub(crate) fn start(
        run: PathBuf,
        recorder: Arc<WorkerRecorder>,
        flight_records: Arc<FlightRecordWriter>,
        tracker: Arc<dyn Tracker>,
    ) -> Self {
        let (requests, received) = mpsc::channel::<FlushRequest>();
        let thread = std::thread::Builder::new().name("ronde-trace".to_owned());
        let run = move || {
            let mut writer = RecordingWriter {
                run,
                recorder,
                flight_records,
                open: None,
                failed: None,
            };
            let mut answer: Option<FlushRequest> = None;
            let mut is_last = false;
            loop {
                if let Err(error) = writer.turn(is_last) {
                    tracker.record(Event::Notice {
                        rank: writer.rank(),
                        message: format!(
                            "cannot record this worker: {error}; training continues without it"
                        ),
                    });
                }
                if let Some(answer) = answer.take() {
                    // The worker may have ended meanwhile.
                    let _ignored = answer.send(());
                }
                if is_last {
                    break;
                }
                // A recording of the whole run begins as soon as there is a group.
                let pause = match (&writer.open, writer.flight_records.group()) {
                    (_, None) => WRITE_EVERY / 10,
                    (Some(_), _) => WRITE_EVERY,
                    (None, _) => LOOK_EVERY,
                };
                match received.recv_timeout(pause) {
                    Ok(request) => answer = Some(request),
                    Err(error) => is_last = error == RecvTimeoutError::Disconnected,
                }
            }
        };
        Self {
            requests: Some(requests),
            thread: thread.spawn(run).ok(),
        }
    }
}

impl RecordingThread {
    /// Writes all spans so far. A worker calls it before its farewell, after which the job may end its process at any time.
    pub(crate) fn flush(&self) {
        let (request, answer) = mpsc::channel();
        let sent = self
            .requests
            .as_ref()
            .is_some_and(|requests| requests.send(request).is_ok());
        if sent {
            // An error means that the thread has ended, so there is nothing to wait for.
            let _ignored = answer.recv();
        }
    }
}

impl Drop for RecordingThread {
    fn drop(&mut self) {
        self.requests.take();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has written nothing more.
            let _ended = thread.join();
        }
    }
}

/// The state of a [`RecordingThread`].
struct RecordingWriter {
    run: PathBuf,
    recorder: Arc<WorkerRecorder>,
    flight_records: Arc<FlightRecordWriter>,
    open: Option<OpenRecording>,
    /// A recording whose file cannot be written.
    failed: Option<u64>,
}

/// A recording under way.
struct OpenRecording {
    id: u64,
    begun_ns: u64,
    file: File,
    bytes: u64,
    dropped: u64,
    section: Option<RecordingSection>,
    /// The position in the group's flight recorder.
    position: u64,
    /// Kept from one turn to the next, like `text`, so that their memory is allocated once.
    spans: Vec<TimeSpan>,
    text: String,
}

impl RecordingWriter {
    fn rank(&self) -> Option<Rank> {
        let group = self.flight_records.group()?;
        Some(Rank(group.rank().0))
    }

    /// Starts, continues or ends a recording.
    fn turn(&mut self, is_last: bool) -> io::Result<()> {
        let request = RecordingRequest::read(&self.run).filter(RecordingRequest::is_active);
        let request = request.filter(|request| self.failed != Some(request.id));
        let open = self.open.as_ref().map(|open| open.id);
        let result = match (open, request) {
            (None, None) => Ok(()),
            (None, Some(request)) => self.begin(request.id),
            (Some(id), Some(request)) if id == request.id && !is_last => self.write(false),
            _ => {
                let written = self.write(true);
                self.end();
                written
            }
        };
        if result.is_err() {
            self.failed = self
                .open
                .as_ref()
                .map(|open| open.id)
                .or(request.map(|r| r.id));
            self.end();
        }
        result
    }

    fn begin(&mut self, id: u64) -> io::Result<()> {
        let Some(group) = self.flight_records.group() else {
            // This worker has no rank yet.
            return Ok(());
        };
        let folder = self.run.join(RecordingRequest::FOLDER);
        let name = format!("rank-{}.{}.{SPANS}", group.rank(), std::process::id());
        let mut options = OpenOptions::new();
        let file = options.create(true).append(true).open(folder.join(name))?;
        let mut text = String::new();
        RecordingLine::Header.append_to(&mut text);
        // Spans of an earlier recording and earlier collectives are not part of this one.
        let mut spans = Vec::new();
        self.recorder.drain(&mut spans);
        spans.clear();
        self.open = Some(OpenRecording {
            id,
            begun_ns: ronde_clock::host_ns(),
            file,
            bytes: 0,
            dropped: 0,
            section: None,
            position: 0,
            spans,
            text,
        });
        self.recorder.switch(true);
        Ok(())
    }

    fn end(&mut self) {
        self.recorder.switch(false);
        self.open = None;
    }

    /// Writes the spans since the last turn.
    fn write(&mut self, is_last: bool) -> io::Result<()> {
        let (recorder, group) = (&self.recorder, self.flight_records.group());
        let Some(open) = &mut self.open else {
            return Ok(());
        };
        if let Some(group) = group {
            let section = section(open.id, &group, *recorder.lock());
            if open.section != Some(section) {
                let is_new_group =
                    open.section.map(|old| old.generation) != Some(section.generation);
                if is_new_group {
                    open.position = 0;
                }
                open.section = Some(section);
                RecordingLine::Section(section).append_to(&mut open.text);
            }
            let (position, overwritten) = group.ended_since(open.position, &mut open.spans);
            // The collectives before the recording are not included.
            open.dropped += if open.position == 0 { 0 } else { overwritten };
            open.position = position;
        }
        open.dropped += recorder.drain(&mut open.spans);
        for span in open.spans.drain(..) {
            if open.bytes + open.text.len() as u64 >= FILE_BYTES_MAX {
                open.dropped += 1;
            } else if span.begun_ns >= open.begun_ns {
                RecordingLine::Span(span).append_to(&mut open.text);
            }
        }
        if is_last && open.dropped > 0 {
            RecordingLine::Dropped(open.dropped).append_to(&mut open.text);
        }
        open.file.write_all(open.text.as_bytes())?;
        open.bytes += open.text.len() as u64;
        open.text.clear();
        Ok(())
    }
}

/// Returns the section of a worker in its present group.
fn section(recording: u64, group: &ProcessGroup, alignment: ClockAlignment) -> RecordingSection {
    RecordingSection {
        recording,
        rank: Rank(group.rank().0),
        generation: group.config().generation,
        pid: std::process::id(),
        offset_ns: alignment.offset_ns,
        error_ns: alignment.error_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_with_a_limit_ends_in_time_and_when_the_clock_is_set_back() {
        let day = 86_400_000;
        let request = RecordingRequest {
            id: 10 * day,
            until_ms: Some(10 * day + 5_000),
        };
        let active = |now_ms: u64| request.is_active_at(now_ms);
        assert!(active(10 * day) && active(10 * day + 4_999));
        // Another host's clock is late.
        assert!(active(10 * day - 60_000));
        assert!(!active(10 * day + 5_000) && !active(11 * day) && !active(9 * day));
        let unlimited = RecordingRequest {
            until_ms: None,
            ..request
        };
        assert!(unlimited.is_active_at(9 * day));
    }
}
