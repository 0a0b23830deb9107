//! Changes of the work of each rank within a generation of a [`Training`]: shares of workers of different speed, and the bucket size.

use ronde_core::{CollectivesExt, Event, Rank};
use ronde_protocol::transaction::CommittedStep;

use super::Training;
use super::buckets::{BucketTuning, TuningAction};
use crate::config::BalanceMode;
use crate::error::TrainError;

impl Training {
    /// Begins to measure the speeds of the members of a new generation, if the run file requests it. All members call it
    /// before their first step, when their shares are equal.
    pub(super) fn measure_speeds(&mut self) {
        let is_measured = self.plan.config.workers.balance == BalanceMode::Measured;
        let has_others = self.member.group.size() > 1;
        self.assignment.measure_speeds(is_measured && has_others);
    }

    /// Records the times of the ranks in a step, and assigns shards by speed if that is worth it. All ranks make the same
    /// choice, because they have the same votes. Returns whether the assignment changed.
    ///
    /// # Errors
    /// As [`Training::assign`].
    pub(super) fn balance_shards(&mut self, committed: &CommittedStep) -> Result<bool, TrainError> {
        let Some(chosen) = self.assignment.observe(&committed.busy_s) else {
            return Ok(false);
        };
        if self.member.rank == Rank(0) {
            self.member.tracker.record(Event::SharesChanged {
                step: committed.step.next(),
                shares: chosen.shards.shares().collect(),
                shard_s: chosen.shard_s,
            });
        }
        let mesh = self.assignment.layout().resharded(chosen.shards);
        self.assign(mesh)?;
        Ok(true)
    }

    /// Starts the tuning in a new generation, unless the run file sets a size or the slices of a divided state follow the
    /// buckets. All members call it before their first step.
    pub(super) fn tune_buckets(&mut self) {
        let is_sliced = self.plan.config.parallel.is_divided();
        if self.plan.config.comm.bucket_bytes_max.is_some() || is_sliced {
            return;
        }
        if let Some(strategy) = self.policy.every_step() {
            strategy.set_bucket_bytes(BucketTuning::first());
            let buckets = |size| strategy.buckets_of(size);
            self.assignment.tuning = BucketTuning::new(self.member.group.size(), buckets);
        }
    }

    /// Continues the tuning after a step whose computation and communication took `seconds`.
    pub(super) fn step_took(&mut self, seconds: f64) -> Result<(), TrainError> {
        let tuning = &mut self.assignment.tuning;
        let (Some(tuning), Some(strategy)) = (tuning, self.policy.every_step()) else {
            return Ok(());
        };
        let size = match tuning.step_took(seconds) {
            TuningAction::Stay => return Ok(()),
            TuningAction::Try(size) => size,
            TuningAction::Choose => {
                let all = self.member.group.all_gather(&tuning.shortest);
                let size = tuning.choose(&all.map_err(TrainError::BucketSize)?);
                self.assignment.tuning = None;
                if self.member.rank == Rank(0) {
                    self.member.tracker.record(Event::BucketSizeChosen {
                        step: self.session.next_step(),
                        bucket_bytes_max: size as u64,
                        buckets: strategy.buckets_of(size) as u64,
                    });
                }
                size
            }
        };
        strategy.set_bucket_bytes(size);
        Ok(())
    }
}
