//! Two sides of a partition never train independently (no split brain).
//!
//! Once a later generation has committed a step, an older one may only commit a step that it had begun before: its
//! votes may still be in flight to a worker that was stopped or partitioned.

use std::collections::BTreeMap;

use ronde_core::{Generation, Step};

use crate::cluster::fact::Fact;
use crate::cluster::invariants::Invariant;

/// See the file's first lines.
#[derive(Debug, Default)]
pub(super) struct NoSplitBrain {
    /// The last step that was begun in each generation.
    begun: BTreeMap<Generation, Step>,
    /// For each generation with a successor: the successor, and the last step begun at that time.
    over: BTreeMap<Generation, (Generation, Step)>,
    newest: Generation,
}

impl Invariant for NoSplitBrain {
    fn name(&self) -> &'static str {
        "two sides never train independently"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Computes {
                generation, step, ..
            } => {
                let last = self.begun.entry(*generation).or_insert(*step);
                *last = (*last).max(*step);
            }
            Fact::Committed {
                worker,
                generation,
                step,
                ..
            } => {
                if *generation > self.newest {
                    self.newest = *generation;
                    for (older, last) in self.begun.range(..generation) {
                        self.over.entry(*older).or_insert((*generation, *last));
                    }
                }
                let over = self.over.get(generation).copied();
                let over = over.or((*generation < self.newest).then_some((self.newest, Step(0))));
                if let Some((later, last)) = over.filter(|(_, last)| step > last) {
                    return Err(format!(
                        "worker {worker} committed step {step} in generation {generation}, \
                         whose last step was {last} when generation {later} committed its first"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
