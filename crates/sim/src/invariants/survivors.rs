//! No disguised restart: survivors stay who they are, and only the step in flight is redone.

use std::collections::BTreeMap;

use ronde_core::Step;
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
    entered: BTreeMap<WorkerId, Vec<WorkerId>>,
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
                worker, members, ..
            } => {
                self.entered.insert(*worker, members.clone());
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
                let members = self.entered.get(worker).map_or(&[][..], Vec::as_slice);
                for (member, position) in members.iter().zip(positions) {
                    let holds = self.holds.get(member);
                    if holds.is_some_and(|holds| holds > next) {
                        return Err(format!(
                            "generation {generation} begins with step {next}, but worker {member} \
                             had committed all before {holds:?} (it said {position:?})"
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
