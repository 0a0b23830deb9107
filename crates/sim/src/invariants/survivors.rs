//! No hidden restart: survivors keep their processes and states, and only the step in flight is recomputed.

use std::collections::BTreeMap;

use ronde_core::{Generation, Step};
use ronde_elastic::WorkerId;

use crate::fact::{Fact, WorkerExit};
use crate::invariants::Invariant;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct NoRestart {
    /// The next step of every worker with a complete state.
    holds: BTreeMap<WorkerId, Step>,
    /// The step that a worker has to compute next.
    next: BTreeMap<WorkerId, Step>,
    /// The next step of each worker when it entered a generation, and that generation's members.
    entered: BTreeMap<(WorkerId, Generation), (Option<Step>, Vec<WorkerId>)>,
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
                let holds = self.holds.get(worker).copied();
                self.entered
                    .insert((*worker, *generation), (holds, members.clone()));
            }
            // The state that the worker had is replaced by the received state.
            Fact::Heals { worker, .. } => {
                self.holds.remove(worker);
            }
            Fact::Holds { worker, next, .. } => {
                self.holds.insert(*worker, *next);
            }
            Fact::Planned {
                worker,
                generation,
                reports,
                next,
            } => {
                self.next.insert(*worker, *next);
                let entered = |worker: &WorkerId| self.entered.get(&(*worker, *generation));
                let members = entered(worker).map_or(&[][..], |(_, members)| members);
                for (member, report) in members.iter().zip(reports) {
                    let held = entered(member).and_then(|(holds, _)| *holds);
                    if held.is_some_and(|held| held > *next) {
                        return Err(format!(
                            "generation {generation} begins with step {next}, but worker {member} \
                             had committed all before {held:?} (it reported {report:?})"
                        ));
                    }
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
