//! The divided state of a [`Training`]: which member holds which slices, and how they move in a new generation.
//!
//! Members wait only for the slices that they own. Weights move only if some member lacks the newest ones.

use std::ops::Range;

use ronde_core::{CollectivesExt, Step};
use ronde_parallel::{
    DistributedVector, HeldVector, LossScaling, StateEdit, StateView, VectorKind, ZeroLevel,
};
use ronde_protocol::holdings::{HeldRanges, Move};
use ronde_protocol::transaction::{CatchUp, CatchUpPlan, MemberState};

use super::{Training, vectors_mut};
use crate::checkpoints;
use crate::checkpoints::{ReplicaLayout, RunCheckpoints};
use crate::config::RunConfig;
use crate::error::TrainError;
use crate::model_copies::ModelCopies;
use crate::plan::Plan;
use crate::state_transfer::exchange;

impl Training {
    /// Returns whether the run divides its state among the members, or each has its own part of some vectors.
    pub(super) fn is_divided(&self) -> bool {
        self.plan.config.has_slices()
    }

    /// Returns whether the run divides the weights, as long as it has enough members.
    pub(super) fn has_parts(&self) -> bool {
        has_parts(&self.plan)
    }

    /// Describes how the state is divided, and the cost of a lost worker; `None` if every worker holds all of it.
    pub(super) fn division(&self) -> Option<String> {
        let workers = self.member.group.size();
        if !self.is_divided() || workers < 2 {
            return None;
        }
        if self.plan.config.has_distributed_vectors() {
            return Some(self.distribution(workers));
        }
        let vectors = self.vectors();
        let (complete, what) = match self.divides_weights() {
            false => (1, "the states of the optimizer"),
            true => (0, "the weights and the states of the optimizer"),
        };
        let bytes = |held: usize| {
            let flat = vectors
                .iter()
                .skip(complete)
                .filter(|vector| vector.kind == VectorKind::Flat);
            (4 * held * flat.count()) as f64 / f64::from(1 << 20)
        };
        let state = self.policy.state();
        let layout = state.layout();
        let most = layout.iter().map(HeldRanges::len).max().unwrap_or(0);
        let (most, all) = (bytes(most), bytes(state.model().len()));
        let is_copied = are_held_twice(&layout);
        let loss = match is_copied {
            true => {
                "each slice is on 2 workers, so the run continues after the loss of one".to_owned()
            }
            false => self.loss_of_slices("each slice"),
        };
        let servers = self.assignment.layout().servers();
        let computing = workers - servers;
        let computing = match computing {
            1 => "1 worker computes".to_owned(),
            more => format!("{more} workers compute"),
        };
        let divided = match servers {
            0 => format!("the state is divided among {workers} workers"),
            1 => format!("{computing}, and 1 serves"),
            more => format!("{computing}, and the state is divided among {more} that serve"),
        };
        Some(format!(
            "{divided}: at most {most:.1} of {all:.1} MiB of {what} on each; {loss}"
        ))
    }

    /// Describes the vectors whose parts are on different workers, and the cost of a lost worker.
    fn distribution(&self, workers: usize) -> String {
        let config = &self.plan.config;
        let most = |vector: &DistributedVector| vector.layout().iter().map(HeldRanges::len).max();
        let distributed = self.policy.state().distributed().into_iter();
        let most: usize = distributed.filter_map(most).sum();
        let mib = (4 * most) as f64 / f64::from(1 << 20);
        let keeps = config.sync.kept_vectors(&config.optimizer) > 0;
        let what = match (keeps, config.compression.is_on()) {
            (false, _) => "the residuals of its senders",
            (true, false) => "what its replicas keep",
            (true, true) => "what its replicas keep, and their residuals",
        };
        let part = if keeps {
            "each replica"
        } else {
            "each residual"
        };
        format!(
            "each of {workers} workers holds {what}, at most {mib:.1} MiB; {}",
            self.loss_of_slices(part)
        )
    }

    /// Describes the cost of a lost worker whose part of the state no other one has.
    fn loss_of_slices(&self, part: &str) -> String {
        let every = self.plan.config.elastic.copy_steps;
        if self.keeps_copies() {
            let steps = if every == 1 { "step" } else { "steps" };
            return format!(
                "{part} is copied to another worker every {every} {steps}, so all workers return to the newest copy after the loss of one"
            );
        }
        let section = &self.plan.config.checkpoint;
        let saves = section.every_steps > 0 || section.every_minutes > 0.0;
        match self.saving.checkpoints().is_some() && saves {
            true => format!(
                "{part} is on 1 worker, so all workers load the newest checkpoint after the loss of one"
            ),
            false => format!(
                "{part} is on 1 worker and no checkpoints are saved, so the run begins again after the loss of one"
            ),
        }
    }

