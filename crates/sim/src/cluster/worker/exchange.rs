//! The divided state of a worker: loading its slices, moving them in a new generation, copies of gradients, gathered weights.

use std::collections::VecDeque;

use ronde_core::{Generation, Step};
use ronde_protocol::holdings::{HeldRanges, Move};
use ronde_protocol::transaction::{CatchUp, CatchUpPlan, LoadAgreement, SliceExchange};
use ronde_protocol::{Rejoin, RejoinAnswer};

use super::entry::SimulatedEntry;
use super::{AfterWeights, LoopWait, SimulatedWorker};
use crate::clock::MS;
use crate::cluster::effect::{Effect, Effects, HostMessage};
use crate::cluster::fact::Fact;
use crate::cluster::group::{DataFrame, FramePayload, GatherPart};
use crate::cluster::injected_bug::InjectedBug;
use crate::cluster::model::{PARAMETERS, SimulatedDivision};

/// The number of missing elements that a rank receives after a step.
const STAGE: usize = 1;

/// This worker's view of the division of the state among the members of its group.
struct GroupDivision {
    rank: usize,
    owned: Vec<HeldRanges>,
    /// The elements that each rank has at present; in a new generation, those that it is to have in the end.
    layout: Vec<HeldRanges>,
    /// Each owner with the rank that has its second copy.
    second_holders: Vec<(usize, usize)>,
}

impl GroupDivision {
    /// Returns the elements whose second copy a rank has.
    fn copied_to(&self, holder: usize) -> Option<HeldRanges> {
        let of_holder = |pair: &&(usize, usize)| pair.1 == holder;
        let (owner, _) = self.second_holders.iter().find(of_holder)?;
        let copied = self.owned[*owner].common(&self.layout[holder]);
        (!copied.is_empty()).then_some(copied)
    }
}

impl SimulatedWorker {
    fn group_division(&self) -> Option<GroupDivision> {
        let (division, group): (SimulatedDivision, _) = (self.run.division?, self.group.as_ref()?);
        let hosts = group.hosts();
        Some(GroupDivision {
            rank: group.rank,
            owned: division.owned(hosts.len()),
            layout: match self.layouts.front() {
                Some(current) => current.clone(),
                None => division.layout(&hosts),
            },
            second_holders: division.second_holders(&hosts),
        })
    }

    /// Returns the generation of the group, and the elements that this worker owns in it.
    pub(super) fn owned_elements(&self) -> Option<(Generation, HeldRanges)> {
        let mut division = self.group_division()?;
        let generation = self.group.as_ref()?.generation();
        Some((generation, division.owned.swap_remove(division.rank)))
    }

    /// Loads this worker's slices of the newest checkpoint before step `end` that it can read.
    pub(super) fn load_before(&mut self, end: Step, fx: &mut Effects<'_>) {
        let Some(division) = self.group_division() else {
            return;
        };
        let newest = fx.disk.newest_before(end).map(|(step, _)| step);
        let older = newest.and_then(|step| fx.disk.newest_before(step).map(|(step, _)| step));
        // Sometimes the newest is damaged for this rank.
        let is_damaged = older.is_some() && fx.disk.is_damaged(fx.rng);
        let step = if is_damaged { older } else { newest };
        if let Some(stored) = step.and_then(|step| fx.disk.read(step)) {
            let mine = &division.layout[division.rank];
            self.replica
                .load_elements(mine, &stored.state, &stored.cursor);
        }
        self.task = LoopWait::Loading;
        self.gather(GatherPart::Loaded(step), fx);
    }

    /// Continues when the checkpoints that all members have loaded are known.
    pub(super) fn loaded(&mut self, pieces: &[GatherPart], fx: &mut Effects<'_>) {
        let Some(division) = self.group_division() else {
            return;
        };
        let steps = pieces.iter().filter_map(|piece| match piece {
            GatherPart::Loaded(step) => Some(*step),
            _ => None,
        });
        match LoadAgreement::of(&steps.collect::<Vec<_>>()) {
            LoadAgreement::RetryBefore(end) => return self.load_before(end, fx),
            LoadAgreement::Agreed(None) => {}
            LoadAgreement::Agreed(Some(_)) => {
                let mine = division.layout[division.rank].clone();
                self.replica.slices.loaded(mine);
                fx.fact(Fact::Loaded);
                self.note_state(fx);
            }
        }
        self.rejoin(RejoinAnswer::Done, fx);
    }

