//! The processes of a session of this host: found and ended together.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::process_identity::{ProcessIdentity, stat};

/// Time limit for the end of processes after SIGKILL.
const KILL_MAX: Duration = Duration::from_secs(10);

/// Returns the processes of the session that `leader` leads or led.
pub(crate) fn members(leader: &ProcessIdentity) -> Vec<ProcessIdentity> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    if !leader.may_own_session() {
        return Vec::new();
    }
    let numbers = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers
        .filter(|pid| stat(*pid).is_ok_and(|stat| stat.session == leader.pid && !stat.is_zombie))
        .filter_map(|pid| ProcessIdentity::of(pid).ok())
        .collect()
}

/// Ends all processes of a session with SIGKILL, and returns the number of those that remain.
pub(crate) fn kill(leader: &ProcessIdentity) -> usize {
    let mut remaining = 0;
    ronde_clock::wait_until(KILL_MAX, || {
        // Again, because a process may start another one meanwhile.
        let members = members(leader);
        for member in &members {
            signal(member, Signal::KILL);
        }
        remaining = members.len();
        remaining == 0
    });
    remaining
}

/// Kills all other processes of the session that this process leads, and then this one.
pub(crate) fn end_own(leader: &ProcessIdentity) {
    for member in members(leader).iter().filter(|member| *member != leader) {
        signal(member, Signal::KILL);
    }
    signal(leader, Signal::KILL);
}

/// Sends a signal to a process if it still exists.
pub(crate) fn signal(process: &ProcessIdentity, signal: Signal) {
    if let Some(pid) = Pid::from_raw(process.pid.cast_signed()).filter(|_| process.is_alive()) {
        // It may have ended just now.
        let _ = kill_process(pid, signal);
    }
}
