//! The results of a run at an address: progress from its events, the output of a rank, and copies, on any machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ronde::environment;
use ronde_core::{Event, Tracker};
use ronde_monitor::{Terminal, Verbosity, parse_event_line};
use ronde_store::{Address, StoreError};
use ronde_submit::{LogRequest, SubmitError};
use ronde_train::results::StoredResults;

/// Interval at which growing results are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Returns whether an argument is an address, not the name of a job.
pub(super) fn is_address(text: &str) -> bool {
    text.contains("://")
}

/// Opens the results at an address.
pub(super) fn open(address: &str) -> Result<StoredResults, SubmitError> {
    let parsed: Result<Address, StoreError> = address.parse();
    let parsed = parsed.map_err(|error| failed(address, &error))?;
    let opened = StoredResults::open(&parsed, &environment::store_settings());
    opened.map_err(|error| failed(address, &error))
}

/// Returns the error of a store.
pub(super) fn failed(address: &str, error: &StoreError) -> SubmitError {
    SubmitError::Host {
        host: address.to_owned(),
        problem: error.to_string(),
        help: None,
        is_temporary: error.recovery() == ronde_core::Recovery::Retry,
    }
}

/// Prints the progress of a run from its events, or the output of a rank; with `follow` until the run has ended.
pub(super) fn logs(address: &str, request: LogRequest) -> Result<(), SubmitError> {
    let stored = open(address)?;
    let mut position = 0;
    let terminal = Terminal::plain(Box::new(std::io::stdout()), Verbosity::Normal);
    let mut progress = EventProgress::default();
    loop {
        let events = stored.events().map_err(|error| failed(address, &error))?;
        let has_events = events.is_some();
        let is_over = progress.read(&events.unwrap_or_default(), &mut |event| {
            if request.rank.is_none() {
                terminal.record(event);
            }
        });
        if let Some(rank) = request.rank {
            let log = stored
                .rank_log(rank)
                .map_err(|error| failed(address, &error))?;
            if log.is_none() && (!request.follow || is_over) {
                return Err(SubmitError::Invalid {
                    problem: format!("rank {rank} has printed nothing"),
                    help: format!("`ronde logs {address}` without `--rank` shows progress"),
                });
            }
            position = print_from(&log.unwrap_or_default(), position)?;
        } else if !has_events && !request.follow {
            return Err(SubmitError::Invalid {
                problem: format!("there is no run at {address}"),
                help: "pass the address that `run.output` of the run has".to_owned(),
            });
        }
        if is_over || !request.follow {
            terminal.finish();
            return Ok(());
        }
        pause();
    }
}

/// Prints what is new in a growing text, and returns its length. A text that is shorter has been replaced.
fn print_from(text: &[u8], position: usize) -> Result<usize, SubmitError> {
    let new = text.get(position..).unwrap_or(text);
    let mut out = std::io::stdout();
    let written = out.write_all(new).and_then(|()| out.flush());
    written.map_err(|cause| SubmitError::File {
        action: "write",
        path: PathBuf::from("the standard output"),
        cause,
    })?;
    Ok(text.len())
}

/// The part of an event file that has been read.
#[derive(Default)]
struct EventProgress {
    bytes: usize,
    is_over: bool,
}

impl EventProgress {
    /// Passes on the events of complete lines that are new. Returns whether the run has ended.
    fn read(&mut self, text: &[u8], pass: &mut dyn FnMut(Event)) -> bool {
        if text.len() < self.bytes {
            // The file was rotated.
            self.bytes = 0;
        }
        let end = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        for line in text[self.bytes.min(end)..end].split(|byte| *byte == b'\n') {
            if let Some((_, event)) = parse_event_line(line) {
                self.is_over = match &event {
                    Event::RunFinished { .. } | Event::RunStopped { .. } => true,
                    Event::AttemptStarted { .. } => false,
                    _ => self.is_over,
                };
                pass(event);
            }
        }
        self.bytes = end;
        self.is_over
    }
}

/// Copies all results to a folder, and returns the number of files.
pub(super) fn copy(address: &str, to: &Path) -> Result<u64, SubmitError> {
    let copied = open(address)?.copy_to(to);
    copied.map_err(|error| failed(address, &error))
}

#[expect(
    clippy::disallowed_methods,
    reason = "a bounded pause between two looks at a run; the user ends the wait"
)]
fn pause() {
    std::thread::sleep(LOOK_EVERY);
}
