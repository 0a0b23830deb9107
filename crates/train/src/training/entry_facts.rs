//! [`EntryFacts`]: the facts of a member while it enters a generation.

use ronde_core::step_layout::StepLayout;
use ronde_core::{GroupRank, Step};
use ronde_protocol::RejoinError;
use ronde_protocol::transaction::{CatchUp, CatchUpPlan, MemberState};

/// The facts that a member learns on its way into a generation.
#[derive(Debug, Default)]
pub(super) struct EntryFacts {
    /// The assignment of layers and shards in the generation before.
    pub(super) before: Option<StepLayout>,
    /// The states of all members, as they sent them.
    pub(super) members: Vec<u64>,
    pub(super) has_loaded: bool,
    pub(super) plan: CatchUpPlan,
    /// Whether all members compute shards, or wait for those that copy the state.
    pub(super) all_compute: bool,
    /// The number of elements, from the first one, whose weights every member has already.
    pub(super) gathered: usize,
}

impl EntryFacts {
    pub(super) fn members(&self) -> Result<Vec<MemberState>, RejoinError> {
        MemberState::decode_all(&self.members).ok_or(RejoinError::State)
    }

    pub(super) fn copies(&self, rank: GroupRank) -> bool {
        self.plan.each.get(rank.index()) == Some(&CatchUp::CopyState)
    }

    /// Returns the last committed step; 0 if there is none.
    pub(super) fn last(&self) -> Step {
        Step(self.plan.next.0.saturating_sub(1))
    }
}
