//! Copies of the state in the memory of the workers of a [`Training`], from which they continue after a loss without a checkpoint.
//!
//! After the first step and every `elastic.copy_steps` steps, each rank copies its part of the state, and sends the parts that no other rank has to another
//! one, if possible on another host. The messages travel during the next step, before whose vote every rank waits for them. So after
//! that vote the copy is complete on all ranks, and only then the one before is dropped: a loss at any moment leaves a complete copy
//! with the remaining ranks, unless a rank and the one that has its parts are lost together.
//!
//! A copy is a checkpoint in memory. It needs no further state of the transaction, and no replay of single replicas, which would
//! need the weights of all rounds since the copy. The ordinary exchange of slices then moves each part to its owner.

use ronde_clock::Stopwatch;
use ronde_core::{
    Buffer, CollectiveError, CollectivesExt, DType, Event, GroupRank, Rank, Step, Tag, Work,
};
use ronde_parallel::VectorKind;
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::{MemberState, StateSource};

use super::{Training, vectors, vectors_mut};
use crate::checkpoints::RunCheckpoints;
use crate::error::TrainError;

/// The tag of the messages with copies.
const TAG: Tag = Tag(0x636f_7079);

/// A part of a vector of the state.
struct CopiedPart {
    /// The number of the vector.
    vector: usize,
    held: HeldRanges,
    values: Vec<f32>,
}

/// A rank's part of the state before a step, and of the parts of other ranks.
struct StateCopy {
    next: Step,
    session: Vec<u8>,
    progress: String,
    parts: Vec<CopiedPart>,
    /// The elements of all parts, as the members divide them.
    held: HeldRanges,
}

impl StateCopy {
    /// Describes the copy to all members.
    fn report(&self) -> MemberState {
        MemberState {
            has_state: true,
            term: 0,
            next: self.next,
            holds_gradient: false,
            held: self.held.clone(),
        }
    }
}

/// A part of another rank that is on its way.
struct AwaitedPart {
    vector: usize,
    held: HeldRanges,
    /// The same elements, as the members divide them.
    place: HeldRanges,
    work: Box<dyn Work>,
}

/// How far a copy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyProgress {
    /// Its messages are on their way, or have arrived here.
    Travels,
    /// Its group has failed meanwhile, so parts may be missing.
    Interrupted,
    /// All ranks have completed it.
    Complete,
}

/// The most earlier copies. More than one is needed after failures alone.
const EARLIER_MAX: usize = 2;

/// The copies of one rank.
#[derive(Default)]
pub(super) struct StateCopies {
    /// The newest copy, and how far it is.
    newest: Option<(StateCopy, CopyProgress)>,
    /// Earlier ones, the newest first, until all ranks have completed a later one.
    earlier: Vec<StateCopy>,
    sends: Vec<Box<dyn Work>>,
    awaited: Vec<AwaitedPart>,
}

impl StateCopies {
    /// Returns the copies that this rank has.
    fn all(&self) -> impl Iterator<Item = &StateCopy> {
        let newest = self.newest.as_ref().map(|(copy, _)| copy);
        newest.into_iter().chain(&self.earlier)
    }

    /// Waits for the messages of the newest copy.
    fn finish(&mut self) -> Result<(), CollectiveError> {
        for part in self.awaited.drain(..) {
            let buffer = part.work.wait()?;
            if let Some((copy, _)) = &mut self.newest {
                let all = copy.held.ranges().iter().chain(part.place.ranges());
                copy.held = HeldRanges::new(all.cloned());
                copy.parts.push(CopiedPart {
                    vector: part.vector,
                    held: part.held,
                    values: buffer.as_slice().to_vec(),
                });
            }
        }
        self.sends
            .drain(..)
            .try_for_each(|work| work.wait().map(drop))
    }

    /// Notes that all ranks have completed the newest copy.
    fn confirm(&mut self) {
        if let Some((_, progress @ CopyProgress::Travels)) = &mut self.newest {
            *progress = CopyProgress::Complete;
            self.earlier.clear();
        }
    }

