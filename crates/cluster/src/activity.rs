//! Whether a silent process lacks CPU time, as opposed to being stopped or hung.

/// Returns whether a thread of the process runs, waits for a core, or waits for a disk. Such a process
/// may be silent only because its host is overloaded. False for a stopped process, for one that waits
/// for something else, and on systems without `/proc`.
pub(crate) fn is_busy(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().any(|thread| {
        let stat = std::fs::read(thread.path().join("stat")).unwrap_or_default();
        matches!(state(&stat), Some(b'R' | b'D'))
    })
}

/// Returns whether the process is ending: its connections may be closed before its end can be observed.
pub(crate) fn is_exiting(pid: u32) -> bool {
    /// `PF_EXITING` of the kernel's `sched.h`.
    const EXITING: u32 = 4;
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    flags(&stat).is_some_and(|flags| flags & EXITING != 0)
}

/// Parses field 9 of `/proc/<pid>/stat`.
fn flags(stat: &[u8]) -> Option<u32> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let text = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    text.split_ascii_whitespace().nth(6)?.parse().ok()
}

/// Parses field 3 of `/proc/<pid>/stat`; field 2, the name, is in parentheses and may contain anything.
fn state(stat: &[u8]) -> Option<u8> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(name_end + 2).copied()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    #[test]
    fn the_state_follows_the_name() {
        assert_eq!(state(b"12 (a) Z (b) R 1 77"), Some(b'R'));
        assert_eq!(state(b"12 (sh)"), None);
        assert_eq!(state(b""), None);
        assert_eq!(
            flags(b"12 (a) Z (b) R 1 2 3 0 -1 4194308 7"),
            Some(4_194_308)
        );
        assert_eq!(flags(b"12 (a) R 1 2 3"), None);
    }

    #[test]
    fn a_computing_process_is_busy_and_a_stopped_or_waiting_one_is_not() {
        let is = |pid, expected: bool| while is_busy(pid) != expected {};
        let mut computing = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let mut waiting = Command::new("sleep").arg("600").spawn().unwrap();
        is(computing.id(), true);
        is(waiting.id(), false);
        kill_process(Pid::from_child(&computing), Signal::STOP).unwrap();
        is(computing.id(), false);
        for child in [&mut computing, &mut waiting] {
            child.kill().unwrap();
            // Its exit status is left: a zombie has ended, too.
            while !is_exiting(child.id()) {}
            child.wait().unwrap();
            assert!(!is_busy(child.id()) && !is_exiting(child.id()));
        }
    }
}