    /// Returns the state of this member, for all others.
    pub(super) fn member_state(&self) -> MemberState {
        let next = self.session.next_step();
        let term = self.saving.checkpoints().and_then(RunCheckpoints::term);
        MemberState {
            has_state: !self.session.is_fresh() && self.session.is_complete(),
            term: term.unwrap_or_default(),
            next,
            holds_gradient: self.session.is_complete() && self.pending.holds_gradient(next),
            held: self.slices.held().clone(),
        }
    }

    /// Moves the slices of the state to the members that hold them from now on, and waits. All members call it together. A loss at
    /// any moment leaves every slice with a member: see [`SliceExchange`](ronde_protocol::transaction::SliceExchange). Returns the
    /// number of elements, from the first one, whose weights every member has already.
    pub(super) fn move_slices(
        &mut self,
        catch_up: &CatchUpPlan,
        moves: &[Move],
    ) -> Result<usize, TrainError> {
        if catch_up.next == Step(0) {
            return Ok(0);
        }
        let last = Step(catch_up.next.0 - 1);
        let gathered = self.gathered_by_all(last)?;
        self.execute_moves(catch_up, moves, gathered)?;
        self.movement.restoration.moved(moves);
        Ok(gathered)
    }

    /// Notes that this member has received the state after a step, apart from weights, which follow.
    pub(super) fn slices_received(&mut self, last: Step) {
        let digest = self.digest(last);
        self.member.healed(&mut self.session, digest);
    }

    /// Gathers the weights that this member needs, from element `gathered` on. All members call it together.
    pub(super) fn gather_missing(
        &mut self,
        catch_up: &CatchUpPlan,
        gathered: usize,
    ) -> Result<(), TrainError> {
        let is_fresh = catch_up.next == Step(0);
        let last = Step(catch_up.next.0.saturating_sub(1));
        if is_fresh && self.initial.weights.is_none() && self.has_parts() {
            self.reset_weights()?;
        }
        // Before the first step, members compare all weights.
        let compared = (!is_fresh).then_some(last);
        self.gather_rest(last, gathered, compared)?;
        self.gathered = compared;
        Ok(())
    }

    /// Holds only these elements, because all members have received theirs.
    pub(super) fn keep_slices(&mut self, elements: HeldRanges) {
        self.hold(&elements).reload();
        let digest = self.policy.state().digest(self.gathered);
        self.session.set_digest(digest);
    }

    /// Returns whether the members divide the states of the optimizer, and each keeps all weights.
    pub(super) fn keeps_all_weights(&self) -> bool {
        self.plan.config.parallel.zero_level().is_sharded() && !self.has_parts()
    }

    /// Returns the number of elements, from the first one, whose weights after a step every member has already, so that they are not
    /// sent. All members call it together.
    fn gathered_by_all(&self, last: Step) -> Result<usize, TrainError> {
        // A member that computes with other layers from now on, or keeps no weights, gathers those that it needs.
        let mine = match self.keeps_all_weights() && self.gathered == Some(last) {
            true => self.policy.state().gathered(),
            false => 0,
        };
        let all = self.gather_words(&[mine as u64])?;
        Ok(all.into_iter().min().unwrap_or_default() as usize)
    }

    /// Returns the elements of the state that this member holds in training.
    pub(super) fn own_slices(&self) -> HeldRanges {
        let rank = self.member.group.rank().index();
        self.policy.state().layout().swap_remove(rank)
    }

