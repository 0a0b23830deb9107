//! [`Session`]: a step as a transaction, usable in any training loop.
//!
//! ```text
//! begin_step -> backward of my shards, record each -> reduce the gradients -> commit -> apply them
//!                                                  \-> abort: nothing has changed
//! ```
//!
//! [`Session::commit`] is a vote on the data plane: every rank says that it holds the complete
//! reduced gradient, which samples it used, and what its weights hashed to after the step before.
//! Only when all agree the step is final, the ledger is entered and the cursor moves; the caller
//! then applies the gradient to its weights. Nothing of this needs a coordinator.
//!
//! Cost of a commit: one all-gather of about 32 bytes a rank, 28 a shard and 8 a sample.

use std::ops::Range;
use std::sync::Arc;

use crate::batch::{BatchPlan, GlobalBatch};
use crate::ledger::{EpochVerdict, Ledger};
use crate::shards::ShardPlan;
use crate::{
    CollectiveError, Collectives, CollectivesExt, Epoch, Generation, GroupRank, Recovery, Shard,
    Step,
};

mod bytes;
mod rejoin;
mod standing;
mod vote;
mod wishes;

pub use rejoin::Rejoined;
pub use standing::{Course, Courses, Standing};
pub use wishes::Wishes;

use vote::Vote;

/// Why a step could not begin or commit.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The vote itself failed.
    #[error("the vote on step {step} failed: {source}")]
    Vote {
        /// Which step.
        step: Step,
        /// The collective's error.
        source: CollectiveError,
    },
    /// Ranks do not stand at the same step.
    #[error("rank {rank} votes on step {theirs}, this rank on step {mine}")]
    OtherStep {
        /// Who.
        rank: GroupRank,
        /// This rank's step.
        mine: Step,
        /// Its step.
        theirs: Step,
    },
    /// A shard was computed by nobody or twice, or with another count of samples than planned.
    #[error("step {step}: shard {shard} {problem}")]
    Shards {
        /// Which step.
        step: Step,
        /// Which shard.
        shard: Shard,
        /// What is wrong.
        problem: String,
    },
    /// A sample id that is not in the data set.
    #[error("step {step}: sample {sample} is not in the data set of {samples}")]
    UnknownSample {
        /// Which step.
        step: Step,
        /// The id.
        sample: u64,
        /// Size of the data set.
        samples: u64,
    },
    /// The replicas' weights are no longer equal.
    #[error("weights differ between ranks after step {step}: hashes {}", hashes(.digests))]
    Diverged {
        /// After which step they were hashed.
        step: Step,
        /// The hash of each rank.
        digests: Vec<u64>,
    },
    /// All members that had a complete state are gone.
    #[error("no member of the group has the state of the run any more")]
    StateLost,
    /// A vote that no honest peer of this version sends.
    #[error("rank {rank} sent a broken vote: {problem}")]
    BrokenVote {
        /// Who.
        rank: usize,
        /// What is wrong with it.
        problem: String,
    },
}

fn hashes(digests: &[u64]) -> String {
    let each: Vec<String> = digests
        .iter()
        .enumerate()
        .map(|(rank, digest)| format!("{digest:016x} (rank {rank})"))
        .collect();
    each.join(", ")
}

impl SessionError {
    /// What to do about it.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Vote { source, .. } => source.recovery(),
            _ => Recovery::Abort,
        }
    }
}

/// What a rank computed for one shard.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShardReport {
    /// Which shard.
    pub shard: Shard,
    /// Samples that were used.
    pub samples: u64,
    /// Samples that cannot be used and were left out.
    pub skipped: u64,
    /// Loss summed over its samples.
    pub loss_sum: f64,
    /// Right answers among its samples.
    pub correct: u64,
}

