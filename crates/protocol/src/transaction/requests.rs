//! [`VoteRequests`]: requests that travel with votes.

use super::VoteProblem;

/// Requests of a rank to all ranks, carried by its vote on a step and fulfilled after that step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VoteRequests {
    /// Save the state.
    pub save: bool,
    /// Interrupt the run, to be resumed later.
    pub stop: bool,
    /// Evaluate the model.
    pub evaluate: bool,
    /// Complete the run: this step is its last one.
    pub complete: bool,
    /// Save a divided state before the next generation begins, because it lacks a member of this one.
    pub leaves: bool,
    /// The rank's state is not complete yet: the rank copies it from others, holds no shard, and its weights
    /// are not compared. The session sets this by itself.
    pub heals: bool,
}

impl VoteRequests {
    pub(super) fn to_bits(self) -> u64 {
        let flags = [
            self.save,
            self.stop,
            self.heals,
            self.evaluate,
            self.complete,
            self.leaves,
        ];
        let bits = flags.iter().enumerate();
        bits.fold(0, |bits, (at, flag)| bits | u64::from(*flag) << at)
    }

    pub(super) fn from_bits(bits: u64) -> Result<Self, VoteProblem> {
        let [save, stop, heals, evaluate, complete, leaves] =
            [1, 2, 4, 8, 16, 32].map(|bit| bits & bit == bit);
        if bits > 63 {
            return Err(VoteProblem::Requests(bits));
        }
        Ok(Self {
            save,
            stop,
            evaluate,
            complete,
            leaves,
            heals,
        })
    }

    /// Returns the union of the requests of all ranks.
    pub(super) fn union(each: impl Iterator<Item = Self>) -> Self {
        each.fold(Self::default(), |all, one| Self {
            save: all.save || one.save,
            stop: all.stop || one.stop,
            evaluate: all.evaluate || one.evaluate,
            complete: all.complete || one.complete,
            leaves: all.leaves || one.leaves,
            heals: all.heals || one.heals,
        })
    }
}
