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
//! Cost of a commit: one all-gather of about 32 bytes per rank, 28 per shard and 8 per sample.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::{BatchPlan, GlobalBatch};
use crate::ledger::{EpochVerdict, Ledger};
use crate::shards::ShardPlan;
use crate::{Collectives, CollectivesExt, Epoch, Generation, GroupRank, Shard, Step};

mod bytes;
mod catch_up;
mod error;
mod rejoin;
mod requests;
mod vote;

pub use catch_up::{CatchUp, CatchUpPlan, StateReport};
pub use error::{SessionError, ShardProblem};
pub use rejoin::RejoinOutcome;
pub use requests::VoteRequests;

use vote::Vote;

/// A rank's result for one shard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShardReport {
    /// The shard.
    pub shard: Shard,
    /// The number of samples that were used.
    pub samples: u64,
    /// The number of samples that could not be used and were left out.
    pub skipped: u64,
    /// Loss summed over its samples.
    pub loss_sum: f64,
}

/// A step that has begun and is neither committed nor aborted yet.
#[derive(Debug)]
#[must_use = "a step is committed or aborted"]
pub struct OpenStep {
    batch: GlobalBatch,
    run: Range<u32>,
    reports: Vec<ShardReport>,
    sample_ids: Vec<u64>,
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

    /// Records that the backward pass of a shard is done, and the samples that it used.
    pub fn record(&mut self, report: ShardReport, sample_ids: &[u64]) {
        self.reports.push(report);
        self.sample_ids.extend_from_slice(sample_ids);
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
    /// The number of samples of all ranks that were skipped because they cannot be read.
    pub skipped: u64,
    /// The mean loss. Losses are added in shard order, so its bits do not depend on the ranks.
    pub loss: f64,
    /// The check of the epoch's samples, if this step was its last.
    pub epoch_verdict: Option<EpochVerdict>,
    /// The newest generation that any rank knew of when it voted. When it is newer than `generation`, all
    /// ranks apply the step and then enter that generation.
    pub newest: Generation,
    /// The requests of all ranks; see [`Session::request`].
    pub requests: VoteRequests,
    /// The notes that ranks attached to their votes, by rank; see [`Session::attach`].
    pub notes: Vec<Vec<u8>>,
}

/// The votes of the last committed step, stored for a member that missed them.
#[derive(Debug, Clone, Default)]
struct LastVote {
    generation: Generation,
    ranks: usize,
    votes: Vec<u8>,
    /// The requests in the votes.
    requests: VoteRequests,
}

/// One rank's transaction log of a run.
pub struct Session {
    group: Arc<dyn Collectives>,
    generation: Generation,
    batches: BatchPlan,
    shards: ShardPlan,
    next: Step,
    digest: Option<u64>,
    ledger: Ledger,
    /// The number of samples of all committed steps.
    samples: u64,
    newest: Generation,
    last: LastVote,
    /// False while the weights are being copied from other ranks.
    is_complete: bool,
    requests: VoteRequests,
    note: Vec<u8>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Session(generation {}, next step {})",
            self.generation, self.next
        )
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
        let ledger = Ledger::new(batches.samples(), batches.samples_per_epoch());
        Self {
            group,
            generation,
            batches,
            shards,
            next: Step(0),
            digest: None,
            ledger,
            samples: 0,
            newest: generation,
            last: LastVote::default(),
            is_complete: true,
            requests: VoteRequests::default(),
            note: Vec::new(),
        }
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

    /// Announces a newer generation to all ranks with the next vote, so that all ranks leave the current
    /// one after the same step.
    pub fn announce(&mut self, newest: Generation) {
        self.newest = self.newest.max(newest);
    }

    /// Returns the step that [`Session::begin_step`] will begin.
    #[must_use]
    pub fn next_step(&self) -> Step {
        self.next
    }

    /// Returns the ledger as of the last commit.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Begins the next step. Does not change the session.
    pub fn begin_step(&self) -> OpenStep {
        OpenStep {
            batch: self.batches.batch(self.next),
            run: self.shards.run(self.group.rank()),
            reports: Vec::new(),
            sample_ids: Vec::new(),
        }
    }

    /// Abandons a step. The session is unchanged, so the same step can begin again.
    pub fn abort(&self, open: OpenStep) {
        drop(open);
    }

    /// Sets the hash of the weights after the last committed step was applied. It is compared across all
    /// ranks at the next commit or [`Session::verify`].
    pub fn set_digest(&mut self, digest: u64) {
        self.digest = Some(digest);
    }

