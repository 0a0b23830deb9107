//! The end of processes that have left the process group of their rank.

use std::time::Duration;

use super::Supervisor;
use crate::descendants::{self, Descendant};
use crate::launcher::StopSignal;
use crate::stop::StopLevel;

/// Interval between two looks at the processes that were found.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The first interval between two searches of all processes; it doubles with each search.
const SEARCH_EVERY: Duration = Duration::from_millis(20);
/// The longest interval between two searches.
const SEARCH_EVERY_MAX: Duration = Duration::from_millis(500);
/// Time that a process may take to disappear after SIGKILL.
const KILL_MAX: Duration = Duration::from_secs(5);

impl Supervisor<'_> {
    /// Ends processes that outlive their rank outside of its process group: SIGTERM, and SIGKILL after
    /// the grace period or a second stop request. Returns at the latest when the processes have had
    /// `KILL_MAX` to disappear after SIGKILL.
    pub(super) fn end_descendants(&mut self) {
        let terminated = self.now();
        let (mut killed, mut pause) = (None, SEARCH_EVERY);
        loop {
            let Some(left) = descendants::running(self.token.secret()) else {
                let message = "cannot search for processes that outlive their rank: reading the                                environment of a process takes too long";
                return self.notice(None, message.to_owned());
            };
            if left.is_empty() {
                return;
            }
            let is_due = self.now() >= terminated + self.spec.stop_grace;
            let kills = killed.is_some() || is_due || self.stop.level() == StopLevel::KillNow;
            let (signal, until) = match kills {
                true => (
                    StopSignal::Kill,
                    *killed.get_or_insert(self.now()) + KILL_MAX,
                ),
                false => (StopSignal::Terminate, terminated + self.spec.stop_grace),
            };
            if kills && self.now() >= until {
                let message = format!("{} processes do not end after SIGKILL", left.len());
                return self.notice(None, message);
            }
            for process in &left {
                process.signal(signal);
            }
            // They may start others until they end, so all processes are searched again then.
            ronde_clock::pause(pause);
            pause = SEARCH_EVERY_MAX.min(pause * 2);
            self.wait_for_end(&left, until, kills);
        }
    }

    /// Waits until these processes have ended, until a time, or until a second stop request.
    fn wait_for_end(&self, processes: &[Descendant], until: Duration, are_killed: bool) {
        while processes.iter().any(Descendant::is_running)
            && self.now() < until
            && (are_killed || self.stop.level() < StopLevel::KillNow)
        {
            ronde_clock::pause(LOOK_EVERY);
        }
    }
}
