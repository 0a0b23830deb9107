//! No hidden restart: survivors keep their processes and states, and only the step in flight is recomputed.

use std::collections::{BTreeMap, BTreeSet};

use ronde_core::{Generation, Step};
use ronde_protocol::WorkerId;
use ronde_protocol::holdings::HeldRanges;

use crate::cluster::fact::{Fact, WorkerExit};
use crate::cluster::invariants::Invariant;
use crate::cluster::model::all_elements;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct NoRestart {
    /// The next step of every worker, and the elements that it has of the state before it.
    holds: BTreeMap<WorkerId, HeldState>,
    /// The step that a worker has to compute next.
    next: BTreeMap<WorkerId, Step>,
    /// The state of each worker when it entered a generation, and that generation's members.
    entered: BTreeMap<(WorkerId, Generation), (Option<HeldState>, Vec<WorkerId>)>,
    /// Whether a checkpoint is complete.
    is_saved: bool,
    /// Whether a checkpoint was complete when a worker entered a generation.
    was_saved: BTreeMap<(WorkerId, Generation), bool>,
}

/// A worker's next step, and the elements that it has of the state before it.
type HeldState = (Step, HeldRanges);

impl NoRestart {
    /// Returns the newest step before which the members of a generation had all elements together when they entered it.
    fn covered(&self, worker: WorkerId, generation: Generation) -> Option<Step> {
        let entered = |worker: WorkerId| self.entered.get(&(worker, generation));
        let members = entered(worker).map_or(&[][..], |(_, members)| members);
        let states = || {
            let states = members.iter().filter_map(|member| entered(*member));
            let states = states.filter_map(|(state, _)| state.as_ref());
            // The initial state is not lost with its holders.
            states.filter(|(next, _)| *next > Step(0))
        };
        let steps: BTreeSet<Step> = states().map(|(next, _)| *next).collect();
        let is_covered = |next: &Step| {
            let held = states().filter(|(of, _)| of == next);
            let held = held.flat_map(|(_, held)| held.ranges().to_vec());
            HeldRanges::new(held) == all_elements()
        };
        steps.into_iter().rev().find(is_covered)
    }
}

impl NoRestart {
    /// Checks that the members of a generation could not have all of a state.
    fn check_loss(&self, worker: WorkerId, generation: Generation) -> Result<(), String> {
        let reports = format!("worker {worker} reports a lost slice in generation {generation}");
        if let Some(next) = self.covered(worker, generation) {
            return Err(format!(
                "{reports}, but its members had all of the state before step {next}"
            ));
        }
        match self.was_saved.get(&(worker, generation)) {
            Some(true) => Err(format!("{reports}, but a checkpoint was complete")),
            _ => Ok(()),
        }
    }
}

impl Invariant for NoRestart {
    fn name(&self) -> &'static str {
        "survivors continue and only the step in flight is recomputed"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::WorkerEnded(worker, exit) => {
                self.holds.remove(worker);
                if *exit == WorkerExit::Irregular {
                    return Err(format!("worker {worker} exited without a request"));
                }
            }
            Fact::Entered {
                worker,
                members,
                generation,
                ..
            } => {
                let holds = self.holds.get(worker).cloned();
                self.was_saved.insert((*worker, *generation), self.is_saved);
                self.entered
                    .insert((*worker, *generation), (holds, members.clone()));
            }
            // The state that the worker had is replaced by the received state.
            Fact::Heals { worker, .. } | Fact::GivesUp(worker) => {
                self.holds.remove(worker);
            }
            Fact::Holds {
                worker, next, held, ..
            } => {
                self.holds.insert(*worker, (*next, held.clone()));
            }
            Fact::Written { .. } => self.is_saved = true,
            Fact::SliceLost { worker, generation } => {
                self.check_loss(*worker, *generation)?;
            }
            Fact::Planned {
                worker,
                generation,
                reports,
                next,
            } => {
                self.next.insert(*worker, *next);
                let covered = self.covered(*worker, *generation);
                if covered.is_some_and(|covered| covered > *next) {
                    return Err(format!(
                        "generation {generation} begins with step {next}, but its members had the state before step \
                         {covered:?} (they reported {reports:?})"
                    ));
                }
            }
            Fact::Computes {
                worker,
                generation,
                step,
            } => {
                let next = self.next.get(worker).copied().unwrap_or_default();
                if next != *step {
                    return Err(format!(
                        "worker {worker} computes step {step} in generation {generation}, but its next step is {next}"
                    ));
                }
            }
            Fact::Committed { worker, step, .. } => {
                self.next.insert(*worker, step.next());
            }
            _ => {}
        }
        Ok(())
    }
}
