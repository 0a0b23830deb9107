//! The code that a child process runs between fork and exec, which requires `unsafe`.

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the child end with SIGKILL when the *thread* that starts it ends, in addition to the
/// watchdog. Has no effect on systems other than Linux.
pub(crate) fn end_with_parent(command: &mut Command) {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
        let parent = getpid();
        let before_exec = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // If the parent ended before the line above, no process would send the signal.
            if getppid() == Some(parent) {
                Ok(())
            } else {
                Err(std::io::ErrorKind::BrokenPipe.into())
            }
        };
        #[expect(
            unsafe_code,
            reason = "`pre_exec` is unsafe because only async-signal-safe calls are allowed in it"
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

/// Makes the child the leader of a session, so that the terminal's signals do not reach it.
pub(crate) fn in_own_session(command: &mut Command) {
    let before_exec = || Ok(rustix::process::setsid().map(drop)?);
    #[expect(
        unsafe_code,
        reason = "`pre_exec` is unsafe because only async-signal-safe calls are allowed in it"
    )]
    // SAFETY: the closure makes one system call (setsid), async-signal-safe, and allocates nothing.
    unsafe {
        command.pre_exec(before_exec);
    }
}
