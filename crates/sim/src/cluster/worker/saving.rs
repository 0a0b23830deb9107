//! The checkpoints of a divided state: each worker writes its part, and the first one publishes them together.

use std::collections::{BTreeMap, BTreeSet};

use ronde_core::{Generation, Step};
use ronde_protocol::holdings::HeldRanges;
use ronde_protocol::transaction::{CommittedStep, VoteRequests};

use super::{CHECKPOINT_EVERY, LoopWait, SimulatedWorker};
use crate::clock::MS;
use crate::cluster::effect::{Alarm, Effect, Effects, HostMessage};
use crate::cluster::fact::Fact;
use crate::cluster::group::GatherPart;
use crate::cluster::injected_bug::InjectedBug;

/// The elements of a rank's part of a checkpoint, their values, and the cursor.
type CheckpointPart = (HeldRanges, Vec<f32>, Vec<u8>);

/// A checkpoint that the members of a generation save together.
#[derive(Debug, Default)]
pub(super) struct PartSave {
    next: Option<Step>,
    /// The ranks whose parts are known to be written.
    written: BTreeSet<usize>,
    /// The steps of written parts, for the next vote.
    notes: Vec<Step>,
    /// Whether a save was cancelled, so that another one is due.
    is_overdue: bool,
    /// The parts that are being written.
    parts: BTreeMap<(Generation, Step), CheckpointPart>,
}

impl PartSave {
    /// Enters a generation: a save needs all ranks that began it.
    pub(super) fn enter(&mut self) {
        self.is_overdue |= self.next.take().is_some();
        self.written.clear();
        self.notes.clear();
    }
}

impl SimulatedWorker {
    fn is_first(&self) -> bool {
        self.group.as_ref().is_some_and(|group| group.rank == 0)
    }

    /// Adds the requests and notes of this worker to its next vote.
    pub(super) fn prepare_vote(&mut self) {
        let after = self.replica.transaction.next_step().next();
        let is_due = self.saving.is_overdue || after.0.is_multiple_of(CHECKPOINT_EVERY);
        let requests = VoteRequests {
            save: self.is_first() && is_due && self.saving.next.is_none(),
            // One member can save the state alone after all have left, unless each has a part of it.
            stop: self.machine.is_stopping(),
            leaves: self.machine.drops_members(),
            ..VoteRequests::default()
        };
        self.replica.transaction.request(requests);
        let notes = self.saving.notes.iter();
        let notes = notes.flat_map(|step| step.0.to_le_bytes()).collect();
        self.replica.transaction.attach(notes);
    }

    /// Processes the notes of all ranks about written parts; the first rank publishes a complete checkpoint.
    pub(super) fn receive_notes(&mut self, committed: &CommittedStep, fx: &mut Effects<'_>) {
        self.saving.notes.clear();
        for (rank, note) in committed.notes.iter().enumerate() {
            for step in note.as_chunks::<8>().0 {
                if self.saving.next == Some(Step(u64::from_le_bytes(*step))) {
                    self.saving.written.insert(rank);
                }
            }
        }
        let ranks = committed.notes.len();
        let needed = match fx.has(InjectedBug::PartIsMissing) {
            true => 1,
            false => ranks,
        };
        if let (Some(next), true) = (self.saving.next, self.saving.written.len() >= needed) {
            self.saving.next = None;
            self.saving.written.clear();
            if self.is_first() {
                self.publish(committed.generation, next, fx);
            }
        }
    }

    /// Continues after a step whose weights are gathered.
    pub(super) fn finish_step(&mut self, requests: VoteRequests, ends: bool, fx: &mut Effects<'_>) {
        let next = self.replica.transaction.next_step();
        self.stops = requests.stop;
        // A member that leaves may be the only one with its slices.
        if requests.stop || requests.leaves && ends {
            self.task = LoopWait::WritingPart(next);
            return self.begin_part(next, fx);
        }
        if requests.save {
            self.saving.is_overdue = false;
            (self.saving.next, self.saving.written) = (Some(next), BTreeSet::new());
            self.begin_part(next, fx);
        }
        if ends || !self.restore_copies(fx) {
            self.resume(fx);
        }
    }

    /// Begins to write this worker's part of a checkpoint.
    fn begin_part(&mut self, next: Step, fx: &mut Effects<'_>) {
        let Some((generation, elements)) = self.owned_elements() else {
            return;
        };
        let values = self.replica.values(&elements);
        let part = (elements, values, self.replica.transaction.cursor());
        self.saving.parts.insert((generation, next), part);
        let at = fx.now + fx.rng.range(5 * MS, 300 * MS);
        let alarm = Alarm::PartWritten(generation, next);
        fx.done.push(Effect::Alarm(at, alarm));
    }

    /// This worker's part of a checkpoint is written.
    pub(super) fn part_written(
        &mut self,
        generation: Generation,
        next: Step,
        fx: &mut Effects<'_>,
    ) {
        let part = self.saving.parts.remove(&(generation, next));
        if let Some((elements, values, cursor)) = part {
            fx.disk
                .write_part((next, generation), &elements, &values, cursor);
        }
        let group = self.group.as_ref();
        if group.is_none_or(|group| group.generation() != generation) {
            return;
        }
        if matches!(self.task, LoopWait::WritingPart(last) if last == next) {
            self.task = LoopWait::Parts(next);
            self.gather(GatherPart::Confirm, fx);
        } else if self.saving.next == Some(next) {
            self.saving.notes.push(next);
        }
    }

    fn publish(&mut self, generation: Generation, next: Step, fx: &mut Effects<'_>) {
        let at = fx.now + fx.rng.range(5 * MS, 100 * MS);
        let alarm = Alarm::Published(generation, next);
        fx.done.push(Effect::Alarm(at, alarm));
    }

    /// The parts of a checkpoint are published.
    pub(super) fn published(&mut self, generation: Generation, next: Step, fx: &mut Effects<'_>) {
        fx.disk.publish(next, generation);
        if let Some(stored) = fx.disk.read(next) {
            let hash = stored.state.hash();
            fx.fact(Fact::Written { next, hash });
        }
        fx.send_to_coordinators(&HostMessage::Written(generation, next));
        if matches!(self.task, LoopWait::Publishing) {
            self.task = LoopWait::Published;
            self.gather(GatherPart::Confirm, fx);
        }
    }

    /// The parts of the last checkpoint are written: the first rank publishes them while the others wait.
    pub(super) fn all_parts_written(&mut self, next: Step, fx: &mut Effects<'_>) {
        let Some(group) = &self.group else {
            return;
        };
        if group.rank == 0 {
            let generation = group.generation();
            self.task = LoopWait::Publishing;
            return self.publish(generation, next, fx);
        }
        self.task = LoopWait::Published;
        self.gather(GatherPart::Confirm, fx);
    }
}
