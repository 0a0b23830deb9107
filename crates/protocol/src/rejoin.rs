//! [`Rejoin`]: the order in which the members of a new generation reach the same state. Without I/O.
//!
//! ```text
//! exchange states -> [wait for silent workers that have the state] -> [load an earlier state]
//!   -> exchange reports -> plan -> [exchange a missed outcome] -> [apply the missed step] -> report the plan -> assign shards
//!   -> the state is whole:   copy it to members without it
//!      the state is divided: exchange slices -> choose a layout -> move -> gather weights -> confirm -> keep
//!   -> continue
//! ```
//!
//! Members with a whole state continue while others copy it; members of a divided state need each other's slices and continue
//! together. A loss at any moment ends the order: the survivors begin again in the next generation. Until they confirm, all keep what
//! they had, so that nothing depends on the member that was lost.

use ronde_core::Step;

use crate::holdings::{HeldRanges, Move};
use crate::transaction::{
    CatchUp, CatchUpPlan, CommittedStep, MemberState, SliceExchange, SliceExchangeError,
    StateSource, Transaction, TransactionError,
};

/// The next action of a member. Each request has one [`RejoinAnswer`]; without another note it is `Done`.
#[derive(Debug, Clone, PartialEq)]
pub enum RejoinAsk {
    /// Exchange [`MemberState::encode`] of all members; the answer is `Words`.
    ExchangeStates,
    /// The members do not have a complete state together: wait for silent workers that have the rest, if there are any.
    WaitForState,
    /// Give up a later state, if the members have only parts.
    GiveUpState,
    /// Load the newest earlier state that all members can load.
    Load(StateSource),
    /// Enter the group with the log of steps, and exchange [`Transaction::report`]; the answer is `Bytes`.
    ExchangeReports,
    /// Exchange these bytes, which some members missed; the answer is `Bytes`.
    ExchangeSnapshot(Vec<u8>),
    /// Apply the gradient that this member has kept: its step is final.
    Apply(CommittedStep),
    /// Report to the coordinator that all members have agreed on the next step, and that this one has the state before it.
    Report {
        /// The next step.
        next: Step,
        /// Whether this member's state is complete.
        is_complete: bool,
    },
    /// Assign the shards, and the parts of the model, to the members.
    Assign,
    /// Begin to copy the whole state to the members without it.
    Copy,
    /// Exchange these words about the slices of all members; the answer is `Words`.
    ExchangeSlices(Vec<u64>),
    /// Choose which member holds which elements, from the words of all; the answer is `Layout`.
    ChooseLayout(Vec<u64>),
    /// Move these slices; before the first step, every member has the initial state instead.
    Move(Vec<Move>),
    /// The state of this member is complete.
    Healed,
    /// Gather the weights that this member needs from those that have them.
    GatherWeights,
    /// Wait until all members have reached this point.
    Confirm,
    /// Hold only these elements from now on.
    Keep(HeldRanges),
    /// The order is complete.
    Continue,
}

/// The answer to a [`RejoinAsk`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RejoinAnswer {
    /// It is done.
    Done,
    /// The words of all members, one after the other by rank.
    Words(Vec<u64>),
    /// The bytes of all members, one after the other by rank.
    Bytes(Vec<u8>),
    /// The elements that each member holds, by rank.
    Layout(Vec<HeldRanges>),
}