    /// Holds other elements of the state from now on.
    pub(super) fn hold(&mut self, elements: &HeldRanges) -> StateEdit<'_> {
        let mut edit = self.policy.edit();
        let before = edit.held_of_model().clone();
        edit.hold(elements);
        self.copies.hold(&before, edit.held_of_model());
        edit
    }

    /// Holds elements, and sets the weights among them to the initial ones.
    pub(super) fn reset_state(&mut self, elements: &HeldRanges) -> Result<(), TrainError> {
        let mut edit = self.hold(elements);
        let reset = edit.reset();
        reset.map_err(|source| TrainError::of_step(Step(0), source))?;
        edit.reload();
        Ok(())
    }

    /// Sets the weights that this rank stores to the initial ones, in a run that begins.
    fn reset_weights(&mut self) -> Result<(), TrainError> {
        let mine = self.own_slices();
        self.reset_state(&mine)?;
        let section = &self.plan.config.train;
        self.copies = ModelCopies::new(section, self.policy.state().held_weights());
        Ok(())
    }

    /// Returns the words of all members, one after the other by rank.
    pub(super) fn gather_words(&self, mine: &[u64]) -> Result<Vec<u64>, TrainError> {
        // Words are sent as i64 with the same bits, because no element type is unsigned with 64 bits.
        let mine: Vec<i64> = mine.iter().map(|word| word.cast_signed()).collect();
        let all = self.member.group.all_gather(&mine);
        let all = all.map_err(TrainError::Heal)?.into_iter();
        Ok(all.map(i64::cast_unsigned).collect())
    }

    /// Executes the moves; of the weights, only those from element `gathered` on.
    fn execute_moves(
        &mut self,
        catch_up: &CatchUpPlan,
        moves: &[Move],
        gathered: usize,
    ) -> Result<(), TrainError> {
        let group = self.member.group.clone();
        let stored = self.slices.stored();
        let mut vectors = self.vector_moves(catch_up, moves);
        if let Some(weights) = vectors.first_mut() {
            for sent in weights.iter_mut() {
                sent.elements.start = sent.elements.start.max(gathered);
            }
            weights.retain(|sent| !sent.elements.is_empty());
        }
        self.hold(&stored).reload();
        let mut edit = self.policy.edit();
        let mut mine = vectors_mut(&mut edit, &mut self.copies);
        let moved = exchange(&vectors, &*group, &mut mine);
        drop(mine);
        edit.reload();
        moved.map_err(TrainError::Heal)
    }

    /// Returns the moves of each vector of the state: those of the slices for the weights and the states of the optimizer, and
    /// copies of a vector that every member holds.
    fn vector_moves(&self, catch_up: &CatchUpPlan, slices: &[Move]) -> Vec<Vec<Move>> {
        let source = catch_up.source();
        let vectors = self.vectors();
        let state = self.policy.state();
        let of_state = moves_within(slices, 0..state.model().len());
        let mut ranges = state.distributed_ranges().into_iter();
        let of_vector = vectors.iter().map(|vector| {
            match vector.kind {
                VectorKind::Flat => return of_state.clone(),
                VectorKind::Distributed => {
                    return moves_within(slices, ranges.next().unwrap_or(0..0));
                }
                VectorKind::Whole => {}
            }
            let receivers = (0..catch_up.each.len())
                .filter(|&rank| catch_up.each[rank] == CatchUp::CopyState && rank != source);
            let copy = |to| Move {
                from: source,
                to,
                elements: 0..vector.values.len(),
            };
            receivers.map(copy).collect()
        });
        of_vector.collect()
    }
}

/// Returns whether a run divides the weights, as long as it has enough members.
pub(super) fn has_parts(plan: &Plan) -> bool {
    let section = &plan.config.parallel;
    section.divides_model() || section.zero_level() == ZeroLevel::Weights
}

/// Returns the vectors of a run's state in a checkpoint.
pub(super) fn checkpoint_layout(
    plan: &Plan,
    state: &StateView<'_>,
    scaling: Option<LossScaling>,
) -> ReplicaLayout {
    let config = &plan.config;
    let others = other_vectors(state, config);
    let copies = ModelCopies::names(&config.train);
    let states = config.state_names();
    ReplicaLayout::of(state.model(), &states, scaling, &others, &copies)
}

/// Returns the names and lengths of the vectors that only some settings have.
fn other_vectors(state: &StateView<'_>, config: &RunConfig) -> Vec<(&'static str, u64)> {
    let names = checkpoints::other_names(config);
    let vectors = state.vectors();
    let others = &vectors[vectors.len() - names.len()..];
    let mut distributed = state.distributed().into_iter();
    let len = |vector: &HeldVector<'_>| match vector.kind {
        VectorKind::Distributed => distributed.next().map_or(0, DistributedVector::len),
        VectorKind::Flat | VectorKind::Whole => vector.values.len(),
    };
    let lens = others.iter().map(len).map(|len| len as u64);
    names.into_iter().zip(lens).collect()
}

/// Returns the moves within a part of the elements, relative to its start.
fn moves_within(moves: &[Move], part: Range<usize>) -> Vec<Move> {
    let of_move = |of: &Move| {
        let start = of.elements.start.clamp(part.start, part.end);
        let end = of.elements.end.clamp(start, part.end);
        (start < end).then(|| Move {
            elements: start - part.start..end - part.start,
            ..of.clone()
        })
    };
    moves.iter().filter_map(of_move).collect()
}

/// Returns whether each element that any rank holds is held by a second one.
fn are_held_twice(layout: &[HeldRanges]) -> bool {
    let ranges = layout.iter().flat_map(|held| held.ranges());
    let mut borders: Vec<(usize, i64)> = ranges
        .flat_map(|range| [(range.start, 1), (range.end, -1)])
        .collect();
    borders.sort_unstable();
    let mut holders = 0;
    let mut at = 0;
    for (border, change) in borders {
        if border > at && holders == 1 {
            return false;
        }
        (at, holders) = (border, holders + change);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_with_one_holder_is_found() {
        let held =
            |ranges: &[[usize; 2]]| HeldRanges::new(ranges.iter().map(|[start, end]| *start..*end));
        assert!(are_held_twice(&[held(&[[0, 4]]), held(&[[0, 4]])]));
        let all = [held(&[[0, 2], [4, 6]]), held(&[[0, 6]]), held(&[[2, 4]])];
        assert!(are_held_twice(&all));
        assert!(!are_held_twice(&all[..2]));
        let gap = [held(&[[0, 6]]), held(&[[0, 3]]), held(&[[4, 6]])];
        assert!(!are_held_twice(&gap));
    }
}
