//! Every state has the same bits as in an undisturbed run at that step.

use crate::cluster::fact::Fact;
use crate::cluster::invariants::Invariant;
use crate::cluster::model::{SimulatedRun, SimulatedState, all_elements};

/// See the file's first line.
#[derive(Debug)]
pub(super) struct EqualBits {
    states: Vec<SimulatedState>,
}

impl EqualBits {
    pub(super) fn new(run: SimulatedRun) -> Self {
        Self {
            states: run.undisturbed(),
        }
    }
}

impl Invariant for EqualBits {
    fn name(&self) -> &'static str {
        "states have the bits of an undisturbed run"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        let (who, next, hash, held) = match fact {
            Fact::Holds {
                worker,
                next,
                held,
                hash,
            } => (format!("worker {worker}"), next, hash, Some(held)),
            Fact::Weights { worker, next, hash } => {
                let undisturbed = self.states.get(next.index());
                return match undisturbed.map(SimulatedState::weight_hash) {
                    Some(undisturbed) if undisturbed == *hash => Ok(()),
                    _ => Err(format!(
                        "before step {next} worker {worker} has gathered other weights"
                    )),
                };
            }
            Fact::Written { next, hash } => ("the checkpoint".to_owned(), next, hash, None),
            _ => return Ok(()),
        };
        let held = held.cloned().unwrap_or_else(all_elements);
        let undisturbed = self.states.get(next.index());
        match undisturbed.map(|state| state.hash_of(&held)) {
            Some(undisturbed) if undisturbed == *hash => Ok(()),
            undisturbed => Err(format!(
                "before step {next} {who} has {hash:016x}, an undisturbed run {undisturbed:016x?}, of {held:?}"
            )),
        }
    }
}
