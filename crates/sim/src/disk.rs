//! [`Disk`]: the storage of a simulated job.

use std::collections::BTreeMap;

use ronde_core::Step;

use crate::model::SimulatedState;

/// A checkpoint.
#[derive(Debug, Clone)]
pub struct StoredState {
    /// The state.
    pub state: SimulatedState,
    /// The cursor of the transaction log.
    pub cursor: Vec<u8>,
    is_complete: bool,
}

/// The storage of a simulated job: incomplete and complete checkpoints by their next step.
#[derive(Debug, Default)]
pub struct Disk {
    states: BTreeMap<Step, StoredState>,
}

impl Disk {
    /// Begins a checkpoint.
    pub fn begin(&mut self, next: Step, state: SimulatedState, cursor: Vec<u8>) {
        self.states.entry(next).or_insert(StoredState {
            state,
            cursor,
            is_complete: false,
        });
    }

    /// Completes a checkpoint.
    pub fn complete(&mut self, next: Step) {
        if let Some(stored) = self.states.get_mut(&next) {
            stored.is_complete = true;
        }
    }

    /// Returns a complete checkpoint.
    #[must_use]
    pub fn read(&self, next: Step) -> Option<&StoredState> {
        self.states.get(&next).filter(|stored| stored.is_complete)
    }

    /// Returns the newest complete checkpoint.
    #[must_use]
    pub fn newest(&self) -> Option<(Step, &StoredState)> {
        let mut newest_first = self.states.iter().rev();
        newest_first
            .find(|(_, stored)| stored.is_complete)
            .map(|(next, stored)| (*next, stored))
    }
}