    /// Votes that this rank holds the complete reduced gradient of a step. When this function returns, the
    /// step is final, and the caller applies the gradient.
    ///
    /// # Errors
    /// The vote failed, or ranks disagree about the step, its shards, its samples or the weights. The
    /// session is then unchanged.
    pub fn commit(&mut self, open: OpenStep) -> Result<CommittedStep, SessionError> {
        let last = LastVote {
            generation: self.generation,
            ranks: self.group.size(),
            votes: self.exchange(&open)?,
            requests: VoteRequests::default(),
        };
        let committed = self.settle(&open, last)?;
        self.clear_carried();
        Ok(committed)
    }

    /// Makes a step final with the votes of all ranks.
    fn settle(&mut self, open: &OpenStep, last: LastVote) -> Result<CommittedStep, SessionError> {
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
            .map_err(|sample| SessionError::UnknownSample {
                step: open.step(),
                sample,
                samples: self.batches.samples(),
            })?;
        let samples: u64 = reports.iter().map(|report| report.samples).sum();
        let loss_sum: f64 = reports.iter().map(|report| report.loss_sum).sum();
        let committed = CommittedStep {
            step: open.step(),
            epoch: open.batch.epoch,
            generation: last.generation,
            samples,
            skipped: reports.iter().map(|report| report.skipped).sum(),
            // A step may leave out all of its samples; the maximum avoids a division by zero.
            loss: loss_sum / samples.max(1) as f64,
            epoch_verdict: open.batch.ends_epoch.then(|| self.ledger.finish_epoch()),
            newest: votes
                .iter()
                .map(|vote| vote.newest)
                .max()
                .unwrap_or_default(),
            requests: VoteRequests::union(votes.iter().map(|vote| vote.requests)),
            notes: votes
                .iter_mut()
                .map(|v| std::mem::take(&mut v.note))
                .collect(),
        };
        self.samples += samples;
        self.last = LastVote {
            requests: committed.requests,
            ..last
        };
        self.next = self.next.next();
        self.digest = None;
        Ok(committed)
    }

    /// Compares the weights of all ranks once more, after the last step.
    ///
    /// # Errors
    /// As [`Session::commit`].
    pub fn verify(&mut self) -> Result<(), SessionError> {
        let open = self.begin_step();
        let last = LastVote {
            generation: self.generation,
            ranks: self.group.size(),
            votes: self.exchange(&open)?,
            requests: VoteRequests::default(),
        };
        self.check_digests(&decode(&last, &open)?)
    }

    /// Exchanges the votes of all ranks; returns their concatenation.
    fn exchange(&self, open: &OpenStep) -> Result<Vec<u8>, SessionError> {
        let mine = Vote {
            step: open.step(),
            digest: self.digest,
            newest: self.newest,
            reports: open.reports.clone(),
            sample_ids: open.sample_ids.clone(),
            requests: VoteRequests {
                heals: !self.is_complete,
                ..self.requests
            },
            note: self.note.clone(),
        };
        self.group
            .all_gather(&mine.encode())
            .map_err(|source| SessionError::Vote {
                step: open.step(),
                source,
            })
    }

    fn check_digests(&self, votes: &[Vote]) -> Result<(), SessionError> {
        let complete = || votes.iter().filter(|vote| !vote.requests.heals);
        let first = complete().next().map(|vote| vote.digest);
        if complete().all(|vote| Some(vote.digest) == first) {
            return Ok(());
        }
        let digests = votes.iter().map(|vote| vote.digest);
        Err(SessionError::Diverged {
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
    ) -> Result<Vec<ShardReport>, SessionError> {
        let step = open.step();
        let wrong = |shard: Shard, problem: ShardProblem| SessionError::Shards {
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
            return Err(SessionError::SampleIds {
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
fn decode(last: &LastVote, open: &OpenStep) -> Result<Vec<Vote>, SessionError> {
    let votes = vote::decode_all(&last.votes, last.ranks)
        .map_err(|(rank, problem)| SessionError::BrokenVote { rank, problem })?;
    let other = votes.iter().position(|vote| vote.step != open.step());
    if let Some(rank) = other {
        return Err(SessionError::OtherStep {
            rank: GroupRank(rank as u32),
            mine: open.step(),
            theirs: votes[rank].step,
        });
    }
    Ok(votes)
}

#[cfg(test)]
mod tests;
