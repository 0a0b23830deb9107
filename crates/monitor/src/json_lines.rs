//! [`JsonLines`]: events as lines of JSON, in a file or on standard output.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use ronde_core::{Event, FormatHeader, Tracker};
use serde::Serialize;

use crate::clock;
use crate::error::MonitorError;

/// Events that wait for the writer at most.
const EVENTS_MAX: usize = 16_384;
/// How long [`JsonLines::finish`] waits.
const FINISH_MAX: Duration = Duration::from_secs(5);

/// Writes the header of [`FormatHeader::EVENTS`], then one JSON object per event, with `t`, the
/// time in seconds since 1970, before the event's own fields.
///
/// A thread writes, so that recording never waits for a disk. When a write fails the rest of the
/// events is dropped and the run goes on; [`JsonLines::problem`] tells. A number that JSON does not
/// know (NaN, infinity) is written as `null`.
pub struct JsonLines {
    sender: SyncSender<Message>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    error: Mutex<Option<String>>,
    dropped: AtomicU64,
    reported: std::sync::atomic::AtomicBool,
}

enum Message {
    Record(f64, Event),
    Flush(SyncSender<()>),
}

#[derive(Serialize)]
struct Line<'a> {
    t: f64,
    #[serde(flatten)]
    event: &'a Event,
}

impl JsonLines {
    /// A new file at `path`; what was there is replaced.
    ///
    /// # Errors
    /// [`MonitorError::Create`] when it cannot be made.
    pub fn create(path: &Path) -> Result<Self, MonitorError> {
        let file = File::create(path).map_err(|cause| MonitorError::Create {
            path: path.to_owned(),
            cause,
        })?;
        Ok(Self::new(Box::new(file)))
    }

    /// Lines to any writer, standard output for instance.
    #[must_use]
    pub fn new(writer: Box<dyn Write + Send>) -> Self {
        let (sender, receiver) = sync_channel(EVENTS_MAX);
        let shared = Arc::<Shared>::default();
        let state = Arc::clone(&shared);
        thread::spawn(move || write_all(writer, &receiver, &state));
        Self { sender, shared }
    }

    /// Waits until all recorded events are written, at most five seconds; whether they are.
    pub fn finish(&self) -> bool {
        let (done, wait) = sync_channel(1);
        // A full queue makes this wait for the writer, but never for longer than it takes to
        // notice that the writer stands still.
        let mut message = Message::Flush(done);
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
        written && self.error().is_none() && self.shared.dropped.load(Ordering::Relaxed) == 0
    }

    /// What went wrong, in one sentence, told once.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        let problem = match (self.error(), dropped) {
            (None, 0) => return None,
            (None, n) => format!("{n} events are missing: the writer could not keep up"),
            (Some(error), _) => {
                format!("writing events failed ({error}); all events after that are missing")
            }
        };
        (!self.shared.reported.swap(true, Ordering::Relaxed)).then_some(problem)
    }

    fn error(&self) -> Option<String> {
        self.shared
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Tracker for JsonLines {
    fn record(&self, event: Event) {
        if self
            .sender
            .try_send(Message::Record(clock::unix_s(), event))
            .is_err()
        {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for JsonLines {
    fn drop(&mut self) {
        self.finish();
    }
}

/// The writing thread: flushes whenever nothing waits.
fn write_all(writer: Box<dyn Write + Send>, receiver: &Receiver<Message>, shared: &Shared) {
    let mut writer = BufWriter::with_capacity(64 << 10, writer);
    let mut result = write_line(&mut writer, &FormatHeader::of(FormatHeader::EVENTS));
    note(shared, &result);
    loop {
        let message = match receiver.try_recv() {
            Ok(message) => message,
            Err(_) => {
                if result.is_ok() {
                    result = writer.flush();
                    note(shared, &result);
                }
                match receiver.recv() {
                    Ok(message) => message,
                    Err(_) => return,
                }
            }
        };
        match message {
            Message::Record(t, event) if result.is_ok() => {
                result = write_line(&mut writer, &Line { t, event: &event });
                note(shared, &result);
            }
            Message::Record(..) => {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
            }
            Message::Flush(done) => {
                if result.is_ok() {
                    result = writer.flush();
                    note(shared, &result);
                }
                // Nobody waits any more: then nobody needs to know.
                let _ = done.try_send(());
            }
        }
    }
}

fn write_line(writer: &mut impl Write, value: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *writer, value)?;
    writer.write_all(b"\n")
}

/// Keeps the first error.
fn note(shared: &Shared, result: &std::io::Result<()>) {
    if let Err(error) = result {
        shared
            .error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| error.to_string());
    }
}

#[cfg(test)]
mod tests;
