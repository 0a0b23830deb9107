//! Process groups: sending signals to all members, and checking whether any member still runs.

use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid,
};

use crate::launcher::StopSignal;

/// Sends a signal to all members. A group without members is not an error.
pub(crate) fn signal(group: Pid, signal: StopSignal) {
    let signal = match signal {
        StopSignal::Terminate => Signal::TERM,
        StopSignal::Kill => Signal::KILL,
    };
    let _ = kill_process_group(group, signal);
}

/// Returns whether a member still runs. Zombies, which may remain under an init process that does
/// not reap (as in many containers), do not count.
pub(crate) fn alive(group: Pid) -> bool {
    match test_kill_process_group(group) {
        // There are members that may not be signalled.
        Err(rustix::io::Errno::PERM) => true,
        Err(_) => false,
        Ok(()) => running_member(group).unwrap_or(true),
    }
}

/// Reaps members that have become children of this process, which happens if it is the init process
/// of a container. Must be called only after the group's leader has been reaped.
pub(crate) fn reap(group: Pid) {
    while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
}

/// Returns whether `/proc` contains a member that is not a zombie; `None` without `/proc`.
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
        // The process may have ended in the meantime.
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

/// Returns whether the process with this `/proc/<pid>/stat` still runs, which a zombie does not.
pub(crate) fn is_running(stat: &[u8]) -> bool {
    state_and_group(stat).is_some_and(|(state, _)| !matches!(state, b'Z' | b'X'))
}

/// Parses fields 3 and 5 of `/proc/<pid>/stat`; field 2, the name, is in parentheses and may
/// contain anything.
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
    fn a_process_name_cannot_forge_the_other_fields() {
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
    fn the_group_of_this_process_is_alive() {
        assert!(alive(rustix::process::getpgrp()));
    }
}
