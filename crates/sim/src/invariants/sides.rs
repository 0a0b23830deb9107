//! Two sides never train apart.
//!
//! Once a later generation has committed its first step, an older one may at most commit a step that
//! was in flight: all its members had voted for it, and the later one begins no later than with it.

use std::collections::BTreeMap;

use ronde_core::{Generation, Step};

use crate::fact::Fact;
use crate::invariants::Invariant;

/// See the file's first lines.
#[derive(Debug, Default)]
pub(super) struct Sides {
    first: BTreeMap<Generation, Step>,
}

impl Invariant for Sides {
    fn name(&self) -> &'static str {
        "two sides never train apart"
    }

    fn see(&mut self, _at: u64, fact: &Fact) -> Result<(), String> {
        let Fact::Committed {
            worker,
            generation,
            step,
            ..
        } = fact
        else {
            return Ok(());
        };
        if let Some((later, first)) = self
            .first
            .range(generation.next()..)
            .find(|(_, first)| step > *first)
        {
            return Err(format!(
                "worker {worker} committed step {step} in generation {generation} \
                 after generation {later} had begun with step {first}"
            ));
        }
        self.first.entry(*generation).or_insert(*step);
        Ok(())
    }
}
