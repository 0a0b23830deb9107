//! Programs of this machine that are ended after a time limit.

use std::process::Child;
use std::time::Duration;

/// Waits for the end of a process and returns its exit code, 255 after a signal. At the end of `limit` the process is killed
/// and the result is `None`.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> Option<i32> {
    let mut status = None;
    ronde_clock::wait_until(limit, || {
        status = child.try_wait().ok().flatten();
        status.is_some()
    });
    if status.is_none() {
        // It may have ended just now.
        let _ = child.kill();
        let _ = child.wait();
    }
    status.map(|status| status.code().unwrap_or(255))
}
