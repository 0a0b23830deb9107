//! Only complete checkpoints are reported, and the newest reported checkpoint is never replaced by an older one.

use std::collections::BTreeSet;

use ronde_core::Step;

use crate::cluster::fact::Fact;
use crate::cluster::invariants::Invariant;

/// See the file's first line.
#[derive(Debug, Default)]
pub(super) struct CompleteCheckpoints {
    written: BTreeSet<Step>,
    counts: Option<Step>,
}

impl Invariant for CompleteCheckpoints {
    fn name(&self) -> &'static str {
        "only complete checkpoints are reported"
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
                        "the checkpoint at step {checkpoint} is reported but not complete"
                    ));
                }
                if record.checkpoint < self.counts {
                    return Err(format!(
                        "{:?} is reported after {:?}",
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
