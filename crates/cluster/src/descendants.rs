//! Processes of a job that have left their rank's process group, for example with `setsid` or a double
//! fork. They are found by the job's token in their environment, which they inherit from their rank.
//!
//! A process that clears its environment as well is not found. On systems without `/proc` none is.

use std::io::Read;
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::groups;
use crate::launcher::StopSignal;
use crate::variables::RONDE_TOKEN;

/// Time limit of a search. Reading the environment of a process can block, for example while its
/// memory is being freed or swapped in.
const SEARCH_MAX: Duration = Duration::from_secs(5);
/// Maximum number of bytes of an environment that are searched.
const ENVIRONMENT_BYTES_MAX: u64 = 8 << 20;

/// A process that carries the job's token. Its number alone does not identify it, because the system
/// gives the number to another process once this one has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Descendant {
    pid: i32,
    /// The time of its start, in clock ticks since the system was started.
    started: u64,
}

impl Descendant {
    /// Returns the process that has this number now; `None` if there is none or it has ended.
    fn of(pid: i32) -> Option<Self> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        let started = groups::start_of_running(&stat)?;
        Some(Self { pid, started })
    }

    /// Returns whether this process still runs.
    pub(crate) fn is_running(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }

    /// Sends a signal, unless the process has ended.
    pub(crate) fn signal(&self, signal: StopSignal) {
        let signal = match signal {
            StopSignal::Terminate => Signal::TERM,
            StopSignal::Kill => Signal::KILL,
        };
        if let Some(pid) = Pid::from_raw(self.pid)
            && self.is_running()
        {
            let _ = kill_process(pid, signal);
        }
    }

    fn has_variable(&self, entry: &[u8]) -> bool {
        let path = format!("/proc/{}/environ", self.pid);
        let mut environment = Vec::new();
        let read = std::fs::File::open(path).and_then(|file| {
            file.take(ENVIRONMENT_BYTES_MAX)
                .read_to_end(&mut environment)
        });
        read.is_ok()
            && environment
                .split(|byte| *byte == 0)
                .any(|found| found == entry)
    }
}

/// Returns the running processes whose environment contains the job's token, except for this one;
/// `None` if the search takes too long. Cost: reads two files of every process of the system.
pub(crate) fn running(token: &str) -> Option<Vec<Descendant>> {
    let entry = format!("{RONDE_TOKEN}={token}");
    let (found, result) = sync_channel(1);
    // A thread that cannot be interrupted while it reads; it is left behind if it takes too long.
    thread::spawn(move || {
        let _ = found.send(search(entry.as_bytes()));
    });
    result.recv_timeout(SEARCH_MAX).ok()
}

fn search(entry: &[u8]) -> Vec<Descendant> {
    let this = std::process::id();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .filter(|pid: &i32| pid.cast_unsigned() != this)
        // In this order: if the number is reused in between, the found process no longer runs.
        .filter_map(Descendant::of)
        .filter(|process| process.has_variable(entry))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn only_processes_with_this_token_are_found() {
        let (token, other) = ("a1".repeat(32), "b2".repeat(32));
        let start = |token: &str| {
            let mut command = Command::new("sleep");
            command.arg("600").env(RONDE_TOKEN, token);
            crate::child::in_own_session(&mut command);
            command.spawn().unwrap()
        };
        let (mut mine, mut another) = (start(&token), start(&other));
        let found = running(&token).unwrap();
        let pids: Vec<i32> = found.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [mine.id() as i32]);
        assert!(found[0].is_running());
        found[0].signal(StopSignal::Kill);
        mine.wait().unwrap();
        assert!(!found[0].is_running());
        assert!(running(&token).unwrap().is_empty());
        another.kill().unwrap();
        another.wait().unwrap();
    }

    #[test]
    fn a_process_that_has_got_the_number_of_an_ended_one_is_not_signalled() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let now = Descendant::of(child.id() as i32).unwrap();
        let before = Descendant {
            started: now.started - 1,
            ..now
        };
        assert!(now.is_running() && !before.is_running());
        before.signal(StopSignal::Kill);
        assert_eq!(child.try_wait().unwrap(), None);
        now.signal(StopSignal::Kill);
        child.wait().unwrap();
    }
}
