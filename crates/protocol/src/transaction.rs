//! [`Transaction`]: a training step as a transaction, without I/O: the bytes of all ranks in, the outcome out.
//!
//! ```text
//! begin_step -> backward of my shards, record each -> reduce the gradients -> commit -> apply them
//!                                                  \-> dropped: nothing has changed
//! ```
//!
//! A commit is a vote of all ranks: each confirms that it holds the complete reduced gradient, and reports the samples that
//! it used and the hash of its weights after the previous step. Only when all ranks agree is the step final: the ledger and
//! the cursor advance, and the caller applies the gradient to its weights. The caller exchanges the bytes: the `Session` of
//! `ronde-train` over a group, the simulation of a cluster in its own way.

use std::collections::BTreeMap;

use ronde_core::batch::BatchPlan;
use ronde_core::shards::ShardPlan;
use ronde_core::{BatchCounts, Generation, GroupRank, Shard, Step};

use self::vote::Vote;
use crate::ledger::Ledger;

mod catch_up;
mod error;
mod member_state;
mod rejoin;
mod requests;
mod slice_exchange;
mod step;
#[cfg(test)]
mod tests;
mod vote;

pub use catch_up::{CatchUp, CatchUpPlan, StateReport};
pub use error::{ShardProblem, TransactionError, VoteProblem};
pub use member_state::{LoadAgreement, MemberState, StateSource};
pub use requests::VoteRequests;
pub use slice_exchange::{SliceExchange, SliceExchangeError};
pub use step::{CommittedStep, OpenStep, ShardReport};

/// The position of a rank in the group that votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankInGroup {
    /// The rank.
    pub rank: GroupRank,
    /// The number of ranks.
    pub ranks: usize,
}

/// The votes of the last committed step, stored for a member that missed them.
#[derive(Debug, Clone, Default)]
pub(super) struct LastVote {
    pub(super) generation: Generation,
    pub(super) ranks: usize,
    pub(super) votes: Vec<u8>,
    /// The requests in the votes.
    pub(super) requests: VoteRequests,
}

/// One rank's transaction log of a run, without I/O.
///
/// A step: [`Transaction::begin_step`]; the caller computes and reduces; all ranks exchange [`Transaction::vote`], and
/// [`Transaction::commit`] gets the votes of all, one after the other by rank. A new group: [`Transaction::enter`], then
/// all ranks exchange [`Transaction::report`] and get the [`Transaction::plan`], and, if it needs one,
/// [`Transaction::snapshot`], from which [`Transaction::catch_up`] continues.
pub struct Transaction {
    pub(super) place: RankInGroup,
    pub(super) generation: Generation,
    batches: BatchPlan,
    shards: ShardPlan,
    pub(super) next: Step,
    pub(super) digest: Option<u64>,
    /// The part of the model that this rank's digests are of.
    digest_of: u32,
    pub(super) ledger: Ledger,
    /// The number of samples of all committed steps.
    pub(super) samples: u64,
    /// The number of committed steps with counted targets.
    pub(super) updates: u64,
    newest: Generation,
    pub(super) last: LastVote,
    /// False while the weights are being copied from other ranks.
    pub(super) is_complete: bool,
    requests: VoteRequests,
    sums: Vec<u8>,
    note: Vec<u8>,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Transaction(generation {}, next step {})",
            self.generation, self.next
        )
    }
}

impl Transaction {
    /// Creates a log at its first step. `shards` must assign shards to the ranks of the group.
    #[must_use]
    pub fn new(
        place: RankInGroup,
        generation: Generation,
        batches: BatchPlan,
        shards: ShardPlan,
    ) -> Self {
        let ledger = Ledger::new(batches.samples(), batches.samples_per_epoch());
        Self {
            place,
            generation,
            batches,
            shards,
            next: Step(0),
            digest: None,
            digest_of: 0,
            ledger,
            samples: 0,
            updates: 0,
            newest: generation,
            last: LastVote::default(),
            is_complete: true,
            requests: VoteRequests::default(),
            sums: Vec::new(),
            note: Vec::new(),
        }
    }

    /// Continues in another group. All of its members call it first.
    pub fn enter(&mut self, place: RankInGroup, generation: Generation, shards: ShardPlan) {
        self.place = place;
        self.generation = generation;
        self.shards = shards;
        self.newest = generation;
    }

    /// Returns the membership that computes the next step.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the number of samples of all committed steps.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the number of committed steps with counted targets, which are those that update the weights.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// Announces a newer generation to all ranks with the next vote, so that all ranks leave the current
    /// one after the same step.
    pub fn announce(&mut self, newest: Generation) {
        self.newest = self.newest.max(newest);
    }

    /// Returns the step that [`Transaction::begin_step`] will begin.
    #[must_use]
    pub fn next_step(&self) -> Step {
        self.next
    }

