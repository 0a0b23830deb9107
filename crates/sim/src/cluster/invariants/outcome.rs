//! A step has at most one outcome; a finished job has recorded one for every step.

use std::collections::BTreeMap;

use ronde_core::{Generation, Step};
use ronde_protocol::{JobEnding, Term};

use crate::cluster::fact::Fact;
use crate::cluster::invariants::Invariant;
use crate::cluster::model::SimulatedRun;

/// See the file's first line.
#[derive(Debug)]
pub(super) struct SingleOutcome {
    run: SimulatedRun,
    /// The hash of the state before each step, by the elements that a worker has.
    hashes: BTreeMap<(Step, Vec<u64>), u64>,
    recorded: BTreeMap<Step, (Generation, Term)>,
}

impl SingleOutcome {
    pub(super) fn new(run: SimulatedRun) -> Self {
        Self {
            run,
            hashes: BTreeMap::new(),
            recorded: BTreeMap::new(),
        }
    }
}

impl Invariant for SingleOutcome {
    fn name(&self) -> &'static str {
        "at most one outcome per step"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Holds {
                worker,
                next,
                held,
                hash,
            } => {
                let known = *self.hashes.entry((*next, held.encode())).or_insert(*hash);
                if known != *hash {
                    return Err(format!(
                        "before step {next} worker {worker} has {hash:016x}, another worker had {known:016x}"
                    ));
                }
            }
            Fact::Recorded {
                step,
                generation,
                term,
                worker,
            } => {
                let last = self.recorded.last_key_value().map(|(step, _)| *step);
                if last.is_some_and(|last| *step > last.next()) {
                    return Err(format!(
                        "worker {worker} recorded step {step} after step {last:?}"
                    ));
                }
                self.recorded.insert(*step, (*generation, *term));
            }
            Fact::Over(JobEnding::Finished) => {
                let steps = self.recorded.len() as u64;
                if steps != self.run.end.0 {
                    return Err(format!(
                        "{steps} of {} outcomes were recorded",
                        self.run.end
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
