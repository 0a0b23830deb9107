//! [`VoteRequests`]: requests that travel with votes.

use crate::Step;
use crate::session::Session;

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
        ];
        let bits = flags.iter().enumerate();
        bits.fold(0, |bits, (at, flag)| bits | u64::from(*flag) << at)
    }

    pub(super) fn from_bits(bits: u64) -> Result<Self, String> {
        let [save, stop, heals, evaluate, complete] = [1, 2, 4, 8, 16].map(|bit| bits & bit == bit);
        if bits > 31 {
            return Err(format!("invalid requests {bits:#x}"));
        }
        Ok(Self {
            save,
            stop,
            evaluate,
            complete,
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
            heals: all.heals || one.heals,
        })
    }
}

impl Session {
    /// Sends requests with the next vote; all ranks see them in [`super::CommittedStep::requests`] of the same
    /// step. They are repeated until a vote succeeds.
    pub fn request(&mut self, requests: VoteRequests) {
        self.requests = VoteRequests::union([self.requests, requests].into_iter());
    }

    /// Returns the requests of all ranks with the last committed step, also on a rank that missed its outcome or has
    /// copied the state since. None after [`Session::resume`].
    #[must_use]
    pub fn last_requests(&self) -> VoteRequests {
        self.last.requests
    }

    /// Sends bytes to all ranks with the next vote that succeeds; they arrive in
    /// [`super::CommittedStep::notes`]. A rank whose vote failed may send them twice. Cost: the bytes, to each rank.
    pub fn attach(&mut self, note: Vec<u8>) {
        self.note = note;
    }

    /// Forgets the requests and the note after a vote has carried them.
    pub(super) fn clear_carried(&mut self) {
        self.requests = VoteRequests::default();
        self.note.clear();
    }

    /// Returns whether no step has been committed yet.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.next == Step(0)
    }

    /// Returns whether the state of this rank is complete: false while it is copied from other ranks.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}