    /// Returns the elements that each rank has after this exchange, from the slices of all.
    pub(super) fn choose_layout(
        &mut self,
        plan: &CatchUpPlan,
        reports: &[u64],
        fx: &Effects<'_>,
    ) -> Vec<HeldRanges> {
        let Some(division) = self.group_division() else {
            return Vec::new();
        };
        let counts_early = !self.layouts.is_empty() && fx.has(InjectedBug::CopyCountsEarly);
        if let Some(entry) = &mut self.entry {
            entry.counts_early = counts_early;
        }
        if self.layouts.is_empty() {
            let (needed, wanted) = (&division.owned, &division.layout);
            self.layouts = match plan.each.contains(&CatchUp::CopyState) {
                true => VecDeque::from([wanted.clone()]),
                false => SliceExchange::stages(plan, reports, (needed, wanted), STAGE)
                    .unwrap_or_default()
                    .into(),
            };
        }
        let layout = self.layouts.front().cloned();
        layout.unwrap_or(division.layout)
    }

    /// Sends the slices that move to other members, and waits for those that move to this one.
    pub(super) fn move_slices(&mut self, moves: Vec<Move>, fx: &mut Effects<'_>) {
        let Some(me) = self.group.as_ref().map(|group| group.rank) else {
            return;
        };
        if self.entry.as_ref().is_some_and(|entry| entry.counts_early) {
            self.replica.slices.received();
            self.note_state(fx);
        }
        for sent in moves.iter().filter(|sent| sent.from == me) {
            let elements = HeldRanges::new([sent.elements.clone()]);
            let part = FramePayload::Moved(elements.clone(), self.replica.values(&elements));
            let longest = 300 * MS;
            self.send_to(sent.to, part, longest, fx);
        }
        let received = moves.into_iter().filter(|sent| sent.to == me);
        let expected = received.map(|sent| HeldRanges::new([sent.elements]));
        self.task = LoopWait::Moving(expected.collect());
        self.take_moved(fx);
    }

    /// Sends a message to one member.
    fn send_to(&mut self, rank: usize, part: FramePayload, longest: u64, fx: &mut Effects<'_>) {
        let Some(group) = &self.group else {
            return;
        };
        let (to, host) = group.member(rank);
        let frame = DataFrame {
            to,
            from: self.id,
            generation: group.generation(),
            part,
        };
        fx.done.push(Effect::Send {
            to: host,
            message: HostMessage::Frame(Box::new(frame)),
            extra: fx.rng.range(0, longest),
        });
    }

    /// Continues when all elements that move to this worker have been received.
    pub(super) fn take_moved(&mut self, fx: &mut Effects<'_>) {
        let (LoopWait::Moving(expected), Some(group)) = (&self.task, &self.group) else {
            return;
        };
        let has_received = |elements: &HeldRanges| group.moved.iter().any(|(e, _)| e == elements);
        if !expected.iter().all(has_received) {
            return;
        }
        let moved = self
            .group
            .as_mut()
            .map(|group| std::mem::take(&mut group.moved));
        for (elements, values) in moved.unwrap_or_default() {
            self.replica.set_values(&elements, &values);
            fx.fact(Fact::Moved);
        }
        self.rejoin(RejoinAnswer::Done, fx);
    }

    /// Begins to gather the weights of all elements from the ranks that own them.
    pub(super) fn gather_weights(&mut self, after: AfterWeights, fx: &mut Effects<'_>) {
        let Some(division) = self.group_division() else {
            return;
        };
        let mine = division.owned[division.rank].clone();
        let state = self.replica.state.as_ref();
        let weights = state.map_or_else(Vec::new, |state| state.weights(&mine));
        self.task = LoopWait::Weights(after);
        self.gather(GatherPart::Weights(mine, weights), fx);
    }