    /// Returns the ledger as of the last commit.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Returns whether the state of this rank is complete: false while it is copied from other ranks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Begins the next step. Does not change the log.
    pub fn begin_step(&self) -> OpenStep {
        OpenStep {
            batch: self.batches.batch(self.next),
            run: self.shards.run(self.place.rank),
            reports: Vec::new(),
            sample_ids: Vec::new(),
            busy_s: 0.0,
        }
    }

    /// Sets the hash of the weights after the last committed step was applied. It is compared across all
    /// ranks at the next commit or [`Transaction::verify`].
    pub fn set_digest(&mut self, digest: u64) {
        self.digest = Some(digest);
    }

    /// Sets the part of the model that the digests of this rank are of, such as the layers that it has. Only digests of the
    /// same part are compared; by default, all ranks have the same.
    pub fn set_digest_of(&mut self, part: u32) {
        self.digest_of = part;
    }

    /// Replaces the assignment of shards to ranks, from the next step on. All ranks call it at the same step.
    pub fn reshard(&mut self, shards: ShardPlan) {
        self.shards = shards;
    }

    /// Notes that this rank has received the whole state; `digest` as for [`Transaction::set_digest`].
    pub fn healed(&mut self, digest: u64) {
        self.digest = Some(digest);
        self.is_complete = true;
    }

    /// Notes that this rank's state is not used any more, because other members continue from an earlier one: it copies that.
    pub fn give_up_state(&mut self) {
        self.is_complete = false;
    }

    /// Sends requests with the next vote; all ranks see them in [`CommittedStep::requests`] of the same
    /// step. They are repeated until a vote succeeds.
    pub fn request(&mut self, requests: VoteRequests) {
        self.requests = VoteRequests::union([self.requests, requests].into_iter());
    }

    /// Returns the requests of all ranks with the last committed step, also on a rank that missed its outcome or has
    /// copied the state since. None after [`Transaction::resume`].
    #[must_use]
    pub fn last_requests(&self) -> VoteRequests {
        self.last.requests
    }

    /// Sends bytes to all ranks with the next vote that succeeds; they arrive in
    /// [`CommittedStep::notes`]. A rank whose vote failed may send them twice. Cost: the bytes, to each rank.
    pub fn attach(&mut self, note: Vec<u8>) {
        self.note = note;
    }

    /// Sends what all ranks need from this one to apply the step with the next vote; it arrives in
    /// [`CommittedStep::sums`], also on a rank that missed the outcome. Cost: the bytes, to each rank.
    pub fn attach_sums(&mut self, sums: Vec<u8>) {
        self.sums = sums;
    }

    /// Returns this rank's vote that it holds the complete reduced gradient of a step, for all ranks.
    #[must_use]
    pub fn vote(&self, open: &OpenStep) -> Vec<u8> {
        let vote = Vote {
            step: open.step(),
            digest: self.digest,
            digest_of: self.digest_of,
            newest: self.newest,
            reports: open.reports.clone(),
            sample_ids: open.sample_ids.clone(),
            requests: VoteRequests {
                heals: !self.is_complete,
                ..self.requests
            },
            busy_s: open.busy_s,
            sums: self.sums.clone(),
            note: self.note.clone(),
        };
        vote.encode()
    }

    /// Makes a step final with the votes of all ranks; the caller applies its gradient.
    ///
    /// # Errors
    /// Ranks disagree about the step, its shards, its samples or the weights. The log is then unchanged.
    pub fn commit(
        &mut self,
        open: &OpenStep,
        votes: Vec<u8>,
    ) -> Result<CommittedStep, TransactionError> {
        let committed = self.settle(open, self.received(votes))?;
        // The vote has carried them.
        self.requests = VoteRequests::default();
        self.sums.clear();
        self.note.clear();
        Ok(committed)
    }

    /// Compares the weights of all ranks once more, after the last step, from votes on a step that does not follow.
    ///
    /// # Errors
    /// As [`Transaction::commit`].
    pub fn verify(&self, open: &OpenStep, votes: Vec<u8>) -> Result<(), TransactionError> {
        self.check_digests(&decode(&self.received(votes), open)?)
    }

    /// Returns votes of this group.
    fn received(&self, votes: Vec<u8>) -> LastVote {
        LastVote {
            generation: self.generation,
            ranks: self.place.ranks,
            votes,
            requests: VoteRequests::default(),
        }
    }

