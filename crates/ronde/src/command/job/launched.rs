//! Signals to the coordinator and the watchdog that a launcher has started for its job: the launcher decides when they end,
//! also if a manager sends SIGTERM to all processes of the job.

use std::io::BufRead;
use std::sync::atomic::{AtomicU32, Ordering};

use ronde_cluster::StopFlag;
use rustix::process::{Pid, getppid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::command::console::message;
use crate::command::exit;

/// What the launcher writes to the standard input of its coordinator when the job is over.
pub(crate) const DONE: &str = "done";
/// The signals that end this process if the launcher does not answer.
const SIGNALS: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];
/// Number of signals that end this process if the launcher does not answer.
const SIGNALS_MIN: u32 = 2;

/// Runs a command with a stop flag that is set when the launcher writes [`DONE`]. Signals set it if they are repeated and the
/// launcher is stopped or has ended.
pub(crate) fn under_launcher(run: impl FnOnce(&StopFlag) -> i32) -> i32 {
    let stop = StopFlag::new();
    let requested = stop.clone();
    if let Err(error) = on_orphaned_signal(move |signal| requested.request(signal)) {
        message!("error: cannot install signal handlers: {error}");
        return exit::BUG;
    }
    let done = stop.clone();
    std::thread::spawn(move || {
        let mut lines = std::io::stdin().lock().lines();
        // Without such a line the launcher has died, and the coordinator leads its job on other hosts.
        if lines.any(|line| line.is_ok_and(|line| line == DONE)) {
            done.request(SIGTERM);
        }
    });
    run(&stop)
}

/// Calls `end` when signals are repeated and the process that has started this one is stopped or has ended; ignores them
/// otherwise.
///
/// # Errors
/// The system refuses the handler.
pub(crate) fn on_orphaned_signal(end: impl Fn(i32) + Send + 'static) -> std::io::Result<()> {
    let launcher = getppid();
    let mut signals = Signals::new(SIGNALS)?;
    let received = AtomicU32::new(0);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let count = received.fetch_add(1, Ordering::SeqCst) + 1;
                if answers(launcher) {
                    continue;
                }
                if count >= SIGNALS_MIN {
                    end(signal);
                    continue;
                }
                let problem = "the launcher is stopped or has ended";
                message!(
                    "note: {problem}; a second signal ends process {}",
                    std::process::id()
                );
            }
        })?;
    Ok(())
}

/// Returns whether the launcher that has started this process lives and is not stopped.
fn answers(launcher: Option<Pid>) -> bool {
    let Some(pid) = launcher.filter(|pid| getppid() == Some(*pid)) else {
        return false;
    };
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    // A system without this file does not report a stopped process.
    stat.map_or(true, |stat| is_running(&stat))
}

/// Returns whether the text of `/proc/PID/stat` is of a process that neither is stopped nor has ended.
fn is_running(stat: &[u8]) -> bool {
    // The name, in parentheses, may contain anything.
    let name_end = stat.iter().rposition(|byte| *byte == b')');
    let state = name_end.and_then(|at| stat.get(at + 2));
    !matches!(state, Some(b'T' | b't' | b'Z' | b'X'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_or_ended_launcher_does_not_answer() {
        for (state, runs) in [
            ('R', true),
            ('S', true),
            ('D', true),
            ('T', false),
            ('Z', false),
        ] {
            let stat = format!("12 (a) T (b) {state} 1 12 12");
            assert_eq!(is_running(stat.as_bytes()), runs, "{stat}");
        }
        assert!(answers(getppid()));
        assert!(!answers(None), "it has ended");
    }
}
