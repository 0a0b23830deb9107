//! The parts of a step: [`ShardReport`], [`OpenStep`], [`CommittedStep`].

use std::ops::Range;

use ronde_core::batch::GlobalBatch;
use ronde_core::{BatchCounts, Epoch, Generation, Shard, Step};

use crate::ledger::EpochVerdict;
use crate::transaction::VoteRequests;

/// A rank's result for one shard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShardReport {
    /// The shard.
    pub shard: Shard,
    /// The number of samples that were used.
    pub samples: u64,
    /// The number of targets that the loss counts, see [`BatchCounts::targets`].
    pub targets: u64,
    /// The number of samples that could not be used and were left out.
    pub skipped: u64,
    /// Loss summed over the counted targets.
    pub loss_sum: f64,
}

impl ShardReport {
    /// Creates the report of a shard without samples.
    #[must_use]
    pub fn empty(shard: Shard) -> Self {
        Self {
            shard,
            samples: 0,
            targets: 0,
            skipped: 0,
            loss_sum: 0.0,
        }
    }

    /// Returns the numbers that the shard's sums count in.
    #[must_use]
    pub fn counts(&self) -> BatchCounts {
        BatchCounts {
            samples: self.samples,
            targets: self.targets,
        }
    }

    /// Adds the samples, the targets and the loss of another report; not those left out.
    pub fn add(&mut self, other: &Self) {
        self.samples += other.samples;
        self.targets += other.targets;
        self.loss_sum += other.loss_sum;
    }
}

/// A step that has begun and is neither committed nor aborted yet.
#[derive(Debug)]
#[must_use = "a step is committed or aborted"]
pub struct OpenStep {
    pub(super) batch: GlobalBatch,
    pub(super) run: Range<u32>,
    pub(super) reports: Vec<ShardReport>,
    pub(super) sample_ids: Vec<u64>,
    pub(super) busy_s: f64,
}

impl OpenStep {
    /// Returns the samples of the step.
    #[must_use]
    pub fn batch(&self) -> &GlobalBatch {
        &self.batch
    }

    /// Returns the step's number.
    #[must_use]
    pub fn step(&self) -> Step {
        self.batch.step
    }

    /// Returns the logical shards that this rank computes.
    #[must_use]
    pub fn run(&self) -> Range<u32> {
        self.run.clone()
    }

    /// Returns the numbers of samples and counted targets of the results recorded so far.
    #[must_use]
    pub fn counts(&self) -> BatchCounts {
        self.reports.iter().map(ShardReport::counts).sum()
    }

    /// Returns the results recorded so far.
    #[must_use]
    pub fn reports(&self) -> &[ShardReport] {
        &self.reports
    }

    /// Records that the backward pass of a shard is done, and the samples that it used.
    pub fn record(&mut self, report: ShardReport, sample_ids: &[u64]) {
        self.reports.push(report);
        self.sample_ids.extend_from_slice(sample_ids);
    }

    /// Records samples of shards that another rank reports.
    pub fn record_samples(&mut self, sample_ids: &[u64]) {
        self.sample_ids.extend_from_slice(sample_ids);
    }

    /// Sets the seconds that this rank was busy with its shards; they arrive in [`CommittedStep::busy_s`] of all ranks.
    pub fn set_busy(&mut self, seconds: f64) {
        self.busy_s = seconds;
    }
}

/// A step that is final on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct CommittedStep {
    /// The step.
    pub step: Step,
    /// The pass over the data that the step belongs to.
    pub epoch: Epoch,
    /// The membership that computed it.
    pub generation: Generation,
    /// The number of samples of all ranks.
    pub samples: u64,
    /// The number of targets of all ranks that the loss counts. Without any, no weight changes.
    pub targets: u64,
    /// The number of committed steps with counted targets, including this one.
    pub updates: u64,
    /// The number of samples of all ranks that were skipped because they cannot be read.
    pub skipped: u64,
    /// The mean loss over the counted targets; NaN without any. Losses are added in shard order, so its bits do not depend
    /// on the ranks.
    pub loss: f64,
    /// The check of the epoch's samples, if this step was its last.
    pub epoch_verdict: Option<EpochVerdict>,
    /// The newest generation that any rank knew of when it voted. When it is newer than `generation`, all
    /// ranks apply the step and then enter that generation.
    pub newest: Generation,
    /// The requests of all ranks; see [`Transaction::request`](super::Transaction::request).
    pub requests: VoteRequests,
    /// The seconds that each rank was busy with its shards, by rank; 0 for a rank that has not set them. See
    /// [`OpenStep::set_busy`].
    pub busy_s: Vec<f64>,
    /// The sums that ranks attached to their votes for applying the step, by rank; see [`Transaction::attach_sums`](super::Transaction::attach_sums).
    pub sums: Vec<Vec<u8>>,
    /// The notes that ranks attached to their votes, by rank; see [`Transaction::attach`](super::Transaction::attach).
    pub notes: Vec<Vec<u8>>,
    /// The samples of the step, rank by rank.
    pub sample_ids: Vec<u64>,
}

impl CommittedStep {
    /// Returns the numbers that the sums of the step are divided by.
    #[must_use]
    pub fn counts(&self) -> BatchCounts {
        BatchCounts {
            samples: self.samples,
            targets: self.targets,
        }
    }
}
