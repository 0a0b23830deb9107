//! The end of processes that have left the process group of their rank.

use std::time::Duration;

use super::Supervisor;
use crate::clock;
use crate::descendants;
use crate::launcher::StopSignal;
use crate::stop::StopLevel;

/// Interval between two searches for running processes.
const PAUSE: Duration = Duration::from_millis(20);
/// Time that a process may take to disappear after SIGKILL.
const KILL_MAX: Duration = Duration::from_secs(5);

impl Supervisor<'_> {
    /// Ends processes that outlive their rank outside of its process group: SIGTERM, and SIGKILL after
    /// the grace period or a second stop request.
    pub(super) fn end_descendants(&mut self) {
        let (begun, mut killed) = (self.now(), None);
        let mut is_terminated = false;
        loop {
            let left = descendants::running(self.token.secret());
            if left.is_empty() {
                return;
            }
            let now = self.now();
            let is_due = now >= begun + self.spec.stop_grace;
            if is_due || self.stop.level() == StopLevel::KillNow {
                descendants::signal(&left, StopSignal::Kill);
                if now >= *killed.get_or_insert(now) + KILL_MAX {
                    let message = format!("{} processes do not end after SIGKILL", left.len());
                    return self.notice(None, message);
                }
            } else if !is_terminated {
                is_terminated = true;
                descendants::signal(&left, StopSignal::Terminate);
            }
            clock::pause(PAUSE);
        }
    }
}
