//! Saves the last checkpoint of a run that stops, and keeps the state while the storage cannot be written to.
//!
//! Only the workers have the state then, so an error that a person can remove (no space, a quota, a read-only file system, missing
//! rights) is worth the wait. The trained model is tried again for an hour (`export.rs`). A checkpoint during training that fails
//! is only reported.

use std::thread;
use std::time::Duration;

use ronde_clock::Stopwatch;
use ronde_core::{CollectivesExt, Event, GroupRank, Rank, Step};

use super::Training;
use crate::checkpoints::RunCheckpoints;
use crate::error::TrainError;

/// The time between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// The workers give up so long before their processes are ended, so that the end is in good order.
const MARGIN_S: f64 = 2.0;

impl Training {
    /// Saves the state before step `next` and returns whether it is saved. While that fails for a reason that may pass, such as
    /// a full disk, all ranks keep the state and try again, for as long as the run has time to end
    /// (`checkpoint.finish_limit_s`). All ranks call it together.
    ///
    /// # Errors
    /// A peer was lost.
    pub(super) fn save_while_possible(&mut self, next: Step) -> Result<bool, TrainError> {
        let limit_s = self.plan.config.checkpoint.finish_limit_s - MARGIN_S;
        let since = Stopwatch::start();
        self.begin_last_save();
        let mut is_reported = false;
        while !self.save_last(next)? {
            let left_s = limit_s - since.elapsed_s();
            if !self.agree_to_save_later(left_s)? {
                return Ok(false);
            }
            if self.member.rank == Rank(0) && !std::mem::replace(&mut is_reported, true) {
                let message = format!(
                    "the workers keep the state of step {next} and try again to save it every second, for at most {left_s:.0} s; \
                     Ctrl-C gives it up"
                );
                let rank = None;
                self.member.tracker.record(Event::Notice { rank, message });
            }
            thread::park_timeout(PAUSE);
        }
        Ok(true)
    }

    /// Returns whether all ranks try again to save a state, which rank 0 decides.
    fn agree_to_save_later(&self, left_s: f64) -> Result<bool, TrainError> {
        let saving = self.saving.checkpoints();
        let is_possible = left_s > 0.0 && saving.is_some_and(RunCheckpoints::may_save_later);
        let mut decision = [u8::from(is_possible)];
        let group = &self.member.group;
        let agreed = group.broadcast(&mut decision, GroupRank(0));
        agreed.map_err(TrainError::Farewell)?;
        Ok(decision == [1])
    }
}
