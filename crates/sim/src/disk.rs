//! [`Disk`]: the job's storage.

use std::collections::BTreeMap;

use ronde_core::Step;
use ronde_core::ledger::Ledger;

use crate::model::State;

/// The job's storage: checkpoints that are being written, and complete ones.
#[derive(Debug, Default)]
pub struct Disk {
    states: BTreeMap<Step, (State, Ledger, bool)>,
}

impl Disk {
    /// A checkpoint is begun.
    pub fn begin(&mut self, next: Step, state: State, ledger: Ledger) {
        self.states.entry(next).or_insert((state, ledger, false));
    }

    /// A checkpoint is complete.
    pub fn complete(&mut self, next: Step) {
        if let Some((_, _, is_complete)) = self.states.get_mut(&next) {
            *is_complete = true;
        }
    }

    /// A complete checkpoint.
    #[must_use]
    pub fn read(&self, next: Step) -> Option<(State, Ledger)> {
        let complete = self
            .states
            .get(&next)
            .filter(|(_, _, is_complete)| *is_complete);
        complete.map(|(state, ledger, _)| (state.clone(), ledger.clone()))
    }
}
