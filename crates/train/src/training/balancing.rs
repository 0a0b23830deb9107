//! Shares of workers of different speed, for `workers.balance = "measured"`.

use ronde_core::{Event, Rank};
use ronde_protocol::transaction::CommittedStep;

use super::Training;
use crate::balance::Balance;
use crate::config::BalanceMode;
use crate::error::TrainError;

impl Training {
    /// Begins to measure the speeds of the members of a new generation, if the run file requests it. All members call it
    /// before their first step, when their shares are equal.
    pub(super) fn measure_speeds(&mut self) {
        let is_measured = self.plan.config.workers.balance == BalanceMode::Measured;
        self.balance = (is_measured && self.member.group.size() > 1).then(Balance::default);
    }

    /// Records the times of the ranks in a step, and assigns shards by speed if that is worth it. All ranks make the same
    /// choice, because they have the same votes. Returns whether the assignment changed.
    ///
    /// # Errors
    /// As [`Training::assign`].
    pub(super) fn balance_shards(&mut self, committed: &CommittedStep) -> Result<bool, TrainError> {
        // The sizes that are tried change the times.
        if self.tuning.is_some() {
            return Ok(false);
        }
        let present = self.mesh.shards();
        let servers = self.mesh.servers();
        let observed = self.balance.as_mut();
        let Some(chosen) =
            observed.and_then(|balance| balance.observe(&committed.busy_s, present, servers))
        else {
            return Ok(false);
        };
        if self.member.rank == Rank(0) {
            self.member.tracker.record(Event::SharesChanged {
                step: committed.step.next(),
                shares: chosen.shards.shares().collect(),
                shard_s: chosen.shard_s,
            });
        }
        let mesh = self.mesh.resharded(chosen.shards);
        self.assign(mesh)?;
        Ok(true)
    }
}