    /// Gives up the messages of a group that has failed.
    pub(super) fn interrupt(&mut self) {
        (self.sends, self.awaited) = (Vec::new(), Vec::new());
        if let Some((_, progress @ CopyProgress::Travels)) = &mut self.newest {
            *progress = CopyProgress::Interrupted;
        }
    }

    /// Begins the next copy.
    fn replace(&mut self, copy: StateCopy) {
        let before = self.newest.replace((copy, CopyProgress::Travels));
        if let Some((before, _)) = before {
            self.earlier.insert(0, before);
            self.earlier.truncate(EARLIER_MAX);
        }
    }
}

impl Training {
    /// Returns whether the run keeps copies in the memory of its workers.
    pub(super) fn keeps_copies(&self) -> bool {
        let config = &self.plan.config;
        config.elastic.copy_steps > 0 && config.has_distributed_vectors()
    }

    /// Waits for the messages of the last copy, before the vote that confirms it.
    pub(super) fn finish_copy(&mut self) -> Result<(), TrainError> {
        self.state_copies.finish().map_err(TrainError::Heal)
    }

    /// Begins a copy after a committed step, if one is due.
    ///
    /// # Errors
    /// A peer was lost.
    pub(super) fn copy_if_due(&mut self, committed: Step) -> Result<(), TrainError> {
        if !self.keeps_copies() {
            return Ok(());
        }
        self.state_copies.confirm();
        let (next, every) = (committed.next(), self.plan.config.elastic.copy_steps);
        // The first one follows the first step, so that there is one soon.
        if next.0 > 1 && !next.0.is_multiple_of(every) {
            return Ok(());
        }
        let copy = self.copy_of_state(next);
        let started = self.send_parts(&copy);
        self.state_copies.replace(copy);
        let (sends, awaited) = started.map_err(TrainError::Heal)?;
        (self.state_copies.sends, self.state_copies.awaited) = (sends, awaited);
        Ok(())
    }

    /// Returns a copy of this rank's part of the state before a step.
    fn copy_of_state(&self, next: Step) -> StateCopy {
        let state = self.policy.state();
        let vectors = vectors(&state, &self.copies);
        let own = vectors.iter().enumerate().map(|(vector, part)| CopiedPart {
            vector,
            held: part.held.clone().into_owned(),
            values: part.values.to_vec(),
        });
        StateCopy {
            next,
            session: self.session.cursor(),
            progress: self.decisions.encode(),
            parts: own.collect(),
            held: state.held(),
        }
    }

    /// Starts the messages of a copy: the parts of this rank that no other one has, to the rank that stores them, and those of other ranks.
    #[expect(clippy::type_complexity, reason = "the sends and the receives")]
    fn send_parts(
        &self,
        copy: &StateCopy,
    ) -> Result<(Vec<Box<dyn Work>>, Vec<AwaitedPart>), CollectiveError> {
        let group = &self.member.group;
        let (hosts, me) = (group.hosts(), group.rank().index());
        let state = self.policy.state();
        let kinds = state.vectors().into_iter().map(|part| part.kind);
        let numbers = kinds.enumerate();
        let numbers = numbers.filter(|(_, kind)| *kind == VectorKind::Distributed);
        let (distributed, ranges) = (state.distributed(), state.distributed_ranges());
        let (mut sends, mut awaited) = (Vec::new(), Vec::new());
        for (((vector, _), distributed), place) in numbers.zip(distributed).zip(ranges) {
            let own = &copy.parts[vector];
            let to = stores_for(me, &hosts);
            if to != me && !own.values.is_empty() {
                let buffer = Buffer::copy_of(&own.values);
                sends.push(group.send(GroupRank(to as u32), TAG, buffer)?);
            }
            for (from, held) in distributed.layout().iter().enumerate() {
                if from == me || stores_for(from, &hosts) != me || held.is_empty() {
                    continue;
                }
                let buffer = Buffer::host(DType::F32, held.len());
                let shifted = held.ranges().iter();
                let shifted = shifted.map(|r| r.start + place.start..r.end + place.start);
                awaited.push(AwaitedPart {
                    vector,
                    held: held.clone(),
                    place: HeldRanges::new(shifted),
                    work: group.receive(GroupRank(from as u32), TAG, buffer)?,
                });
            }
        }
        Ok((sends, awaited))
    }

