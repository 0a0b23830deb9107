//! The results of a run at an address: progress from its events, the output of a rank, and copies, on any machine.

use std::path::Path;
use std::time::Duration;

use ronde::environment;
use ronde_core::{Event, Tracker};
use ronde_store::{Address, StoreError};
use ronde_submit::{LogRequest, SubmitError};
use ronde_tracking::{Terminal, Verbosity, parse_event_line};
use ronde_train::results::{StoredEnd, StoredResults};

use crate::command::console::info;

/// Interval at which growing results are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Looks without anything new after which the user is told.
const SILENT_LOOKS: u32 = 30;

/// Returns whether an argument is an address, not the name of a job.
pub(crate) fn is_address(text: &str) -> bool {
    text.contains("://")
}

/// Opens the results at an address.
pub(crate) fn open(address: &str) -> Result<StoredResults, SubmitError> {
    let parsed: Result<Address, StoreError> = address.parse();
    let parsed = parsed.map_err(|error| failed(address, &error))?;
    let opened = StoredResults::open(&parsed, &environment::store_settings());
    opened.map_err(|error| failed(address, &error))
}

/// Returns the error of a store.
pub(crate) fn failed(address: &str, error: &StoreError) -> SubmitError {
    SubmitError::Host {
        host: address.to_owned(),
        problem: error.to_string(),
        help: None,
        is_temporary: error.recovery() == ronde_core::Recovery::Retry,
    }
}

/// Prints the progress of a run from its events, or the output of a rank; with `follow` until the run has ended.
pub(crate) fn logs(address: &str, request: LogRequest) -> Result<(), SubmitError> {
    let stored = open(address)?;
    let failed = |error: StoreError| failed(address, &error);
    let terminal = Terminal::plain(Box::new(std::io::stdout()), Verbosity::Normal);
    let (mut events, mut rank) = (
        stored.event_log(),
        request.rank.map(|rank| stored.rank_log(rank)),
    );
    let mut progress = EventProgress::default();
    let mut silence = SilentRun::default();
    loop {
        // Looked at before the last read, so that no output is missed.
        let end = stored.ended().map_err(failed)?;
        let mut lines = Vec::new();
        let mut shown = events.read(&mut lines).map_err(failed)?;
        let is_new = !lines.is_empty();
        let is_over = progress.read(&lines, &mut |event| {
            if rank.is_none() {
                terminal.record(event);
            }
        });
        let ends = end.is_some() || is_over || !request.follow;
        if let (Some(log), Some(number)) = (&mut rank, request.rank) {
            shown = log.read(&mut std::io::stdout()).map_err(failed)?;
            if !shown && ends {
                return Err(no_output(address, number));
            }
        }
        if !shown && ends {
            return Err(SubmitError::Invalid {
                problem: format!("there is no run at {address}"),
                help: "pass the address that `run.output` of the run has".to_owned(),
            });
        }
        if ends {
            terminal.finish();
            report_end(address, end.filter(|_| !is_over));
            return Ok(());
        }
        silence.look(is_new, address);
        ronde_clock::pause(LOOK_EVERY);
    }
}

fn no_output(address: &str, rank: u32) -> SubmitError {
    SubmitError::Invalid {
        problem: format!("rank {rank} has printed nothing"),
        help: format!("`ronde logs {address}` without `--rank` shows progress"),
    }
}

/// Prints how a run ended that has not committed its last step.
fn report_end(address: &str, end: Option<StoredEnd>) {
    if let Some(code) = end.and_then(|end| end.exit_code).filter(|code| *code != 0) {
        info!(
            "the run ended with exit code {code}; `ronde logs --rank R {address}` shows the output of a rank"
        );
    }
}

/// The looks at a run without anything new.
#[derive(Default)]
struct SilentRun {
    looks: u32,
}

impl SilentRun {
    /// Reports once that a run is silent: a launcher that was killed could not store that it has ended.
    fn look(&mut self, is_new: bool, address: &str) {
        self.looks = if is_new {
            0
        } else {
            self.looks.saturating_add(1)
        };
        if self.looks == SILENT_LOOKS {
            info!(
                "nothing new at {address} for a minute: if the host of the launcher was lost, the run has ended; Ctrl-C \
                 ends this command"
            );
        }
    }
}

/// The part of an event file that has been read.
#[derive(Default)]
struct EventProgress {
    /// A line whose end has not arrived.
    line: Vec<u8>,
    is_over: bool,
}

impl EventProgress {
    /// Passes on the events of complete lines of a further part of the file. Returns whether the run has ended.
    fn read(&mut self, part: &[u8], pass: &mut dyn FnMut(Event)) -> bool {
        self.line.extend_from_slice(part);
        let end = self.line.iter().rposition(|byte| *byte == b'\n');
        let rest = self.line.split_off(end.map_or(0, |end| end + 1));
        let lines = std::mem::replace(&mut self.line, rest);
        for line in lines.split(|byte| *byte == b'\n') {
            if let Some((_, event)) = parse_event_line(line) {
                self.is_over = match &event {
                    Event::RunFinished { .. } | Event::RunStopped { .. } => true,
                    Event::AttemptStarted { .. } | Event::RunStarted { .. } => false,
                    _ => self.is_over,
                };
                pass(event);
            }
        }
        self.is_over
    }
}

/// Copies all results to a folder, and returns the number of files.
pub(crate) fn copy(address: &str, to: &Path) -> Result<u64, SubmitError> {
    let copied = open(address)?.copy_to(to);
    copied.map_err(|error| failed(address, &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_in_parts_and_a_further_attempt_continues_the_run() {
        let text = concat!(
            "{\"t\":1.0,\"event\":\"run_stopped\",\"step\":3,\"saved\":true}\n",
            "{\"t\":2.0,\"event\":\"attempt_started\",\"attempt\":2}\n",
        );
        let (first, second) = text.split_at(20);
        let (mut progress, mut events) = (EventProgress::default(), Vec::new());
        assert!(!progress.read(first.as_bytes(), &mut |event| events.push(event)));
        let (rest, last) = second.split_at(second.find('\n').unwrap() + 1);
        assert!(progress.read(rest.as_bytes(), &mut |event| events.push(event)));
        assert!(!progress.read(last.as_bytes(), &mut |event| events.push(event)));
        assert_eq!(events.len(), 2);
    }
}
