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

/// Returns when the process with this `/proc/<pid>/stat` was started, in clock ticks since the system was
/// started; `None` if it no longer runs, as a zombie.
pub(crate) fn start_of_running(stat: &[u8]) -> Option<u64> {
    let mut fields = fields_after_name(stat)?;
    let state = fields.next()?;
    if state.starts_with(['Z', 'X']) {
        return None;
    }
    // Field 22.
    fields.nth(18)?.parse().ok()
}

/// Returns the fields of `/proc/<pid>/stat` from the third one on; the second one, the name, is in
/// parentheses and may contain anything.
fn fields_after_name(stat: &[u8]) -> Option<std::str::SplitAsciiWhitespace<'_>> {
    let behind_name = stat.iter().rposition(|&b| b == b')')? + 1;
    let text = std::str::from_utf8(&stat[behind_name..]).ok()?;
    Some(text.split_ascii_whitespace())
}

/// Parses fields 3 and 5 of `/proc/<pid>/stat`.
fn state_and_group(stat: &[u8]) -> Option<(u8, i32)> {
    let mut fields = fields_after_name(stat)?;
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
    fn only_a_running_process_has_a_start() {
        let stat = |state: &str| {
            format!("7 (a) b) {state} 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 8812 9 9")
        };
        for (state, expected) in [("S", Some(8812)), ("R", Some(8812)), ("Z", None)] {
            assert_eq!(start_of_running(stat(state).as_bytes()), expected);
        }
        assert_eq!(start_of_running(b"7 (a) S 1 7"), None);
    }

    #[test]
    fn the_group_of_this_process_is_alive() {
        assert!(alive(rustix::process::getpgrp()));
    }
}
