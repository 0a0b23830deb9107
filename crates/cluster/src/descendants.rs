//! Processes of a job that have left their rank's process group, for example with `setsid` or a double
//! fork. They are found by the job's token in their environment, which they inherit from their rank.
//!
//! A process that clears its environment as well is not found. On systems without `/proc` none is.

use rustix::process::{Pid, Signal, kill_process};

use crate::groups;
use crate::launcher::StopSignal;
use crate::variables::RONDE_TOKEN;

/// Returns the running processes whose environment contains the job's token, except for this one.
pub(crate) fn running(token: &str) -> Vec<Pid> {
    let entry = format!("{RONDE_TOKEN}={token}");
    let this = rustix::process::getpid();
    let Ok(processes) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let has_token = |pid: &Pid| {
        let folder = format!("/proc/{}", pid.as_raw_nonzero());
        let read = |name: &str| std::fs::read(format!("{folder}/{name}")).unwrap_or_default();
        *pid != this
            && read("environ")
                .split(|byte| *byte == 0)
                .any(|found| found == entry.as_bytes())
            && groups::is_running(&read("stat"))
    };
    processes
        .flatten()
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .filter_map(Pid::from_raw)
        .filter(has_token)
        .collect()
}

/// Sends a signal to processes. One that has ended meanwhile is not an error.
pub(crate) fn signal(processes: &[Pid], signal: StopSignal) {
    let signal = match signal {
        StopSignal::Terminate => Signal::TERM,
        StopSignal::Kill => Signal::KILL,
    };
    for process in processes {
        let _ = kill_process(*process, signal);
    }
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
        let found = running(&token);
        assert_eq!(found, [Pid::from_child(&mine)]);
        signal(&found, StopSignal::Kill);
        mine.wait().unwrap();
        assert!(running(&token).is_empty());
        another.kill().unwrap();
        another.wait().unwrap();
    }
}
