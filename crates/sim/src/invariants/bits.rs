//! Every state has the same bits as in an undisturbed run at that step.

use crate::fact::Fact;
use crate::invariants::Invariant;
use crate::model::SimulatedRun;

/// See the file's first line.
#[derive(Debug)]
pub(super) struct EqualBits {
    hashes: Vec<u64>,
}

impl EqualBits {
    pub(super) fn new(run: SimulatedRun) -> Self {
        Self {
            hashes: run.undisturbed(),
        }
    }
}

impl Invariant for EqualBits {
    fn name(&self) -> &'static str {
        "states have the bits of an undisturbed run"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        let (who, next, hash) = match fact {
            Fact::Holds { worker, next, hash } => (format!("worker {worker}"), next, hash),
            Fact::Written { next, hash } => ("the checkpoint".to_owned(), next, hash),
            _ => return Ok(()),
        };
        match self.hashes.get(next.index()) {
            Some(undisturbed) if undisturbed == hash => Ok(()),
            undisturbed => Err(format!(
                "before step {next} {who} has {hash:016x}, an undisturbed run {undisturbed:016x?}"
            )),
        }
    }
}
