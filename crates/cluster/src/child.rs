//! The one unsafe place of this crate: what a child does between fork and exec.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the child end with SIGKILL when the *thread* that starts it ends, a second line of defence
/// behind the watchdog. Does nothing where the system is not Linux.
pub(crate) fn end_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
        let parent = getpid();
        let before_exec = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have ended before the line above: then nobody would send the signal.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        };
        #[expect(
            unsafe_code,
            reason = "what is done between fork and exec is unsafe by nature"
        )]
        // SAFETY: the closure makes two system calls (prctl, getppid) that are async-signal-safe
        // and allocates nothing: an `io::Error` of a kind or of an error number is plain data.
        unsafe {
            command.pre_exec(before_exec);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = command;
}

/// Makes the child the leader of a session of its own, out of reach of the terminal's signals.
pub(crate) fn in_own_session(command: &mut Command) {
    let before_exec = || Ok(rustix::process::setsid().map(drop)?);
    #[expect(
        unsafe_code,
        reason = "what is done between fork and exec is unsafe by nature"
    )]
    // SAFETY: the closure makes one system call (setsid), async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(before_exec);
    }
}
