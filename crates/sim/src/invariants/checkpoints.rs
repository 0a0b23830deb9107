//! A checkpoint counts only once it is complete, and the newest one that counts never gets older.

use std::collections::BTreeSet;

use ronde_core::Step;

use crate::fact::Fact;
use crate::invariants::Invariant;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    written: BTreeSet<Step>,
    counts: Option<Step>,
}

impl Invariant for Checkpoints {
    fn name(&self) -> &'static str {
        "a checkpoint counts once it is complete"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Written { next, .. } => {
                self.written.insert(*next);
            }
            Fact::Stored(record) => {
                if let Some(checkpoint) = record.checkpoint
                    && !self.written.contains(&checkpoint)
                {
                    return Err(format!(
                        "the checkpoint at step {checkpoint} counts and is not complete"
                    ));
                }
                if record.checkpoint < self.counts {
                    return Err(format!(
                        "{:?} counts after {:?}",
                        record.checkpoint, self.counts
                    ));
                }
                self.counts = record.checkpoint;
            }
            _ => {}
        }
        Ok(())
    }
}
