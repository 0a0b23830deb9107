//! [`Session`]: a step as a transaction, usable in any training loop.
//!
//! ```text
//! begin_step -> backward of my shards, record each -> reduce the gradients -> commit -> apply them
//!                                                  \-> abort: nothing has changed
//! ```
//!
//! [`Session::commit`] is a vote on the data plane: every rank confirms that it holds the complete
//! reduced gradient, and reports the samples that it used and the hash of its weights after the
//! previous step. Only when all ranks agree is the step final: the ledger and the cursor advance, and
//! the caller applies the gradient to its weights. No coordinator is involved.
//!
//! All decisions are those of [`Transaction`], which does no I/O: the bytes of all ranks in, the outcome out. A session
//! exchanges these bytes over a group; the simulation of a cluster exchanges them in its own way.
//!
//! Cost of a commit: one all-gather of about 70 bytes per rank, 36 per shard and 8 per sample.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::{BatchPlan, GlobalBatch};
use crate::ledger::{EpochVerdict, Ledger};
use crate::shards::ShardPlan;
use crate::{
    BatchCounts, CollectiveError, Collectives, CollectivesExt, Epoch, Generation, Shard, Step,
};

mod bytes;
mod catch_up;
mod error;
mod member_state;
mod rejoin;
mod requests;
mod slice_exchange;
mod transaction;
mod vote;

pub use catch_up::{CatchUp, CatchUpPlan, StateReport};
pub use error::{SessionError, ShardProblem};
pub use member_state::{LoadAgreement, MemberState, StateSource};
pub use requests::VoteRequests;
pub use slice_exchange::{SliceExchange, SliceExchangeError};
pub use transaction::{RankInGroup, Transaction};

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
    batch: GlobalBatch,
    run: Range<u32>,
    reports: Vec<ShardReport>,
    sample_ids: Vec<u64>,
    busy_s: f64,
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
    /// The requests of all ranks; see [`Session::request`].
    pub requests: VoteRequests,
    /// The seconds that each rank was busy with its shards, by rank; 0 for a rank that has not set them. See
    /// [`OpenStep::set_busy`].
    pub busy_s: Vec<f64>,
    /// The sums that ranks attached to their votes for applying the step, by rank; see [`Session::attach_sums`].
    pub sums: Vec<Vec<u8>>,
    /// The notes that ranks attached to their votes, by rank; see [`Session::attach`].
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

/// The outcome of [`Session::rejoin`].
#[derive(Debug, Clone, PartialEq)]
pub struct RejoinOutcome {
    /// The action of each rank before the next step.
    pub plan: CatchUpPlan,
    /// The step that became final, if this rank's action is [`CatchUp::ApplyGradient`]; the caller applies its
    /// gradient.
    pub committed: Option<CommittedStep>,
}

/// One rank's transaction log of a run, with the group over which the ranks vote.
pub struct Session {
    group: Arc<dyn Collectives>,
    transaction: Transaction,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.transaction.fmt(f)
    }
}

/// Returns the place of this rank in its group.
fn place(group: &dyn Collectives) -> RankInGroup {
    RankInGroup {
        rank: group.rank(),
        ranks: group.size(),
    }
}

impl Session {
    /// Creates a session at its first step. `shards` must assign shards to the ranks of `group`.
    #[must_use]
    pub fn new(
        group: Arc<dyn Collectives>,
        generation: Generation,
        batches: BatchPlan,
        shards: ShardPlan,
    ) -> Self {
        Self {
            transaction: Transaction::new(place(&*group), generation, batches, shards),
            group,
        }
    }

    /// Returns the transaction log.
    #[must_use]
    pub fn transaction(&self) -> &Transaction {
        &self.transaction
    }

