//! [`TransactionError`]: the reason why a step could not begin or commit.

use ronde_core::byte_reader::ByteProblem;
use ronde_core::{CollectiveError, GroupRank, Recovery, Shard, Step};

/// The reason why a step could not begin or commit.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TransactionError {
    /// The collective that carries the vote failed.
    #[error("cannot vote on step {step}: {source}")]
    Vote {
        /// The step.
        step: Step,
        /// The collective's error.
        source: CollectiveError,
    },
    /// Ranks are not at the same step.
    #[error("rank {rank} votes on step {theirs}, this rank on step {mine}")]
    OtherStep {
        /// The rank that differs.
        rank: GroupRank,
        /// This rank's step.
        mine: Step,
        /// The other rank's step.
        theirs: Step,
    },
    /// A shard was not computed as planned.
    #[error("step {step}: shard {shard} {problem}")]
    Shards {
        /// The step.
        step: Step,
        /// The shard.
        shard: Shard,
        /// The problem.
        problem: ShardProblem,
    },
    /// The number of sample ids in the votes differs from the number of samples of the step.
    #[error("step {step}: {recorded} sample ids were recorded for {expected} samples")]
    SampleIds {
        /// The step.
        step: Step,
        /// The number of ids.
        recorded: u64,
        /// The number of samples.
        expected: u64,
    },
    /// A sample id that is not in the data set.
    #[error("step {step}: sample {sample} is not in the data set of {samples} samples")]
    UnknownSample {
        /// The step.
        step: Step,
        /// The id.
        sample: u64,
        /// Size of the data set.
        samples: u64,
    },
    /// The replicas' weights are no longer equal.
    #[error("weights differ between ranks after step {step}: hashes {}", hashes(.digests))]
    Diverged {
        /// The step after which the weights were hashed.
        step: Step,
        /// The hash of each rank.
        digests: Vec<u64>,
    },
    /// All members that had a complete state are lost.
    #[error("no member of the group has a complete state of the run")]
    StateLost,
    /// A vote that a correct peer of this version never sends.
    #[error("rank {rank} sent an invalid vote: {problem}")]
    BrokenVote {
        /// The sender.
        rank: usize,
        /// The problem.
        problem: VoteProblem,
    },
}

/// The problem of the bytes that another rank sent for a vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VoteProblem {
    /// They are too few or too many.
    #[error(transparent)]
    Bytes(#[from] ByteProblem),
    /// They have another version.
    #[error("version {theirs}, expected {expected}")]
    Version {
        /// The version of the sender.
        theirs: u32,
        /// The version of this rank.
        expected: u32,
    },
    /// The flag before the hash of the weights is neither 0 nor 1.
    #[error("invalid digest flag {0}")]
    DigestFlag(u64),
    /// The requests have bits without a meaning.
    #[error("invalid requests {0:#x}")]
    Requests(u64),
    /// The ledger that a member copies has another form.
    #[error("the ledger belongs to another data set")]
    Ledger,
    /// The reports of the members' states have another size.
    #[error("{0} bytes of state reports")]
    StateReports(usize),
}

fn hashes(digests: &[u64]) -> String {
    let each: Vec<String> = digests
        .iter()
        .enumerate()
        .map(|(rank, digest)| format!("{digest:016x} (rank {rank})"))
        .collect();
    each.join(", ")
}

impl TransactionError {
    /// Returns the caller's action for the error.
    #[must_use]
    pub fn recovery(&self) -> Recovery {
        match self {
            Self::Vote { source, .. } => source.recovery(),
            _ => Recovery::Abort,
        }
    }
}

/// The problem of a shard in the votes on a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShardProblem {
    /// The number of the shard is not below the number of shards.
    #[error("does not exist; there are {shards}")]
    Unknown {
        /// The number of shards.
        shards: u32,
    },
    /// Two ranks computed the shard, or one rank did twice.
    #[error("was computed twice")]
    Repeated,
    /// No rank computed the shard.
    #[error("was not computed by any rank")]
    Missing,
    /// The shard has another number of samples than planned.
    #[error("has {used} samples and skipped {skipped}, planned {planned}")]
    Samples {
        /// The number of samples that were used.
        used: u64,
        /// The number of samples that were left out.
        skipped: u64,
        /// The planned number of samples.
        planned: u64,
    },
}
