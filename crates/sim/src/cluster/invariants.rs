//! The invariants of every simulation, one per file.

use crate::cluster::fact::Fact;
use crate::cluster::faults::Script;
use crate::cluster::model::SimulatedRun;

mod bits;
mod checkpoints;
mod leader;
mod order;
mod outcome;
mod progress;
mod samples;
mod sides;
mod slices;
mod state;
mod survivors;

/// A property that every simulation must have.
pub(super) trait Invariant {
    /// Returns a short description.
    fn name(&self) -> &'static str;

    /// Checks the next fact, observed at `at` nanoseconds.
    ///
    /// # Errors
    /// A description of the violation.
    fn see(&mut self, at: u64, fact: &Fact) -> Result<(), String>;
}

/// Returns all invariants for a new simulation.
#[must_use]
pub(super) fn all(run: SimulatedRun, script: &Script) -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(order::GrowingGenerations::default()),
        Box::new(leader::SingleLeader::default()),
        Box::new(sides::NoSplitBrain::default()),
        Box::new(samples::SampleCounts::new(run)),
        Box::new(outcome::SingleOutcome::new(run)),
        Box::new(bits::EqualBits::new(run)),
        Box::new(survivors::NoRestart::default()),
        Box::new(state::PreservedState::default()),
        Box::new(slices::KeptSlices::default()),
        Box::new(checkpoints::CompleteCheckpoints::default()),
        Box::new(progress::EventualProgress::new(script)),
    ]
}
