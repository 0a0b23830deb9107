//! [`Disk`]: the storage of a simulated job.

use std::collections::BTreeMap;

use ronde_core::{Generation, Step};
use ronde_protocol::holdings::HeldRanges;

use crate::cluster::model::SimulatedState;
use crate::rng::Rng;

/// A checkpoint.
#[derive(Debug, Clone)]
pub(super) struct StoredState {
    /// The state.
    pub state: SimulatedState,
    /// The cursor of the transaction log.
    pub cursor: Vec<u8>,
    is_complete: bool,
}

/// The storage of a simulated job: incomplete and complete checkpoints by their next step.
#[derive(Debug, Default)]
pub(super) struct Disk {
    states: BTreeMap<Step, StoredState>,
    /// Checkpoints whose parts are written by several ranks, by the generation that saves them.
    parts: BTreeMap<(Step, Generation), StoredState>,
    /// The rate at which a rank finds the newest checkpoint damaged, per thousand.
    damage: u64,
}

impl Disk {
    /// Creates an empty storage. A rank finds the newest checkpoint damaged at this rate, per thousand.
    #[must_use]
    pub(super) fn new(damage: u64) -> Self {
        Self {
            damage,
            ..Self::default()
        }
    }

    /// Returns whether a rank finds the newest checkpoint damaged.
    pub(super) fn is_damaged(&self, rng: &mut Rng) -> bool {
        rng.per_mille(self.damage)
    }

    /// Begins a checkpoint.
    pub(super) fn begin(&mut self, next: Step, state: SimulatedState, cursor: Vec<u8>) {
        self.states.entry(next).or_insert(StoredState {
            state,
            cursor,
            is_complete: false,
        });
    }

    /// Completes a checkpoint.
    pub(super) fn complete(&mut self, next: Step) {
        if let Some(stored) = self.states.get_mut(&next) {
            stored.is_complete = true;
        }
    }

    /// Writes one rank's part of a checkpoint, which is not complete before [`Disk::publish`].
    pub(super) fn write_part(
        &mut self,
        (next, generation): (Step, Generation),
        elements: &HeldRanges,
        values: &[f32],
        cursor: Vec<u8>,
    ) {
        let parts = self.parts.entry((next, generation));
        let parts = parts.or_insert_with(|| StoredState {
            state: SimulatedState::unknown(),
            cursor,
            is_complete: true,
        });
        parts.state.set_values(elements, values);
    }

    /// Makes the parts that a generation has written a complete checkpoint.
    pub(super) fn publish(&mut self, next: Step, generation: Generation) {
        if let Some(parts) = self.parts.remove(&(next, generation)) {
            self.states.insert(next, parts);
        }
    }

    /// Returns a complete checkpoint.
    #[must_use]
    pub(super) fn read(&self, next: Step) -> Option<&StoredState> {
        self.states.get(&next).filter(|stored| stored.is_complete)
    }

    /// Returns the newest complete checkpoint before step `end`.
    #[must_use]
    pub(super) fn newest_before(&self, end: Step) -> Option<(Step, &StoredState)> {
        let mut newest_first = self.states.range(..end).rev();
        newest_first
            .find(|(_, stored)| stored.is_complete)
            .map(|(next, stored)| (*next, stored))
    }
}
