//! A state is not given up while a member of the generation that is left holds it, reachable or not.

use std::collections::BTreeMap;

use ronde_elastic::{JobRecord, StartFrom, WorkerId};

use crate::clock::SECOND;
use crate::fact::Fact;
use crate::invariants::Invariant;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Since when each living worker holds a complete state.
    holds: BTreeMap<WorkerId, u64>,
    record: JobRecord,
}

impl Invariant for State {
    fn name(&self) -> &'static str {
        "no state is given up that a member holds"
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
                // Who has only just got its state may not have been able to say so.
                let held = |worker: WorkerId| {
                    let since = self.holds.get(&worker);
                    since.is_some_and(|since| since + SECOND < at)
                };
                let holder = before.members.iter().find(|member| held(member.worker));
                if let Some(member) = holder.filter(|_| begins_anew) {
                    return Err(format!(
                        "generation {} begins anew, but worker {} of generation {} holds the state",
                        record.generation, member.worker, before.generation
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
