//! [`Launcher`]: the seam between supervision and the systems on which processes run.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ronde_core::Rank;

use crate::outcome::ProcessExit;

/// The output stream that a line was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A receiver of the ranks' output, line by line.
///
/// Called from one thread of the launcher. While it blocks, the ranks' output is not read and they
/// block in their writes; supervision continues.
pub trait LogSink: Send + Sync {
    /// Receives a line without its line ending. Invalid UTF-8 is replaced by U+FFFD; a line longer
    /// than [`crate::LINE_BYTES_MAX`] arrives in pieces.
    fn line(&self, rank: Rank, stream: OutputStream, line: &str);
}

/// One process to start.
#[derive(Debug, Clone)]
pub struct ProcessSpec {
    /// The process's rank.
    pub rank: Rank,
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables in addition to the inherited ones.
    pub environment: Vec<(OsString, OsString)>,
    /// The working directory.
    pub working_directory: Option<PathBuf>,
}

/// A running process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartedProcess {
    /// Its process id, which is also the id of its process group.
    pub pid: u32,
    /// The host name.
    pub host: String,
}

/// A signal from a supervisor to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopSignal {
    /// End in good order: SIGTERM.
    Terminate,
    /// End now: SIGKILL.
    Kill,
}

/// Starts and watches processes: on this machine, over SSH, or through a batch system.
///
/// One thread makes all calls. No call may block longer than its timeout; those without one return
/// at once.
pub trait Launcher {
    /// Returns the name of the host on which ranks are started.
    fn host(&self) -> String;

    /// Starts a rank and sends its output to `log`.
    ///
    /// # Errors
    /// Returns the system's error if the process cannot be started.
    fn start(
        &mut self,
        process: &ProcessSpec,
        log: &Arc<dyn LogSink>,
    ) -> std::io::Result<StartedProcess>;

    /// Waits until a process ends, at most `timeout`, and returns each process that has ended since
    /// the previous call once.
    fn poll(&mut self, timeout: Duration) -> Vec<(Rank, ProcessExit)>;

    /// Sends a signal to all processes of a rank, including its children. Has no effect on a rank
    /// whose processes have all ended.
    fn signal(&mut self, rank: Rank, signal: StopSignal);

    /// Returns whether a process of this rank still runs: the rank itself or a child that it left
    /// behind.
    fn alive(&mut self, rank: Rank) -> bool;

    /// Returns the last lines that a rank wrote to its standard error, at most ten.
    fn logs(&mut self, rank: Rank) -> Vec<String>;

    /// Delivers the remaining output, waiting at most `timeout`, and ends all threads.
    fn close(&mut self, timeout: Duration);
}