/// A step that has begun and is neither committed nor aborted.
#[derive(Debug)]
#[must_use = "a step is committed or aborted"]
pub struct OpenStep {
    batch: GlobalBatch,
    run: Range<u32>,
    reports: Vec<ShardReport>,
    sample_ids: Vec<u64>,
}

impl OpenStep {
    /// The samples of the step.
    #[must_use]
    pub fn batch(&self) -> &GlobalBatch {
        &self.batch
    }

    /// The step's number.
    #[must_use]
    pub fn step(&self) -> Step {
        self.batch.step
    }

    /// The logical shards that this rank computes.
    #[must_use]
    pub fn run(&self) -> Range<u32> {
        self.run.clone()
    }

    /// Notes that the backward pass of a shard is done, and which samples it used.
    pub fn record(&mut self, report: ShardReport, sample_ids: &[u64]) {
        self.reports.push(report);
        self.sample_ids.extend_from_slice(sample_ids);
    }
}

/// A step that is final on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Committed {
    /// Which.
    pub step: Step,
    /// Pass over the data that it belongs to.
    pub epoch: Epoch,
    /// Membership that computed it.
    pub generation: Generation,
    /// Samples of all ranks.
    pub samples: u64,
    /// Mean loss; the sum is formed in shard order, so its bits do not depend on the ranks.
    pub loss: f64,
    /// Right answers of all ranks.
    pub correct: u64,
    /// What became of the epoch's samples, when this step was its last.
    pub epoch_verdict: Option<EpochVerdict>,
    /// The newest generation that any rank knew of when it voted. When it is newer than this one, all
    /// ranks apply the step and then go there.
    pub newest: Generation,
    /// What any rank wished for with its vote; see [`Session::wish`].
    pub wishes: Wishes,
    /// What ranks told each other beside the step, by rank; see [`Session::attach`].
    pub notes: Vec<Vec<u8>>,
}

