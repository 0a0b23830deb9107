//! No sample is lost or repeated on any worker, and each worker commits consecutive steps.

use std::collections::BTreeMap;

use ronde_core::Step;
use ronde_protocol::WorkerId;

use crate::cluster::fact::Fact;
use crate::cluster::invariants::Invariant;
use crate::cluster::model::SimulatedRun;

/// See the file's first line.
#[derive(Debug)]
pub(super) struct SampleCounts {
    run: SimulatedRun,
    next: BTreeMap<WorkerId, Step>,
}

impl SampleCounts {
    pub(super) fn new(run: SimulatedRun) -> Self {
        Self {
            run,
            next: BTreeMap::new(),
        }
    }
}

impl Invariant for SampleCounts {
    fn name(&self) -> &'static str {
        "no sample is lost or repeated"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Contradiction(problem) => return Err(problem.clone()),
            // A state that was copied from another worker includes its ledger.
            Fact::Heals { worker, next } | Fact::Holds { worker, next, .. } => {
                self.next.insert(*worker, *next);
            }
            Fact::Committed {
                worker,
                step,
                ids,
                verdict,
                ..
            } => {
                let next = self.next.get(worker).copied().unwrap_or_default();
                if next != *step {
                    return Err(format!(
                        "worker {worker} committed step {step}, but its next step was {next}"
                    ));
                }
                self.next.insert(*worker, step.next());
                let mut used = ids.clone();
                used.sort_unstable();
                let mut planned = self.run.samples(*step);
                planned.sort_unstable();
                if used != planned {
                    return Err(format!(
                        "step {step} used the samples {used:?} instead of {planned:?}"
                    ));
                }
                if let Some(verdict) = verdict.filter(|verdict| !verdict.is_exact()) {
                    return Err(format!(
                        "worker {worker} finished an epoch with {verdict:?}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
