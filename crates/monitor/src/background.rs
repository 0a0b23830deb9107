//! [`BackgroundWriter`]: passes events to a writer on a thread of its own.

use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ronde_core::{Event, Tracker};

use crate::clock;
use crate::event_file::{EventFile, PlainLines};
use crate::event_writer::EventWriter;

/// Maximum number of events queued for the writer.
const EVENTS_MAX: usize = 16_384;
/// Longest time that [`BackgroundWriter::finish`] waits.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// Passes events, with the time of each in seconds since 1970, to an [`EventWriter`].
///
/// A thread writes, so recording never waits for a disk. The queue holds 16,384 events; further ones are dropped and
/// counted. After a failed write the remaining events are dropped and the run continues;
/// [`BackgroundWriter::problem`] returns the error.
pub struct BackgroundWriter {
    what: &'static str,
    sender: SyncSender<WriterMessage>,
    status: Arc<WriterStatus>,
}

#[derive(Default)]
struct WriterStatus {
    error: Mutex<Option<String>>,
    dropped: AtomicU64,
    reported: std::sync::atomic::AtomicBool,
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
        thread::spawn(move || write_all(writer, &receiver, &of_thread));
        Self {
            what,
            sender,
            status,
        }
    }

    /// Waits for at most five seconds until all recorded events are written, and returns whether they are.
    pub fn finish(&self) -> bool {
        let (done, wait) = sync_channel(1);
        // While the queue is full this waits for the writer, but not beyond the deadline.
        let mut message = WriterMessage::Flush(done);
        let deadline = clock::now() + FINISH_MAX;
        loop {
            match self.sender.try_send(message) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if clock::now() < deadline => {
                    message = back;
                    clock::pause(Duration::from_millis(5));
                }
                Err(_) => return false,
            }
        }
        let left = deadline.saturating_duration_since(clock::now());
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
            (Some(error), _) => format!(
                "cannot write {}: {error}; all later events are missing",
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
            .try_send(WriterMessage::Record(clock::unix_s(), event))
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

/// Runs the writing thread: flushes whenever the queue is empty.
fn write_all(
    mut writer: Box<dyn EventWriter>,
    receiver: &Receiver<WriterMessage>,
    status: &WriterStatus,
) {
    let mut result = writer.start();
    note(status, &result);
    loop {
        let message = match receiver.try_recv() {
            Ok(message) => message,
            Err(_) => {
                if result.is_ok() {
                    result = writer.flush();
                    note(status, &result);
                }
                match receiver.recv() {
                    Ok(message) => message,
                    Err(_) => return,
                }
            }
        };
        match message {
            WriterMessage::Record(t, event) if result.is_ok() => {
                result = writer.write(t, &event);
                note(status, &result);
            }
            WriterMessage::Record(..) => {
                status.dropped.fetch_add(1, Ordering::Relaxed);
            }
            WriterMessage::Flush(done) => {
                if result.is_ok() {
                    result = writer.flush();
                    note(status, &result);
                }
                // The caller may have stopped waiting.
                let _ = done.try_send(());
            }
        }
    }
}

/// Stores the first error.
fn note(status: &WriterStatus, result: &std::io::Result<()>) {
    if let Err(error) = result {
        status
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| error.to_string());
    }
}

#[cfg(test)]
mod tests;
