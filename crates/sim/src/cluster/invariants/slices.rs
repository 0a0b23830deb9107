//! A worker gives up slices only when other workers have them.

use std::collections::BTreeMap;

use ronde_core::Step;
use ronde_protocol::WorkerId;
use ronde_protocol::holdings::HeldRanges;

use crate::cluster::fact::Fact;
use crate::cluster::invariants::Invariant;
use crate::cluster::model::all_elements;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct KeptSlices {
    /// The next step of every running worker, and the elements that it has of the state before it.
    holds: BTreeMap<WorkerId, (Step, HeldRanges)>,
    /// For each worker, the elements that others have had of each state since it entered its generation. A receiver may be lost
    /// after it has confirmed that it has them.
    of_others: BTreeMap<WorkerId, BTreeMap<Step, HeldRanges>>,
}

impl KeptSlices {
    /// Returns whether a worker with some elements of the state before a step and the other workers have all of it.
    fn is_covered(&self, worker: WorkerId, next: Step, held: &HeldRanges) -> bool {
        let others = self.of_others.get(&worker).and_then(|of| of.get(&next));
        others.map_or_else(|| held.clone(), |others| union(others, held)) == all_elements()
    }

    fn enter(&mut self, worker: WorkerId) {
        let mut of_others = BTreeMap::new();
        for (_, (next, held)) in self.holds.iter().filter(|(other, _)| **other != worker) {
            let all: &mut HeldRanges = of_others.entry(*next).or_default();
            *all = union(all, held);
        }
        self.of_others.insert(worker, of_others);
    }

    fn hold(&mut self, worker: WorkerId, next: Step, held: &HeldRanges) -> Result<(), String> {
        for (_, of) in self
            .of_others
            .iter_mut()
            .filter(|(other, _)| **other != worker)
        {
            let all = of.entry(next).or_default();
            *all = union(all, held);
        }
        let before = self.holds.insert(worker, (next, held.clone()));
        let before = before.filter(|(of, _)| *of == next);
        let was_covered = before.is_some_and(|(_, had)| self.is_covered(worker, next, &had));
        // The initial state is not lost with its holders.
        if was_covered && next > Step(0) && !self.is_covered(worker, next, held) {
            return Err(format!(
                "worker {worker} keeps only {held:?} of the state before step {next}; no other worker has the rest"
            ));
        }
        Ok(())
    }
}

/// Returns the elements of both.
fn union(one: &HeldRanges, other: &HeldRanges) -> HeldRanges {
    HeldRanges::new(one.ranges().iter().chain(other.ranges()).cloned())
}

impl Invariant for KeptSlices {
    fn name(&self) -> &'static str {
        "slices are given up only when other workers have them"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Entered { worker, .. } => self.enter(*worker),
            Fact::Holds {
                worker, next, held, ..
            } => return self.hold(*worker, *next, held),
            Fact::WorkerEnded(worker, _) => {
                self.holds.remove(worker);
                self.of_others.remove(worker);
            }
            Fact::Heals { worker, .. } | Fact::GivesUp(worker) => {
                self.holds.remove(worker);
            }
            _ => {}
        }
        Ok(())
    }
}
