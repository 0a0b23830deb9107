//! Generations and terms only increase, and all members of a generation know the same members.

use std::collections::BTreeMap;

use ronde_core::Generation;
use ronde_protocol::{Term, WorkerId};

use crate::cluster::fact::Fact;
use crate::cluster::invariants::Invariant;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct GrowingGenerations {
    stored: (Term, Option<Generation>),
    entered: BTreeMap<WorkerId, (Term, Generation)>,
    members: BTreeMap<Generation, Vec<WorkerId>>,
}

impl Invariant for GrowingGenerations {
    fn name(&self) -> &'static str {
        "generations and terms increase"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Stored(record) => {
                let (term, generation) = self.stored;
                if record.term < term || record.generation < generation {
                    return Err(format!(
                        "the record changed from term {term}, generation {generation:?} to term {}, generation {:?}",
                        record.term, record.generation
                    ));
                }
                self.stored = (record.term, record.generation);
            }
            Fact::Entered {
                worker,
                term,
                generation,
                members,
            } => {
                if let Some((was_term, was)) = self.entered.insert(*worker, (*term, *generation))
                    && (was >= *generation || was_term > *term)
                {
                    return Err(format!(
                        "worker {worker} changed from generation {was} (term {was_term}) to {generation} (term {term})"
                    ));
                }
                let known = self
                    .members
                    .entry(*generation)
                    .or_insert_with(|| members.clone());
                if known != members {
                    return Err(format!(
                        "the ranks of generation {generation} are {known:?} for one member and {members:?} for another"
                    ));
                }
                if !members.contains(worker) || Some(*generation) > self.stored.1 {
                    return Err(format!(
                        "worker {worker} is not a member of generation {generation}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