/// The votes of the last committed step, kept for a member that missed them.
#[derive(Debug, Clone, Default)]
struct LastVote {
    generation: Generation,
    ranks: usize,
    votes: Vec<u8>,
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
    /// Samples of all committed steps.
    samples: u64,
    newest: Generation,
    last: LastVote,
    /// False while the weights are being taken over from others.
    is_whole: bool,
    wishes: Wishes,
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
    /// A session at its first step. `shards` must be dealt over the ranks of `group`.
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
            is_whole: true,
            wishes: Wishes::default(),
            note: Vec::new(),
        }
    }

    /// The membership that the next step is computed by.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Samples of all committed steps.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// This rank has heard of a newer generation: the next vote tells the others, so that all leave
    /// after the same step.
    pub fn announce(&mut self, newest: Generation) {
        self.newest = self.newest.max(newest);
    }

    /// The step that [`Session::begin_step`] will begin.
    #[must_use]
    pub fn next_step(&self) -> Step {
        self.next
    }

    /// The ledger as of the last commit.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Begins the next step. Changes nothing.
    pub fn begin_step(&self) -> OpenStep {
        OpenStep {
            batch: self.batches.batch(self.next),
            run: self.shards.run(self.group.rank()),
            reports: Vec::new(),
            sample_ids: Vec::new(),
        }
    }

    /// Gives a step up: nothing has changed, and the same step begins again.
    pub fn abort(&self, open: OpenStep) {
        drop(open);
    }

    /// Says what the weights hashed to after the last committed step was applied; compared with all
    /// ranks at the next commit or [`Session::verify`].
    pub fn set_digest(&mut self, digest: u64) {
        self.digest = Some(digest);
    }

    /// Votes that this rank holds the complete reduced gradient of a step. When it returns, the step
    /// is final, and the caller applies the gradient.
    ///
    /// # Errors
    /// The vote failed, or ranks disagree about the step, its shards, its samples or the weights.
    /// Nothing has changed then.
    pub fn commit(&mut self, open: OpenStep) -> Result<Committed, SessionError> {
        let last = LastVote {
            generation: self.generation,
            ranks: self.group.size(),
            votes: self.exchange(&open)?,
        };
        let committed = self.settle(&open, last)?;
        self.told();
        Ok(committed)
    }

    /// Makes a step final with the votes of all ranks.
    fn settle(&mut self, open: &OpenStep, last: LastVote) -> Result<Committed, SessionError> {
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
        let committed = Committed {
            step: open.step(),
            epoch: open.batch.epoch,
            generation: last.generation,
            samples,
            // Of a step all of whose samples were left out: nothing is learnt, nothing is divided by zero.
            loss: loss_sum / samples.max(1) as f64,
            correct: reports.iter().map(|report| report.correct).sum(),
            epoch_verdict: open.batch.ends_epoch.then(|| self.ledger.finish_epoch()),
            newest: votes
                .iter()
                .map(|vote| vote.newest)
                .max()
                .unwrap_or_default(),
            wishes: Wishes::all(votes.iter().map(|vote| vote.wishes)),
            notes: votes
                .iter_mut()
                .map(|v| std::mem::take(&mut v.note))
                .collect(),
        };
        self.samples += samples;
        self.last = last;
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
        };
        self.check_digests(&decode(&last, &open)?)
    }

    /// The votes of all ranks, one after the other.
    fn exchange(&self, open: &OpenStep) -> Result<Vec<u8>, SessionError> {
        let mine = Vote {
            step: open.step(),
            digest: self.digest,
            newest: self.newest,
            reports: open.reports.clone(),
            sample_ids: open.sample_ids.clone(),
            wishes: Wishes {
                heals: !self.is_whole,
                ..self.wishes
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
        let whole = || votes.iter().filter(|vote| !vote.wishes.heals);
        let first = whole().next().map(|vote| vote.digest);
        if whole().all(|vote| Some(vote.digest) == first) {
            return Ok(());
        }
        let digests = votes.iter().map(|vote| vote.digest);
        Err(SessionError::Diverged {
            step: Step(self.next.0.saturating_sub(1)),
            digests: digests.map(Option::unwrap_or_default).collect(),
        })
    }

    /// Every shard exactly once, with the planned count of samples; in shard order.
    fn check_shards(
        &self,
        open: &OpenStep,
        votes: &[Vote],
    ) -> Result<Vec<ShardReport>, SessionError> {
        let wrong = |shard: u32, problem: String| SessionError::Shards {
            step: open.step(),
            shard: Shard(shard),
            problem,
        };
        let mut by_shard: Vec<Option<ShardReport>> = vec![None; self.shards.shards() as usize];
        for report in votes.iter().flat_map(|vote| &vote.reports) {
            let shard = report.shard;
            let Some(place) = by_shard.get_mut(shard.index()) else {
                return Err(wrong(
                    shard.0,
                    format!("does not exist; there are {}", self.shards.shards()),
                ));
            };
            if place.replace(*report).is_some() {
                return Err(wrong(shard.0, "was computed twice".to_owned()));
            }
            let range = self.shards.samples(shard, open.batch.samples());
            let planned = range.end - range.start;
            if report.samples.checked_add(report.skipped) != Some(planned) {
                let ShardReport {
                    samples, skipped, ..
                } = report;
                return Err(wrong(
                    shard.0,
                    format!("has {samples} samples and skipped {skipped}, planned {planned}"),
                ));
            }
        }
        let ids: usize = votes.iter().map(|vote| vote.sample_ids.len()).sum();
        if ids as u64 != open.batch.samples() {
            let problem = format!(
                "(any): {ids} sample ids were entered for {} samples",
                open.batch.samples()
            );
            return Err(wrong(0, problem));
        }
        by_shard
            .into_iter()
            .enumerate()
            .map(|(shard, report)| {
                report.ok_or_else(|| wrong(shard as u32, "was computed by nobody".to_owned()))
            })
            .collect()
    }
}

/// The votes on `open`, one a rank.
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
