//! No sample is lost or repeated, on any worker, and each worker commits step after step.

use std::collections::BTreeMap;

use ronde_core::Step;
use ronde_elastic::WorkerId;

use crate::fact::Fact;
use crate::invariants::Invariant;
use crate::model::Run;

/// See the file's first line.
#[derive(Debug)]
pub(super) struct Samples {
    run: Run,
    next: BTreeMap<WorkerId, Step>,
}

impl Samples {
    pub(super) fn new(run: Run) -> Self {
        Self {
            run,
            next: BTreeMap::new(),
        }
    }
}

impl Invariant for Samples {
    fn name(&self) -> &'static str {
        "no sample is lost or repeated"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Contradiction(problem) => return Err(problem.clone()),
            // A state that was taken over carries its ledger.
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
                        "worker {worker} committed step {step}, its next was {next}"
                    ));
                }
                self.next.insert(*worker, step.next());
                let mut used = ids.clone();
                used.sort_unstable();
                let mut planned = self.run.samples(*step);
                planned.sort_unstable();
                if used != planned {
                    return Err(format!(
                        "step {step} used the samples {used:?}, planned were {planned:?}"
                    ));
                }
                if let Some(verdict) = verdict.filter(|verdict| !verdict.is_exact()) {
                    return Err(format!("worker {worker} closed an epoch with {verdict:?}"));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