    /// Makes a step final with the votes of all ranks.
    pub(super) fn settle(
        &mut self,
        open: &OpenStep,
        last: LastVote,
    ) -> Result<CommittedStep, TransactionError> {
        let mut votes = decode(&last, open)?;
        self.check_digests(&votes)?;
        let reports = self.check_shards(open, &votes)?;
        let ids: Vec<u64> = votes
            .iter()
            .flat_map(|vote| &vote.sample_ids)
            .copied()
            .collect();
        self.ledger
            .enter(&ids)
            .map_err(|sample| TransactionError::UnknownSample {
                step: open.step(),
                sample,
                samples: self.batches.samples(),
            })?;
        let counts: BatchCounts = reports.iter().map(ShardReport::counts).sum();
        let loss_sum: f64 = reports.iter().map(|report| report.loss_sum).sum();
        let committed = CommittedStep {
            step: open.step(),
            epoch: open.batch.epoch,
            generation: last.generation,
            samples: counts.samples,
            targets: counts.targets,
            updates: self.updates + u64::from(counts.targets > 0),
            skipped: reports.iter().map(|report| report.skipped).sum(),
            loss: match counts.targets {
                0 => f64::NAN,
                targets => loss_sum / targets as f64,
            },
            epoch_verdict: open.batch.ends_epoch.then(|| self.ledger.finish_epoch()),
            newest: votes
                .iter()
                .map(|vote| vote.newest)
                .max()
                .unwrap_or_default(),
            requests: VoteRequests::union(votes.iter().map(|vote| vote.requests)),
            busy_s: votes.iter().map(|vote| vote.busy_s).collect(),
            sums: votes
                .iter_mut()
                .map(|v| std::mem::take(&mut v.sums))
                .collect(),
            notes: votes
                .iter_mut()
                .map(|v| std::mem::take(&mut v.note))
                .collect(),
            sample_ids: ids,
        };
        self.samples += committed.samples;
        self.updates = committed.updates;
        self.last = LastVote {
            requests: committed.requests,
            ..last
        };
        self.next = self.next.next();
        self.digest = None;
        Ok(committed)
    }

    fn check_digests(&self, votes: &[Vote]) -> Result<(), TransactionError> {
        let complete = || votes.iter().filter(|vote| !vote.requests.heals);
        let mut first: BTreeMap<u32, Option<u64>> = BTreeMap::new();
        if complete().all(|vote| *first.entry(vote.digest_of).or_insert(vote.digest) == vote.digest)
        {
            return Ok(());
        }
        let digests = votes.iter().map(|vote| vote.digest);
        Err(TransactionError::Diverged {
            step: Step(self.next.0.saturating_sub(1)),
            digests: digests.map(Option::unwrap_or_default).collect(),
        })
    }

    /// Checks that every shard was computed exactly once with the planned number of samples; returns the
    /// reports in shard order.
    fn check_shards(
        &self,
        open: &OpenStep,
        votes: &[Vote],
    ) -> Result<Vec<ShardReport>, TransactionError> {
        let step = open.step();
        let wrong = |shard: Shard, problem: ShardProblem| TransactionError::Shards {
            step,
            shard,
            problem,
        };
        let shards = self.shards.shards();
        let mut by_shard: Vec<Option<ShardReport>> = vec![None; shards as usize];
        for report in votes.iter().flat_map(|vote| &vote.reports) {
            let shard = report.shard;
            let entry = by_shard
                .get_mut(shard.index())
                .ok_or_else(|| wrong(shard, ShardProblem::Unknown { shards }))?;
            if entry.replace(*report).is_some() {
                return Err(wrong(shard, ShardProblem::Repeated));
            }
            let range = self.shards.samples(shard, open.batch.samples());
            let planned = range.end - range.start;
            let (used, skipped) = (report.samples, report.skipped);
            if used.checked_add(skipped) != Some(planned) {
                let problem = ShardProblem::Samples {
                    used,
                    skipped,
                    planned,
                };
                return Err(wrong(shard, problem));
            }
        }
        let (recorded, expected) = (
            votes.iter().map(|vote| vote.sample_ids.len() as u64).sum(),
            open.batch.samples(),
        );
        if recorded != expected {
            return Err(TransactionError::SampleIds {
                step,
                recorded,
                expected,
            });
        }
        by_shard
            .into_iter()
            .enumerate()
            .map(|(shard, report)| {
                report.ok_or_else(|| wrong(Shard(shard as u32), ShardProblem::Missing))
            })
            .collect()
    }
}

/// Decodes the votes on `open`, one per rank.
fn decode(last: &LastVote, open: &OpenStep) -> Result<Vec<Vote>, TransactionError> {
    let votes = vote::decode_all(&last.votes, last.ranks)
        .map_err(|(rank, problem)| TransactionError::BrokenVote { rank, problem })?;
    let other = votes.iter().position(|vote| vote.step != open.step());
    if let Some(rank) = other {
        return Err(TransactionError::OtherStep {
            rank: GroupRank(rank as u32),
            mine: open.step(),
            theirs: votes[rank].step,
        });
    }
    Ok(votes)
}
