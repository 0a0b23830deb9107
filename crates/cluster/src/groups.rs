//! Process groups: signals to all members, and whether any member still runs.

use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid,
};

use crate::launcher::StopSignal;

/// Sends a signal to all members. A group that is gone is no error.
pub(crate) fn signal(group: Pid, signal: StopSignal) {
    let signal = match signal {
        StopSignal::Terminate => Signal::TERM,
        StopSignal::Kill => Signal::KILL,
    };
    let _ = kill_process_group(group, signal);
}

/// Whether a member still runs. Members that have ended and that nobody has reaped (an init that
/// does not, as in many containers) do not count.
pub(crate) fn alive(group: Pid) -> bool {
    match test_kill_process_group(group) {
        // There are members that may not be signalled, or some that may.
        Err(rustix::io::Errno::PERM) => true,
        Err(_) => false,
        Ok(()) => running_member(group).unwrap_or(true),
    }
}

/// Reaps members that have become children of this process: it is the init of a container then.
/// Only to be called when the group's leader has been reaped.
pub(crate) fn reap(group: Pid) {
    while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
}

/// Whether `/proc` knows a member that is no zombie; `None` without `/proc`.
fn running_member(group: Pid) -> Option<bool> {
    let mut seen = false;
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let name = entry.file_name();
        if !name
            .to_string_lossy()
            .starts_with(|c: char| c.is_ascii_digit())
        {
            continue;
        }
        seen = true;
        // A process may end while one looks.
        let Ok(stat) = std::fs::read(entry.path().join("stat")) else {
            continue;
        };
        if let Some((state, its_group)) = state_and_group(&stat)
            && its_group == group.as_raw_nonzero().get()
            && !matches!(state, b'Z' | b'X')
        {
            return Some(true);
        }
    }
    seen.then_some(false)
}

/// Fields 3 and 5 of `/proc/<pid>/stat`; field 2, the name, is in parentheses and may hold anything.
fn state_and_group(stat: &[u8]) -> Option<(u8, i32)> {
    let behind_name = stat.iter().rposition(|&b| b == b')')? + 1;
    let text = std::str::from_utf8(&stat[behind_name..]).ok()?;
    let mut fields = text.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let group = fields.nth(1)?.parse().ok()?;
    Some((state, group))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_cannot_mislead() {
        let cases = [
            (&b"12 (sh) S 1 34 34 0 -1"[..], Some((b'S', 34))),
            (b"12 (a) Z 9 (b) R 1 77 34", Some((b'R', 77))),
            (b"12 (sh", None),
            (b"12 (sh) S 1", None),
        ];
        for (stat, expected) in cases {
            assert_eq!(state_and_group(stat), expected);
        }
    }

    #[test]
    fn this_process_has_a_group_that_runs() {
        assert!(alive(rustix::process::getpgrp()));
    }
}