    /// Continues with all weights.
    pub(super) fn weights_gathered(
        &mut self,
        after: AfterWeights,
        pieces: Vec<GatherPart>,
        fx: &mut Effects<'_>,
    ) {
        let is_skipped = fx.has(InjectedBug::WeightsAreNotGathered);
        for piece in pieces {
            if let (GatherPart::Weights(elements, weights), false) = (piece, is_skipped) {
                self.replica.set_weights(&elements, &weights);
            }
        }
        let next = self.replica.transaction.next_step();
        if let Some(state) = &self.replica.state {
            fx.fact(Fact::Weights {
                worker: self.id,
                next,
                hash: state.weight_hash(),
            });
        }
        self.note_digest(next, fx);
        match after {
            AfterWeights::Exchange => self.rejoin(RejoinAnswer::Done, fx),
            AfterWeights::Step(requests, ends) => self.finish_step(requests, ends, fx),
        }
    }

    /// Notes the hash of the weights for the next vote.
    fn note_digest(&mut self, next: Step, fx: &Effects<'_>) {
        let (flips, skips) = (
            fx.has(InjectedBug::WeightFlips),
            fx.has(InjectedBug::DigestSkipsASlice),
        );
        let is_first = self.group.as_ref().is_some_and(|group| group.rank == 0);
        if (flips || skips) && is_first && next == Step(5) {
            self.replica.flip_last_weight();
        }
        self.replica.set_digest();
        if let (true, Some(state)) = (skips, &self.replica.state) {
            let all_but_last = HeldRanges::new(std::iter::once(0..PARAMETERS - 1));
            let weights = state.weights(&all_but_last);
            let digest = ronde_core::weight_hash::hash(&weights);
            self.replica.transaction.set_digest(digest);
        }
    }

    /// Begins to move some of the missing second copies after a step; returns false if there are none.
    pub(super) fn restore_copies(&mut self, fx: &mut Effects<'_>) -> bool {
        let next = self.replica.transaction.next_step();
        let Some(group) = &self.group else {
            return false;
        };
        if self.layouts.len() < 2 || next == self.run.end {
            return false;
        }
        self.layouts.pop_front();
        let each = vec![CatchUp::UpToDate; group.size()];
        let rejoin = Rejoin::of_slices(group.rank, CatchUpPlan { next, each });
        fx.fact(Fact::Restores);
        self.entry = Some(SimulatedEntry::new(rejoin));
        self.rejoin(RejoinAnswer::Done, fx);
        true
    }

    /// Sends the reduced gradient of the owned elements to their second holder, and waits for those of which this worker has
    /// the second copy.
    pub(super) fn copy_gradient(&mut self, step: Step, gradient: &[f32], fx: &mut Effects<'_>) {
        let Some(division) = self.group_division() else {
            return;
        };
        let me = division.rank;
        let mut mine = vec![f32::NAN; PARAMETERS];
        for element in division.owned[me].ranges().iter().cloned().flatten() {
            mine[element] = gradient[element];
        }
        let mut pairs = division.second_holders.iter();
        if let Some(&(_, holder)) = pairs.find(|(owner, _)| *owner == me)
            && let Some(copied) = division.copied_to(holder)
        {
            let values = copied.ranges().iter().cloned().flatten();
            let values = values.map(|element| gradient[element]).collect();
            let part = FramePayload::Copied(step, copied, values);
            self.send_to(holder, part, 60 * MS, fx);
        }
        let awaited = division.copied_to(me);
        match awaited.filter(|_| !fx.has(InjectedBug::CopyIsNotAwaited)) {
            None => self.hold(step, mine, fx),
            Some(awaited) => {
                self.task = LoopWait::Copying(step, awaited, mine);
                self.take_copy(fx);
            }
        }
    }

    /// Votes when the second copy of the gradient has been received.
    pub(super) fn take_copy(&mut self, fx: &mut Effects<'_>) {
        let (LoopWait::Copying(step, awaited, mine), Some(group)) = (&self.task, &self.group)
        else {
            return;
        };
        let copy = group
            .copied
            .iter()
            .find(|(of, elements, _)| of == step && elements == awaited);
        let Some((step, elements, values)) = copy else {
            return;
        };
        let (step, mut gradient) = (*step, mine.clone());
        let positions = elements.ranges().iter().cloned().flatten();
        positions
            .zip(values)
            .for_each(|(element, value)| gradient[element] = *value);
        self.hold(step, gradient, fx);
    }
}