/// The reason why the members of a generation cannot continue together.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum RejoinError {
    /// The logs of their steps contradict each other, or no member has the state.
    #[error(transparent)]
    Log(#[from] TransactionError),
    /// Some slices of the state are lost, or a report of them is invalid.
    #[error(transparent)]
    Slices(#[from] SliceExchangeError),
    /// A report of a member's state is invalid.
    #[error("a report of a member's state is invalid")]
    State,
    /// The caller answered another question, which is a bug.
    #[error("the answer does not belong to the question")]
    Answer,
}

/// The last question.
#[derive(Debug)]
enum Phase {
    Begin,
    States,
    Waited(StateSource),
    Loading,
    Reports,
    Snapshot,
    Applied,
    Reported,
    Assigned,
    Slices,
    Layout(Vec<u64>),
    Moved,
    Gathering,
    Gathered,
    Confirmed,
    Kept,
    Over,
}

/// One member's way into a generation.
#[derive(Debug)]
pub struct Rejoin {
    rank: usize,
    /// The number of elements of the state, if it is divided among the members.
    divided: bool,
    elements: usize,
    phase: Phase,
    plan: CatchUpPlan,
}

impl Rejoin {
    /// Begins with the states of the members. `elements`: the number of elements of the state that the members have together;
    /// `divided`: whether each has only a part of it.
    #[must_use]
    pub fn new(rank: usize, elements: usize, divided: bool) -> Self {
        Self {
            rank,
            divided,
            elements,
            phase: Phase::Begin,
            plan: CatchUpPlan::default(),
        }
    }

    /// Begins with the logs of members that never load a state: without checkpoints, and with the whole state on each.
    #[must_use]
    pub fn of_logs(rank: usize) -> Self {
        Self {
            phase: Phase::Loading,
            ..Self::new(rank, 0, false)
        }
    }

    /// Begins with the slices of members that are at the same step, to move copies of slices between two steps.
    #[must_use]
    pub fn of_slices(rank: usize, plan: CatchUpPlan) -> Self {
        Self {
            phase: Phase::Assigned,
            plan,
            ..Self::new(rank, 0, true)
        }
    }

    /// Returns how all members reach the same state, once it is planned.
    #[must_use]
    pub fn plan(&self) -> &CatchUpPlan {
        &self.plan
    }

    /// Returns whether this member copies the state.
    #[must_use]
    pub fn copies(&self) -> bool {
        self.plan.each.get(self.rank) == Some(&CatchUp::CopyState)
    }

    /// Returns the next action of the member. The first answer is `Done`.
    ///
    /// # Errors
    /// The members cannot continue together; the order is over.
    pub fn next(
        &mut self,
        log: &mut Transaction,
        slices: &mut SliceExchange,
        answer: RejoinAnswer,
    ) -> Result<RejoinAsk, RejoinError> {
        let phase = std::mem::replace(&mut self.phase, Phase::Over);
        let (phase, ask) = match (phase, answer) {
            (Phase::Begin, RejoinAnswer::Done) => (Phase::States, RejoinAsk::ExchangeStates),
            (Phase::States, RejoinAnswer::Words(words)) => self.find_state(log, &words)?,
            (Phase::Waited(source), RejoinAnswer::Done) => {
                (Phase::Loading, RejoinAsk::Load(source))
            }
            (Phase::Loading, RejoinAnswer::Done) => (Phase::Reports, RejoinAsk::ExchangeReports),
            (Phase::Reports, RejoinAnswer::Bytes(reports)) => {
                self.plan = log.plan(&reports)?;
                match self.plan.needs_snapshot() {
                    true => {
                        let snapshot = log.snapshot(&self.plan);
                        (Phase::Snapshot, RejoinAsk::ExchangeSnapshot(snapshot))
                    }
                    false => self.report(),
                }
            }
            (Phase::Snapshot, RejoinAnswer::Bytes(snapshot)) => {
                match log.catch_up(&self.plan, &snapshot)? {
                    Some(committed) => (Phase::Applied, RejoinAsk::Apply(committed)),
                    None => self.report(),
                }
            }
            (Phase::Applied, RejoinAnswer::Done) => self.report(),
            (Phase::Reported, RejoinAnswer::Done) => (Phase::Assigned, RejoinAsk::Assign),
            (Phase::Assigned, RejoinAnswer::Done) if self.divided => {
                slices.begin(self.plan.each[self.rank]);
                (Phase::Slices, RejoinAsk::ExchangeSlices(slices.report()))
            }
            (Phase::Assigned, RejoinAnswer::Done) => (Phase::Kept, RejoinAsk::Copy),
            (Phase::Slices, RejoinAnswer::Words(reports)) => {
                let ask = RejoinAsk::ChooseLayout(reports.clone());
                (Phase::Layout(reports), ask)
            }
            (Phase::Layout(reports), RejoinAnswer::Layout(layout)) => {
                let moves = slices.plan(&self.plan, &reports, &layout, self.rank)?;
                (Phase::Moved, RejoinAsk::Move(moves))
            }
            (Phase::Moved, RejoinAnswer::Done) => {
                slices.received();
                match self.copies() {
                    // The weights follow, also in a later generation.
                    true => (Phase::Gathering, RejoinAsk::Healed),
                    false => (Phase::Gathered, RejoinAsk::GatherWeights),
                }
            }
            (Phase::Gathering, RejoinAnswer::Done) => (Phase::Gathered, RejoinAsk::GatherWeights),
            (Phase::Gathered, RejoinAnswer::Done) => (Phase::Confirmed, RejoinAsk::Confirm),
            (Phase::Confirmed, RejoinAnswer::Done) => {
                let kept = slices.confirmed().clone();
                (Phase::Kept, RejoinAsk::Keep(kept))
            }
            (Phase::Kept, RejoinAnswer::Done) => (Phase::Over, RejoinAsk::Continue),
            _ => return Err(RejoinError::Answer),
        };
        self.phase = phase;
        Ok(ask)
    }

    /// Decides from which state the members continue.
    fn find_state(
        &self,
        log: &Transaction,
        words: &[u64],
    ) -> Result<(Phase, RejoinAsk), RejoinError> {
        let members = MemberState::decode_all(words).ok_or(RejoinError::State)?;
        let source = StateSource::of(&members, self.elements);
        Ok(match source {
            StateSource::Members(_) if source.is_before(log.next_step()) => {
                (Phase::Loading, RejoinAsk::GiveUpState)
            }
            StateSource::Members(_) => (Phase::Reports, RejoinAsk::ExchangeReports),
            source => (Phase::Waited(source), RejoinAsk::WaitForState),
        })
    }

    fn report(&self) -> (Phase, RejoinAsk) {
        let ask = RejoinAsk::Report {
            next: self.plan.next,
            is_complete: !self.copies(),
        };
        (Phase::Reported, ask)
    }
}

#[cfg(test)]
mod tests;
