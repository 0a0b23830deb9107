//! What must hold in every simulation, one invariant a file.

use crate::fact::Fact;
use crate::faults::Script;
use crate::model::Run;

mod bits;
mod checkpoints;
mod leader;
mod order;
mod outcome;
mod progress;
mod samples;
mod sides;
mod state;
mod survivors;

/// Something that must hold.
pub trait Invariant {
    /// In a few words.
    fn name(&self) -> &'static str;

    /// Looks at the next fact, seen at `at` nanoseconds.
    ///
    /// # Errors
    /// How it is broken, in one sentence.
    fn see(&mut self, at: u64, fact: &Fact) -> Result<(), String>;
}

/// All invariants, fresh.
#[must_use]
pub fn all(run: Run, script: &Script) -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(order::Order::default()),
        Box::new(leader::Leader::default()),
        Box::new(sides::Sides::default()),
        Box::new(samples::Samples::new(run)),
        Box::new(outcome::Outcome::new(run)),
        Box::new(bits::Bits::new(run)),
        Box::new(survivors::Survivors::default()),
        Box::new(state::State::default()),
        Box::new(checkpoints::Checkpoints::default()),
        Box::new(progress::Progress::new(script)),
    ]
}
