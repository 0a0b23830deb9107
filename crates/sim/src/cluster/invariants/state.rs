//! A state that is newer than the start of a generation is not abandoned while a member of the previous
//! generation holds it, reachable or not.

use std::collections::BTreeMap;

use ronde_core::Step;
use ronde_protocol::{JobRecord, StartFrom, WorkerId};

use crate::clock::SECOND;
use crate::cluster::fact::Fact;
use crate::cluster::invariants::Invariant;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct PreservedState {
    /// The time since which each running worker has held a complete state, and the state's next step.
    holds: BTreeMap<WorkerId, (u64, Step)>,
    record: JobRecord,
}

impl Invariant for PreservedState {
    fn name(&self) -> &'static str {
        "a state that a member holds is not abandoned"
    }

    fn see(&mut self, at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Holds { worker, next, .. } => {
                self.holds.entry(*worker).or_insert((at, *next)).1 = *next;
            }
            Fact::Heals { worker, .. } | Fact::GivesUp(worker) | Fact::WorkerEnded(worker, _) => {
                self.holds.remove(worker);
            }
            Fact::Stored(record) => {
                let before = std::mem::replace(&mut self.record, record.clone());
                let StartFrom::Checkpoint(checkpoint) = record.start else {
                    return Ok(());
                };
                if record.generation <= before.generation {
                    return Ok(());
                }
                let start = checkpoint.unwrap_or_default();
                // A worker that has just completed its state may not have been able to report it.
                let held = |worker: WorkerId| {
                    let held = self.holds.get(&worker);
                    held.is_some_and(|(since, next)| since + SECOND < at && *next > start)
                };
                let holder = before.members.iter().find(|member| held(member.worker));
                if let Some(member) = holder {
                    return Err(format!(
                        "generation {:?} starts from the beginning, but worker {} of generation {:?} holds the state",
                        record.generation, member.worker, before.generation
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
