//! [`StateTransfer`]: copies the state from the members that have it to those that need it. Each holder sends a part.
//! [`exchange`] moves slices of a divided state, for which all members wait.
//!
//! Training does not wait for it: a large state is sent in rounds, one per step. A receiver stores the gradients of
//! the steps committed meanwhile and applies them when the state is complete.

use std::collections::VecDeque;
use std::ops::Range;

use ronde_core::holdings::{HeldRanges, Move, moves};
use ronde_core::session::{CatchUpPlan, CommittedStep};
use ronde_core::shards::even_range;
use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, Tag, Work};
use ronde_parallel::{HeldVector, HeldVectorMut, ReducedGradient};

use crate::training::StepTiming;

/// The tag of the messages of a transfer.
const TAG: Tag = Tag(0x6865_616c);
/// The approximate size of one round between two ranks; larger if there would be too many rounds.
const ROUND_BYTES: usize = 16 << 20;
const ROUNDS_MAX: usize = 8;
/// The approximate size of one round of [`exchange`] between two ranks.
const EXCHANGE_BYTES: usize = 2 << 20;
/// The number of steps after the last round until all members wait, because stored gradients need memory.
const STEPS_SPARE: usize = 8;

/// Returns the most bytes that any rank sends to another one.
fn most_bytes(moves: &[Vec<Move>], ranks: usize) -> usize {
    let mut sent = vec![0; ranks * ranks];
    for Move { from, to, elements } in moves.iter().flatten() {
        sent[from * ranks + to] += size_of::<f32>() * elements.len();
    }
    sent.into_iter().max().unwrap_or(0)
}

/// A state transfer in progress, on a sender or a receiver.
#[derive(Default)]
pub(crate) struct StateTransfer {
    /// The messages that this rank still has to send, by round.
    unsent: VecDeque<Vec<(GroupRank, Buffer)>>,
    sends: Vec<Box<dyn Work>>,
    /// The index of a vector of the state, the range of its elements, and the message that contains them.
    receives: Vec<(usize, Range<usize>, Box<dyn Work>)>,
    /// Steps that are committed but not applied on this rank.
    deferred: Vec<(CommittedStep, ReducedGradient, StepTiming)>,
    /// The number of steps until all members wait for the end of the transfer.
    steps_left: usize,
}

/// Returns the moves that copy whole vectors of these lengths to the members that need the state, for
/// [`StateTransfer::start`].
pub(crate) fn whole_moves(catch_up: &CatchUpPlan, lens: &[usize]) -> Vec<Vec<Move>> {
    let (holders, _) = catch_up.holders_and_receivers();
    let all = |len: usize| HeldRanges::new(std::iter::once(0..len));
    let of_len = |&len: &usize| {
        let have = (0..catch_up.each.len()).map(|rank| match holders.contains(&rank) {
            true => all(len),
            false => HeldRanges::default(),
        });
        let have: Vec<HeldRanges> = have.collect();
        // Some member has the state: the plan has a source.
        moves(&have, &vec![all(len); have.len()]).unwrap_or_default()
    };
    lens.iter().map(of_len).collect()
}

/// The messages of one round of [`exchange`].
#[derive(Default)]
struct ExchangeRound {
    receives: Vec<(usize, Range<usize>, Box<dyn Work>)>,
    sends: Vec<Box<dyn Work>>,
}

