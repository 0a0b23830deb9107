//! No disguised restart: survivors stay who they are, and only the step in flight is redone.

use std::collections::BTreeMap;

use ronde_core::{Generation, Step};
use ronde_elastic::WorkerId;

use crate::fact::{Exit, Fact};
use crate::invariants::Invariant;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct Survivors {
    /// The next step of every worker with a complete state.
    holds: BTreeMap<WorkerId, Step>,
    /// The step that a worker has to compute next.
    next: BTreeMap<WorkerId, Step>,
    /// What each worker held when it entered a generation, and that generation's members.
    entered: BTreeMap<(WorkerId, Generation), (Option<Step>, Vec<WorkerId>)>,
}

impl Invariant for Survivors {
    fn name(&self) -> &'static str {
        "survivors stay, and only the step in flight is redone"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::WorkerEnded(worker, exit) => {
                self.holds.remove(worker);
                if *exit == Exit::Irregular {
                    return Err(format!(
                        "worker {worker} ended although nothing asked for it"
                    ));
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
            // What it had is given up for what it gets.
            Fact::Heals { worker, .. } => {
                self.holds.remove(worker);
            }
            Fact::Holds { worker, next, .. } => {
                self.holds.insert(*worker, *next);
            }
            Fact::Planned {
                worker,
                generation,
                positions,
                next,
            } => {
                self.next.insert(*worker, *next);
                let entered = |worker: &WorkerId| self.entered.get(&(*worker, *generation));
                let members = entered(worker).map_or(&[][..], |(_, members)| members);
                for (member, position) in members.iter().zip(positions) {
                    let held = entered(member).and_then(|(holds, _)| *holds);
                    if held.is_some_and(|held| held > *next) {
                        return Err(format!(
                            "generation {generation} begins with step {next}, but worker {member} \
                             had committed all before {held:?} (it said {position:?})"
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
                        "worker {worker} computes step {step} in generation {generation}, its next is {next}"
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
