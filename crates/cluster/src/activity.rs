//! Whether a silent process lacks CPU time, as opposed to being stopped or hung.

/// Returns whether a thread of the process runs, waits for a core, or waits for a disk. Such a process
/// may be silent only because its host is overloaded. False for a stopped process, for one that waits
/// for something else, and on systems without `/proc`.
pub(crate) fn is_busy(pid: u32) -> bool {
    thread_states(pid).iter().any(is_active)
}

/// Returns whether all threads of the process are stopped or wait for something other than a core or a disk. False on
/// systems without `/proc`.
pub(crate) fn is_idle(pid: u32) -> bool {
    let states = thread_states(pid);
    !states.is_empty() && !states.iter().any(is_active)
}

/// Returns whether all threads of the process are stopped, by a signal or by a debugger. False on systems without `/proc`.
pub(crate) fn is_stopped(pid: u32) -> bool {
    let states = thread_states(pid);
    !states.is_empty() && states.iter().all(|state| b"Tt".contains(state))
}

fn is_active(state: &u8) -> bool {
    b"RD".contains(state)
}

fn thread_states(pid: u32) -> Vec<u8> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let state_of = |thread: std::fs::DirEntry| {
        let stat = std::fs::read(thread.path().join("stat")).unwrap_or_default();
        state(&stat)
    };
    threads.filter_map(state_of).collect()
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
        assert!(is_idle(waiting.id()) && !is_stopped(waiting.id()));
        kill_process(Pid::from_child(&computing), Signal::STOP).unwrap();
        while !is_stopped(computing.id()) {}
        assert!(is_idle(computing.id()) && !is_busy(computing.id()));
        for child in [&mut computing, &mut waiting] {
            child.kill().unwrap();
            // Its exit status is left: a zombie has ended, too.
            while !is_exiting(child.id()) {}
            child.wait().unwrap();
            let is_anything = [is_busy, is_idle, is_stopped, is_exiting].map(|is| is(child.id()));
            assert_eq!(is_anything, [false; 4]);
        }
    }
}
