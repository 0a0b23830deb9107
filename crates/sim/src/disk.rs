//! [`Disk`]: the storage of a simulated job.

use std::collections::BTreeMap;

use ronde_core::Step;
use ronde_core::ledger::Ledger;

use crate::model::SimulatedState;

/// The storage of a simulated job: incomplete and complete checkpoints.
#[derive(Debug, Default)]
pub struct Disk {
    states: BTreeMap<Step, (SimulatedState, Ledger, bool)>,
}

impl Disk {
    /// Begins a checkpoint.
    pub fn begin(&mut self, next: Step, state: SimulatedState, ledger: Ledger) {
        self.states.entry(next).or_insert((state, ledger, false));
    }

    /// Completes a checkpoint.
    pub fn complete(&mut self, next: Step) {
        if let Some((_, _, is_complete)) = self.states.get_mut(&next) {
            *is_complete = true;
        }
    }

    /// Returns a complete checkpoint.
    #[must_use]
    pub fn read(&self, next: Step) -> Option<(SimulatedState, Ledger)> {
        let complete = self
            .states
            .get(&next)
            .filter(|(_, _, is_complete)| *is_complete);
        complete.map(|(state, ledger, _)| (state.clone(), ledger.clone()))
    }
}
