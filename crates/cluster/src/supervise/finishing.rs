//! Lets the workers of a job end by themselves, after a last checkpoint.

use super::Supervisor;
use crate::launcher::StopSignal;
use crate::outcome::signal_name;
use crate::stop::StopLevel;

/// SIGTERM requests an end in good order; Ctrl-C does not.
const SIGTERM: i32 = 15;

impl Supervisor<'_> {
    /// Returns whether the workers are ending by themselves; requests that on the first call. False
    /// if they should not, or their time limit has passed.
    pub(super) fn finishes(&mut self, level: StopLevel) -> bool {
        let signal = self.stop.signal();
        let Some(limit) = self.spec.finish_limit else {
            return false;
        };
        let is_host_only = self
            .coordination
            .as_ref()
            .is_some_and(|decider| !decider.ends_the_job());
        if is_host_only || self.stopping || level != StopLevel::Stop || signal != SIGTERM {
            return false;
        }
        let now = self.now();
        let since = match self.finishing {
            Some(since) => since,
            None => {
                self.finishing = Some(now);
                self.stopped_by = Some(signal);
                self.request_finish();
                now
            }
        };
        now < since + limit
    }

    fn request_finish(&mut self) {
        let (now, by) = (self.now(), signal_name(self.stop.signal()));
        if let Some(coordination) = &mut self.coordination {
            let actions = coordination.stop(now, by);
            return self.act(actions);
        }
        for rank in self.endings.running() {
            self.roster.signalled(rank, StopSignal::Terminate);
            self.launcher.signal(rank, StopSignal::Terminate);
        }
    }
}