    /// Returns the membership that computes the next step.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.transaction.generation()
    }

    /// Returns the number of samples of all committed steps.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.transaction.samples()
    }

    /// Returns the number of committed steps with counted targets.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.transaction.updates()
    }

    /// Does [`Transaction::announce`].
    pub fn announce(&mut self, newest: Generation) {
        self.transaction.announce(newest);
    }

    /// Returns the step that [`Session::begin_step`] will begin.
    #[must_use]
    pub fn next_step(&self) -> Step {
        self.transaction.next_step()
    }

    /// Returns the ledger as of the last commit.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        self.transaction.ledger()
    }

    /// Begins the next step. Does not change the session.
    pub fn begin_step(&self) -> OpenStep {
        self.transaction.begin_step()
    }

    /// Abandons a step. The session is unchanged, so the same step can begin again.
    pub fn abort(&self, open: OpenStep) {
        drop(open);
    }

    /// Does [`Transaction::set_digest`].
    pub fn set_digest(&mut self, digest: u64) {
        self.transaction.set_digest(digest);
    }

    /// Does [`Transaction::set_digest_of`].
    pub fn set_digest_of(&mut self, part: u32) {
        self.transaction.set_digest_of(part);
    }

    /// Votes that this rank holds the complete reduced gradient of a step. When this function returns, the
    /// step is final, and the caller applies the gradient.
    ///
    /// # Errors
    /// The vote failed, or ranks disagree about the step, its shards, its samples or the weights. The
    /// session is then unchanged.
    pub fn commit(&mut self, open: OpenStep) -> Result<CommittedStep, SessionError> {
        let votes = self.exchange(&open)?;
        self.transaction.commit(&open, votes)
    }

    /// Compares the weights of all ranks once more, after the last step.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub fn verify(&mut self) -> Result<(), SessionError> {
        let open = self.begin_step();
        let votes = self.exchange(&open)?;
        self.transaction.verify(&open, votes)
    }

    /// Exchanges the votes of all ranks; returns their concatenation.
    fn exchange(&self, open: &OpenStep) -> Result<Vec<u8>, SessionError> {
        self.gather(&self.transaction.vote(open))
    }

    fn gather(&self, bytes: &[u8]) -> Result<Vec<u8>, SessionError> {
        let vote_failed = |source: CollectiveError| SessionError::Vote {
            step: self.next_step(),
            source,
        };
        self.group.all_gather(bytes).map_err(vote_failed)
    }

    /// Continues the session in another group. All members of the group call this first. `holds_gradient`:
    /// whether the caller kept the complete reduced gradient of [`Session::next_step`].
    ///
    /// A member whose action is [`CatchUp::CopyState`] has the cursor and the ledger afterwards, but not yet the
    /// weights: the caller fetches them and then calls [`Session::healed`]. Cost: one small all-gather, and a
    /// second one that carries the last vote when a member missed it and the ledger when a member copies the
    /// state.
    ///
    /// # Errors
    /// The exchange failed, or the received data belongs to another run. The session is then unchanged except
    /// for its group, and can rejoin again.
    pub fn rejoin(
        &mut self,
        group: Arc<dyn Collectives>,
        generation: Generation,
        shards: ShardPlan,
        holds_gradient: bool,
    ) -> Result<RejoinOutcome, SessionError> {
        self.group = group;
        let place = place(&*self.group);
        self.transaction.enter(place, generation, shards);
        let reports = self.gather(&self.transaction.report(holds_gradient))?;
        let plan = self.transaction.plan(&reports)?;
        let committed = match plan.needs_snapshot() {
            true => {
                let snapshot = self.gather(&self.transaction.snapshot(&plan))?;
                self.transaction.catch_up(&plan, &snapshot)?
            }
            false => None,
        };
        Ok(RejoinOutcome { plan, committed })
    }

    /// Does [`Transaction::healed`].
    pub fn healed(&mut self, digest: u64) {
        self.transaction.healed(digest);
    }

    /// Does [`Transaction::give_up_state`].
    pub fn give_up_state(&mut self) {
        self.transaction.give_up_state();
    }

    /// Does [`Transaction::reshard`].
    pub fn reshard(&mut self, shards: ShardPlan) {
        self.transaction.reshard(shards);
    }

    /// Returns [`Transaction::cursor`].
    #[must_use]
    pub fn cursor(&self) -> Vec<u8> {
        self.transaction.cursor()
    }

    /// Does [`Transaction::resume`].
    #[must_use]
    pub fn resume(&mut self, cursor: &[u8], digest: u64) -> bool {
        self.transaction.resume(cursor, digest)
    }

    /// Does [`Transaction::request`].
    pub fn request(&mut self, requests: VoteRequests) {
        self.transaction.request(requests);
    }

    /// Returns [`Transaction::last_requests`].
    #[must_use]
    pub fn last_requests(&self) -> VoteRequests {
        self.transaction.last_requests()
    }

    /// Does [`Transaction::attach_sums`].
    pub fn attach_sums(&mut self, sums: Vec<u8>) {
        self.transaction.attach_sums(sums);
    }

    /// Does [`Transaction::attach`].
    pub fn attach(&mut self, note: Vec<u8>) {
        self.transaction.attach(note);
    }

    /// Returns whether no step has been committed yet.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.next_step() == Step(0)
    }

    /// Returns whether the state of this rank is complete: false while it is copied from other ranks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.transaction.is_complete()
    }
}

#[cfg(test)]
mod tests;