    /// Returns to the newest copy that the members have together, unless a checkpoint is as new. All members call it together. Returns
    /// whether there is one: members without it have no state then, and copy that of the others.
    ///
    /// # Errors
    /// A peer was lost.
    pub(super) fn return_to_copies(&mut self) -> Result<bool, TrainError> {
        if !self.keeps_copies() {
            return Ok(false);
        }
        let timer = Stopwatch::start();
        let group = self.member.group.clone();
        let saved = self.saving.checkpoints().and_then(RunCheckpoints::saved);
        let saved = saved.map_or(-1, |step| step.0 as i64);
        let saved = group.all_gather(&[saved]).map_err(TrainError::Heal)?;
        let elements = self.policy.state().elements();
        let mine = (self.state_copies.all()).map(|copy| copy.report());
        let words: Vec<u64> = mine.flat_map(|copy| copy.encode()).collect();
        let all = MemberState::decode_all(&self.gather_words(&words)?).unwrap_or_default();
        let StateSource::Members(step) = StateSource::of(&all, elements) else {
            return Ok(false);
        };
        if saved.iter().any(|saved| *saved >= step.0 as i64) {
            return Ok(false);
        }
        let even = self.even_mesh()?;
        self.regroup(even)?;
        self.slices.give_up();
        self.session.give_up_state();
        self.load_copy(step)?;
        if self.member.rank == Rank(0) {
            self.member.tracker.record(Event::CheckpointLoaded {
                step,
                world_size: all.iter().filter(|copy| copy.next == step).count() as u32,
                bytes: 4 * elements as u64,
                duration_s: timer.elapsed_s(),
                address: None,
                skipped: Vec::new(),
            });
        }
        Ok(true)
    }

    /// Loads the copy of a step, if this rank has it, and drops all others.
    fn load_copy(&mut self, step: Step) -> Result<(), TrainError> {
        let StateCopies {
            newest, earlier, ..
        } = std::mem::take(&mut self.state_copies);
        let mut copies = newest.map(|(copy, _)| copy).into_iter().chain(earlier);
        let Some(copy) = copies.find(|copy| copy.next == step) else {
            return Ok(());
        };
        self.hold(&copy.held).reload();
        let mut edit = self.policy.edit();
        let mut state = vectors_mut(&mut edit, &mut self.copies);
        for part in &copy.parts {
            let to = &mut state[part.vector];
            let mut rest = part.values.as_slice();
            for range in part.held.ranges() {
                let (values, after) = rest.split_at(range.len());
                if let Some(held) = to.held.locate(range) {
                    to.values[held].copy_from_slice(values);
                }
                rest = after;
            }
        }
        drop(state);
        edit.reload();
        self.slices.loaded(copy.held.clone());
        self.decisions.restore(&copy.progress)?;
        let digest = self.digest(Step(step.0.saturating_sub(1)));
        if !self.session.resume(&copy.session, digest) {
            return Err(TrainError::Impossible {
                problem: format!("the copy of the state before step {step} is inconsistent"),
                hint: "this is a bug of ronde; please report it".to_owned(),
            });
        }
        self.state_copies.newest = Some((copy, CopyProgress::Complete));
        Ok(())
    }
}

/// Returns the rank that stores the parts of a rank: the next one on another host, or the next one.
fn stores_for(rank: usize, hosts: &[usize]) -> usize {
    let size = hosts.len().max(1);
    let others = (1..size).map(|distance| (rank + distance) % size);
    let is_elsewhere = |other: &usize| hosts[*other] != hosts[rank];
    let mut elsewhere = others.filter(is_elsewhere);
    elsewhere.next().unwrap_or((rank + 1) % size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_stored_on_another_host_if_there_is_one() {
        let all = |hosts: &[usize]| -> Vec<usize> {
            (0..hosts.len())
                .map(|rank| stores_for(rank, hosts))
                .collect()
        };
        assert_eq!(all(&[0]), [0]);
        assert_eq!(all(&[0, 0, 0]), [1, 2, 0]);
        assert_eq!(all(&[0, 0, 1, 1]), [2, 2, 0, 0]);
        assert_eq!(all(&[0, 1, 0]), [1, 2, 1]);
    }
}
