//! [`BackgroundWriter`]: passes events to a writer on a separate thread.

use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ronde_core::{Event, Tracker};

use crate::event_file::{EventFile, PlainLines};
use crate::event_writer::EventWriter;

/// Maximum number of events queued for the writer.
const EVENTS_MAX: usize = 16_384;
/// Longest time that [`BackgroundWriter::finish`] waits.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// The time between two attempts to continue after a failed write.
const RESUME_EVERY: Duration = Duration::from_secs(2);
/// The shortest time between two reports about writes that fail.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// Passes events, with the time of each in seconds since 1970, to an [`EventWriter`].
///
/// A thread writes, so recording never waits for a disk. The queue holds 16,384 events; further ones are dropped and
/// counted. After a failed write, events are dropped until [`EventWriter::resume`] succeeds, and the run continues;
/// [`BackgroundWriter::problem`] returns the error.
pub struct BackgroundWriter {
    what: &'static str,
    sender: SyncSender<WriterMessage>,
    status: Arc<WriterStatus>,
}

/// Receives a message about writes that fail or continue.
type WriteReport = Box<dyn Fn(&str) + Send>;

#[derive(Default)]
struct WriterStatus {
    /// The first error.
    error: Mutex<Option<String>>,
    /// Whether the newest write has failed.
    is_failing: AtomicBool,
    dropped: AtomicU64,
    reported: AtomicBool,
    report: Mutex<Option<WriteReport>>,
}

enum WriterMessage {
    Record(f64, Event),
    Flush(SyncSender<()>),
}

impl BackgroundWriter {
    /// Writes lines of JSON to any writer, for example standard output: the header of
    /// [`FormatHeader::EVENTS`](ronde_core::FormatHeader::EVENTS), then one object per event. Numbers that JSON cannot
    /// represent (NaN, infinity) are written as `null`.
    #[must_use]
    pub fn json_lines(writer: Box<dyn Write + Send>) -> Self {
        let writer = BufWriter::with_capacity(64 << 10, writer);
        Self::start("events", Box::new(PlainLines(writer)))
    }

    /// Writes to the event file of a run.
    #[must_use]
    pub fn event_file(file: EventFile) -> Self {
        Self::start("events", Box::new(file))
    }

    /// Writes to any event writer; `what` names what it writes in [`BackgroundWriter::problem`].
    #[must_use]
    pub fn start(what: &'static str, writer: Box<dyn EventWriter>) -> Self {
        let (sender, receiver) = sync_channel(EVENTS_MAX);
        let status = Arc::<WriterStatus>::default();
        let of_thread = Arc::clone(&status);
        thread::spawn(move || WriterThread::new(writer, what, &of_thread).run(&receiver));
        Self {
            what,
            sender,
            status,
        }
    }

