//! [`Launcher`]: the seam between supervision and the place where processes run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_core::Rank;

use crate::outcome::End;

/// Which output of a process a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Takes the output of the ranks line by line.
///
/// Called from one thread of the launcher. While it blocks, the ranks' output is not read and they
/// block in their writes; supervision goes on.
pub trait LogSink: Send + Sync {
    /// A line without its end. Invalid UTF-8 arrives as U+FFFD, a line longer than
    /// [`crate::LINE_BYTES_MAX`] in pieces.
    fn line(&self, rank: Rank, stream: OutputStream, line: &str);
}

/// One process to start.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    /// Who it is.
    pub rank: Rank,
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables that it gets beside the inherited ones.
    pub environment: Vec<(OsString, OsString)>,
    /// Where it starts.
    pub working_directory: Option<PathBuf>,
}

/// A process that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Its process id, which is its process group's as well.
    pub pid: u32,
    /// The machine.
    pub host: String,
}

/// What a supervisor sends to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopSignal {
    /// End in good order: SIGTERM.
    Terminate,
    /// End now: SIGKILL.
    Kill,
}

/// Starts processes somewhere and watches them: on this machine, by SSH, by a batch system.
///
/// Calls come from one thread. No call may block longer than its timeout; those without one return
/// at once.
pub trait Launcher {
    /// Name of the machine where ranks are started.
    fn host(&self) -> String;

    /// Starts a rank and sends its output to `log`.
    ///
    /// # Errors
    /// The system's answer when the process cannot be started.
    fn start(&mut self, process: &ProcessSpec, log: &Arc<dyn LogSink>) -> std::io::Result<Started>;

    /// Waits until a process ends, at most `timeout`, and returns all that have ended since the
    /// call before, each once.
    fn poll(&mut self, timeout: Duration) -> Vec<(Rank, End)>;

    /// Sends a signal to all processes of a rank, its children included. Sending to a rank that is
    /// gone does nothing.
    fn signal(&mut self, rank: Rank, signal: StopSignal);

    /// Whether a process of this rank still runs: itself or a child that it left behind.
    fn alive(&mut self, rank: Rank) -> bool;

    /// The last lines that a rank wrote to its standard error, at most ten.
    fn logs(&mut self, rank: Rank) -> Vec<String>;

    /// Delivers what is left of the output, waiting at most `timeout`, and ends all threads.
    fn close(&mut self, timeout: Duration);
}
