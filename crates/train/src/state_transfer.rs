//! [`StateTransfer`]: copies the state from the members that have it to those that need it. Each holder sends a part.
//! [`exchange`] moves slices of a divided state, for which all members wait.
//!
//! Training does not wait for it: a large state is sent in rounds, one per step. A receiver stores the gradients of
//! the steps committed meanwhile and applies them when the state is complete.

use std::collections::VecDeque;
use std::ops::Range;

use ronde_core::shards::even_range;
use ronde_core::{Buffer, CollectiveError, DType, Group, GroupRank, Tag, Work};
use ronde_parallel::{HeldVector, HeldVectorMut, ReducedGradient};
use ronde_protocol::holdings::{HeldRanges, Move, moves};
use ronde_protocol::transaction::{CatchUpPlan, CommittedStep};

use crate::step_timing::StepTiming;

/// The tag of the messages of a transfer.
const TAG: Tag = Tag(0x6865_616c);
/// The approximate size of one round between two ranks; larger if there would be too many rounds.
const ROUND_BYTES: usize = 16 << 20;
const ROUNDS_MAX: usize = 8;
/// The approximate size of one round of [`exchange`] between two ranks.
const EXCHANGE_BYTES: usize = 4 << 20;
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
    receives: Vec<PendingReceive>,
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

/// A receive in progress: the index of a vector of the state, the range of its elements, and the message that contains them.
type PendingReceive = (usize, Range<usize>, Box<dyn Work>);

/// The messages of [`exchange`] that are under way, by round, and the buffers of those that have ended.
struct SliceMessages<'a> {
    moves: &'a [Vec<Move>],
    group: &'a dyn Group,
    rounds: usize,
    receives: VecDeque<Vec<PendingReceive>>,
    sends: VecDeque<Vec<Box<dyn Work>>>,
    unused: Vec<Buffer>,
}

impl SliceMessages<'_> {
    /// Returns the vector, the peer, the part in a round, and the length in any round of each move to or from this rank.
    fn parts(
        &self,
        round: usize,
        is_sent: bool,
    ) -> impl Iterator<Item = (usize, GroupRank, Range<usize>, usize)> {
        let (me, rounds) = (self.group.rank().index(), self.rounds);
        let moves = self.moves.iter().enumerate();
        let moves = moves.flat_map(|(vector, moves)| moves.iter().map(move |of| (vector, of)));
        moves.filter_map(move |(vector, Move { from, to, elements })| {
            let (mine, peer) = if is_sent { (from, to) } else { (to, from) };
            let len_max = elements.len().div_ceil(rounds);
            (*mine == me && from != to).then(|| {
                let part = part_of_round(elements, rounds, round);
                (vector, GroupRank(*peer as u32), part, len_max)
            })
        })
    }

    /// Posts the receives of a round, if there is one with this number.
    fn receive(&mut self, round: usize) -> Result<(), CollectiveError> {
        if round >= self.rounds {
            return Ok(());
        }
        let parts: Vec<_> = self.parts(round, false).collect();
        let mut receives = Vec::with_capacity(parts.len());
        for (vector, from, part, len_max) in parts {
            let buffer = self.buffer(part.len(), len_max);
            let work = self.group.receive(from, TAG, buffer)?;
            receives.push((vector, part, work));
        }
        self.receives.push_back(receives);
        Ok(())
    }

    /// Sends this rank's parts of a round.
    fn send(&mut self, round: usize, state: &[HeldVectorMut<'_>]) -> Result<(), CollectiveError> {
        let parts: Vec<_> = self.parts(round, true).collect();
        let mut sends = Vec::with_capacity(parts.len());
        for (vector, to, part, len_max) in parts {
            let held = state.get(vector);
            let values = held.and_then(|held| Some(&held.values[held.held.locate(&part)?]));
            let values = values.unwrap_or_default();
            let mut buffer = self.buffer(values.len(), len_max);
            buffer.as_mut_slice().copy_from_slice(values);
            sends.push(self.group.send(to, TAG, buffer)?);
        }
        self.sends.push_back(sends);
        Ok(())
    }

    /// Waits for the messages of the oldest round, and stores those that this rank receives.
    fn finish(&mut self, state: &mut [HeldVectorMut<'_>]) -> Result<(), CollectiveError> {
        for (vector, elements, work) in self.receives.pop_front().unwrap_or_default() {
            let buffer = work.wait()?;
            store(&buffer, vector, &elements, state);
            self.unused.push(buffer);
        }
        for work in self.sends.pop_front().unwrap_or_default() {
            self.unused.push(work.wait()?);
        }
        Ok(())
    }

    /// Returns a buffer of `len` elements with any values, which can have `len_max`.
    fn buffer(&mut self, len: usize, len_max: usize) -> Buffer {
        let mut unused = self.unused.iter_mut();
        if let Some(at) = unused.position(|buffer| buffer.set_len(len_max)) {
            let mut buffer = self.unused.swap_remove(at);
            buffer.truncate(len);
            return buffer;
        }
        let mut buffer = Buffer::host(DType::F32, len_max.max(len));
        buffer.truncate(len);
        buffer
    }
}

/// Executes this rank's part of the moves of each vector, and waits. All members call it with the same moves. Memory: that of
/// three rounds of messages.
pub(crate) fn exchange(
    moves: &[Vec<Move>],
    group: &dyn Group,
    state: &mut [HeldVectorMut<'_>],
) -> Result<(), CollectiveError> {
    let rounds = most_bytes(moves, group.size())
        .div_ceil(EXCHANGE_BYTES)
        .max(1);
    let mut messages = SliceMessages {
        moves,
        group,
        rounds,
        receives: VecDeque::new(),
        sends: VecDeque::new(),
        unused: Vec::new(),
    };
    // A message that finds its receive is not stored in between, so receives are one round ahead.
    messages.receive(0)?;
    for round in 0..rounds {
        messages.receive(round + 1)?;
        messages.send(round, state)?;
        if round > 0 {
            messages.finish(state)?;
        }
    }
    messages.finish(state)
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