    /// Passes a message to `report`, from the writing thread, when a write fails, at most once a minute, and when
    /// writing continues after that.
    #[must_use]
    pub fn reporting(self, report: impl Fn(&str) + Send + 'static) -> Self {
        let mut slot = (self.status.report.lock()).unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Box::new(report));
        drop(slot);
        self
    }

    /// Waits for at most five seconds until all recorded events are written, and returns whether they are.
    pub fn finish(&self) -> bool {
        let (done, wait) = sync_channel(1);
        // While the queue is full this waits for the writer, but not beyond the deadline.
        let mut message = WriterMessage::Flush(done);
        let deadline = ronde_clock::now() + FINISH_MAX;
        loop {
            match self.sender.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if ronde_clock::now() < deadline => {
                    message = back;
                    ronde_clock::pause(Duration::from_millis(5));
                }
                Err(_) => return false,
            }
        }
        let left = deadline.saturating_duration_since(ronde_clock::now());
        let written = wait.recv_timeout(left).is_ok();
        written && self.error().is_none() && self.status.dropped.load(Ordering::Relaxed) == 0
    }

    /// Returns a description of the first error, once: later calls return `None`.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let dropped = self.status.dropped.load(Ordering::Relaxed);
        let problem = match (self.error(), dropped) {
            (None, 0) => return None,
            (None, n) => format!(
                "{n} events were not written as {}: the writer could not keep up",
                self.what
            ),
            (Some(error), _) if self.status.is_failing.load(Ordering::Relaxed) => format!(
                "cannot write {}: {error}; all later events are missing",
                self.what
            ),
            (Some(error), n) => format!(
                "could not write {} for a time: {error}; {n} events are missing",
                self.what
            ),
        };
        (!self.status.reported.swap(true, Ordering::Relaxed)).then_some(problem)
    }

    fn error(&self) -> Option<String> {
        self.status
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Tracker for BackgroundWriter {
    fn record(&self, event: Event) {
        if self
            .sender
            .try_send(WriterMessage::Record(ronde_clock::unix_s(), event))
            .is_err()
        {
            self.status.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The writing thread.
struct WriterThread<'a> {
    writer: Box<dyn EventWriter>,
    what: &'static str,
    status: &'a WriterStatus,
    /// When to try to continue, while writes fail.
    resume_at: Option<Instant>,
    /// When a failure was last reported, and whether it is the current one.
    reported: Option<(Instant, bool)>,
}

impl<'a> WriterThread<'a> {
    fn new(writer: Box<dyn EventWriter>, what: &'static str, status: &'a WriterStatus) -> Self {
        Self {
            writer,
            what,
            status,
            resume_at: None,
            reported: None,
        }
    }

    /// Writes until the last sender is dropped; flushes whenever the queue is empty.
    fn run(mut self, receiver: &Receiver<WriterMessage>) {
        let started = self.writer.start();
        self.note(started);
        loop {
            let message = match receiver.try_recv() {
                Ok(message) => message,
                Err(_) => {
                    self.flush();
                    match receiver.recv() {
                        Ok(message) => message,
                        Err(_) => return,
                    }
                }
            };
            match message {
                WriterMessage::Record(t, event) => self.write(t, &event),
                WriterMessage::Flush(done) => {
                    self.resume(ronde_clock::unix_s());
                    self.flush();
                    // The caller may have stopped waiting.
                    let _ = done.try_send(());
                }
            }
        }
    }

    fn write(&mut self, t: f64, event: &Event) {
        if self.resume_at.is_some_and(|at| ronde_clock::now() >= at) {
            self.resume(t);
        }
        if self.resume_at.is_none() {
            let written = self.writer.write(t, event);
            return self.note(written);
        }
        self.writer.skip(t, event);
        self.status.dropped.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(&mut self) {
        if self.resume_at.is_none() {
            let flushed = self.writer.flush();
            self.note(flushed);
        }
    }

    /// Tries to continue if writes fail.
    fn resume(&mut self, t: f64) {
        if self.resume_at.is_none() {
            return;
        }
        match self.writer.resume(t) {
            Ok(()) => {
                self.resume_at = None;
                self.status.is_failing.store(false, Ordering::Relaxed);
                let dropped = self.status.dropped.load(Ordering::Relaxed);
                if let Some((_, is_current @ true)) = &mut self.reported {
                    *is_current = false;
                    let what = self.what;
                    self.report(&format!(
                        "can write {what} again; {dropped} events are missing"
                    ));
                }
            }
            Err(_) => self.resume_at = Some(ronde_clock::now() + RESUME_EVERY),
        }
    }

    /// Stores the first error, and reports one after which writes fail.
    fn note(&mut self, result: std::io::Result<()>) {
        let Err(error) = result else {
            return;
        };
        self.resume_at = Some(ronde_clock::now() + RESUME_EVERY);
        self.status.is_failing.store(true, Ordering::Relaxed);
        let (what, now) = (self.what, ronde_clock::now());
        if (self.reported).is_none_or(|(at, _)| now >= at + REPORT_EVERY) {
            self.reported = Some((now, true));
            self.report(&format!(
                "cannot write {what}: {error}; training continues, and later events are missing until it is possible again"
            ));
        }
        (self.status.error.lock())
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| error.to_string());
    }

    fn report(&self, message: &str) {
        let report = self.status.report.lock();
        if let Some(report) = &*report.unwrap_or_else(PoisonError::into_inner) {
            report(message);
        }
    }
}

#[cfg(test)]
mod tests;
