//! [`Session`]: a step as a transaction, usable in any training loop.
//!
//! ```text
//! begin_step -> backward of my shards, record each -> reduce the gradients -> commit -> apply them
//!                                                  \-> abort: nothing has changed
//! ```
//!
//! [`Session::commit`] is a vote on the data plane; no coordinator is involved. All decisions are those of
//! [`Transaction`]; a session exchanges the bytes of all ranks over their group.
//!
//! Cost of a commit: one all-gather of about 70 bytes per rank, 36 per shard and 8 per sample.

use std::sync::Arc;

use ronde_core::batch::BatchPlan;
use ronde_core::shards::ShardPlan;
use ronde_core::{CollectiveError, Collectives, CollectivesExt, Generation, Step};
use ronde_protocol::ledger::Ledger;
use ronde_protocol::transaction::{
    CommittedStep, OpenStep, RankInGroup, Transaction, TransactionError, VoteRequests,
};

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
    pub fn commit(&mut self, open: OpenStep) -> Result<CommittedStep, TransactionError> {
        let votes = self.exchange(&self.transaction.vote(&open))?;
        self.transaction.commit(&open, votes)
    }

    /// Compares the weights of all ranks once more, after the last step.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub fn verify(&mut self) -> Result<(), TransactionError> {
        let open = self.begin_step();
        let votes = self.exchange(&self.transaction.vote(&open))?;
        self.transaction.verify(&open, votes)
    }

    /// Continues the session in another group. [`Rejoin`](ronde_protocol::Rejoin) determines when, and how its members reach the same
    /// step.
    pub fn enter(
        &mut self,
        group: Arc<dyn Collectives>,
        generation: Generation,
        shards: ShardPlan,
    ) {
        self.group = group;
        self.transaction
            .enter(place(&*self.group), generation, shards);
    }

    /// Exchanges bytes of all ranks, one after the other by rank.
    ///
    /// # Errors
    /// The exchange failed.
    pub fn exchange(&self, bytes: &[u8]) -> Result<Vec<u8>, TransactionError> {
        let vote_failed = |source: CollectiveError| TransactionError::Vote {
            step: self.next_step(),
            source,
        };
        self.group.all_gather(bytes).map_err(vote_failed)
    }

    /// Returns the transaction log, for [`Rejoin`](ronde_protocol::Rejoin).
    pub fn log_mut(&mut self) -> &mut Transaction {
        &mut self.transaction
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