impl ExchangeRound {
    /// Waits for the messages and stores what has arrived.
    fn finish(self, state: &mut [HeldVectorMut<'_>]) -> Result<(), CollectiveError> {
        for (vector, elements, work) in self.receives {
            store(&work.wait()?, vector, &elements, state);
        }
        self.sends
            .into_iter()
            .try_for_each(|work| work.wait().map(drop))
    }
}

/// Executes this rank's part of the moves of each vector, and waits. All members call it with the same moves. Memory: that of
/// two rounds of messages.
pub(crate) fn exchange(
    moves: &[Vec<Move>],
    group: &dyn Group,
    state: &mut [HeldVectorMut<'_>],
) -> Result<(), CollectiveError> {
    let me = group.rank().index();
    let rounds = most_bytes(moves, group.size())
        .div_ceil(EXCHANGE_BYTES)
        .max(1);
    let mut before = ExchangeRound::default();
    for round in 0..rounds {
        let mut now = ExchangeRound::default();
        for (vector, moves) in moves.iter().enumerate() {
            for Move { from, to, elements } in moves {
                let part = part_of_round(elements, rounds, round);
                if *from == me {
                    let held = state.get(vector);
                    let values = held.and_then(|held| Some(&held.values[held.held.locate(&part)?]));
                    let buffer = Buffer::copy_of(values.unwrap_or_default());
                    now.sends
                        .push(group.send(GroupRank(*to as u32), TAG, buffer)?);
                } else if *to == me {
                    let buffer = Buffer::host(DType::F32, part.len());
                    let work = group.receive(GroupRank(*from as u32), TAG, buffer)?;
                    now.receives.push((vector, part, work));
                }
            }
        }
        std::mem::replace(&mut before, now).finish(state)?;
    }
    before.finish(state)
}

/// Returns the part of a move that is sent in a round.
fn part_of_round(elements: &Range<usize>, rounds: usize, round: usize) -> Range<usize> {
    let part = even_range(elements.len() as u64, rounds as u64, round as u64);
    elements.start + part.start as usize..elements.start + part.end as usize
}

/// Stores received elements of a vector, as far as they are held.
fn store(buffer: &Buffer, vector: usize, elements: &Range<usize>, state: &mut [HeldVectorMut<'_>]) {
    if let Some(vector) = state.get_mut(vector)
        && let Some(values) = vector.held.locate(elements)
    {
        vector.values[values].copy_from_slice(buffer.as_slice());
    }
}

impl StateTransfer {
    /// Starts this rank's part of the moves of each vector. All members call it with the same moves.
    pub(crate) fn start(
        moves: &[Vec<Move>],
        group: &dyn Group,
        state: &[HeldVector<'_>],
    ) -> Result<Self, CollectiveError> {
        let me = group.rank().index();
        let rounds = most_bytes(moves, group.size()).div_ceil(ROUND_BYTES);
        let rounds = rounds.clamp(1, ROUNDS_MAX);
        let mut this = Self {
            steps_left: rounds + STEPS_SPARE,
            ..Self::default()
        };
        for round in 0..rounds {
            let mut sends = Vec::new();
            for (vector, (moves, held)) in moves.iter().zip(state).enumerate() {
                for Move { from, to, elements } in moves {
                    let part = part_of_round(elements, rounds, round);
                    if *from == me {
                        let values = held.held.locate(&part).unwrap_or_default();
                        let buffer = Buffer::copy_of(&held.values[values]);
                        sends.push((GroupRank(*to as u32), buffer));
                    } else if *to == me {
                        let buffer = Buffer::host(DType::F32, part.len());
                        let work = group.receive(GroupRank(*from as u32), TAG, buffer)?;
                        this.receives.push((vector, part, work));
                    }
                }
            }
            this.unsent.push_back(sends);
        }
        this.send_round(group)?;
        Ok(this)
    }

    fn send_round(&mut self, group: &dyn Group) -> Result<(), CollectiveError> {
        for (to, buffer) in self.unsent.pop_front().into_iter().flatten() {
            self.sends.push(group.send(to, TAG, buffer)?);
        }
        Ok(())
    }

    /// Advances the transfer once per step: completes finished sends and starts the next round.
    pub(crate) fn advance(&mut self, group: &dyn Group) -> Result<(), CollectiveError> {
        self.steps_left = self.steps_left.saturating_sub(1);
        let sends = std::mem::take(&mut self.sends);
        let (done, left): (Vec<_>, Vec<_>) = sends.into_iter().partition(|w| w.is_finished());
        self.sends = left;
        for work in done {
            work.wait()?;
        }
        self.send_round(group)
    }

    /// Returns whether all members must now wait for the end of the transfer. Equal on all members.
    pub(crate) fn is_overdue(&self) -> bool {
        self.steps_left == 0
    }

    /// Returns whether this rank has received its whole state; false if it receives none.
    pub(crate) fn is_received(&self) -> bool {
        !self.receives.is_empty() && self.receives.iter().all(|(.., work)| work.is_finished())
    }

    /// Stores a step that cannot be applied yet.
    pub(crate) fn defer(
        &mut self,
        committed: CommittedStep,
        reduced: ReducedGradient,
        timing: StepTiming,
    ) {
        self.deferred.push((committed, reduced, timing));
    }

    /// Takes the stored steps, in order, to apply them now that the state is complete.
    pub(crate) fn take_deferred(&mut self) -> Vec<(CommittedStep, ReducedGradient, StepTiming)> {
        std::mem::take(&mut self.deferred)
    }

    /// Starts all remaining rounds.
    pub(crate) fn send_all(&mut self, group: &dyn Group) -> Result<(), CollectiveError> {
        while !self.unsent.is_empty() {
            self.send_round(group)?;
        }
        Ok(())
    }

    /// Returns whether this rank receives a state.
    pub(crate) fn receives(&self) -> bool {
        !self.receives.is_empty()
    }

    /// Waits for the state and copies it into `state`; returns false if this rank receives none.
    pub(crate) fn receive(
        &mut self,
        state: &mut [HeldVectorMut<'_>],
    ) -> Result<bool, CollectiveError> {
        if self.receives.is_empty() {
            return Ok(false);
        }
        for (vector, elements, work) in std::mem::take(&mut self.receives) {
            store(&work.wait()?, vector, &elements, state);
        }
        Ok(true)
    }

    /// Waits until all started sends are complete.
    pub(crate) fn wait_sent(&mut self) -> Result<(), CollectiveError> {
        for work in std::mem::take(&mut self.sends) {
            work.wait()?;
        }
        Ok(())
    }
}
