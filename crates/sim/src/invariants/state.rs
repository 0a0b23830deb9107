//! A state is not abandoned while a member of the previous generation holds it, reachable or not.

use std::collections::BTreeMap;

use ronde_elastic::{JobRecord, StartFrom, WorkerId};

use crate::clock::SECOND;
use crate::fact::Fact;
use crate::invariants::Invariant;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct PreservedState {
    /// The time since which each running worker has held a complete state.
    holds: BTreeMap<WorkerId, u64>,
    record: JobRecord,
}

impl Invariant for PreservedState {
    fn name(&self) -> &'static str {
        "a state that a member holds is not abandoned"
    }

    fn see(&mut self, at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Holds { worker, .. } => {
                self.holds.entry(*worker).or_insert(at);
            }
            Fact::Heals { worker, .. } | Fact::WorkerEnded(worker, _) => {
                self.holds.remove(worker);
            }
            Fact::Stored(record) => {
                let before = std::mem::replace(&mut self.record, record.clone());
                let begins_anew = record.generation > before.generation
                    && matches!(record.start, StartFrom::Checkpoint(_));
                // A worker that has just completed its state may not have been able to report it.
                let held = |worker: WorkerId| {
                    let since = self.holds.get(&worker);
                    since.is_some_and(|since| since + SECOND < at)
                };
                let holder = before.members.iter().find(|member| held(member.worker));
                if let Some(member) = holder.filter(|_| begins_anew) {
                    return Err(format!(
                        "generation {} starts from the beginning, but worker {} of generation {} holds the state",
                        record.generation, member.worker, before.generation
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
