//! [`simulate`]: simulates one seed from the first event to the end, or to the first violated invariant.

use std::collections::BTreeSet;

use ronde_core::Generation;
use ronde_protocol::{JobEnding, WorkerId};

use crate::fact::Fact;
use crate::faults::Script;
use crate::injected_bug::InjectedBug;
use crate::invariants;
use crate::world::World;

/// A violation of an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The seed of the simulation.
    pub seed: u64,
    /// The time, in nanoseconds of the simulation.
    pub at: u64,
    /// The name of the invariant.
    pub invariant: &'static str,
    /// The details.
    pub message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "seed {}: \"{}\" is violated at {:.3} s: {}\n  replay: cargo run --release -p ronde-sim -- --seed {}",
            self.seed,
            self.invariant,
            self.at as f64 / 1e9,
            self.message,
            self.seed
        )
    }
}

/// The numbers of events of a simulation, to verify that seeds have enough of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of commits of all workers.
    pub commits: u64,
    /// The number of generations that a worker entered.
    pub generations: u64,
    /// The number of worker processes.
    pub workers: u64,
    /// The number of steps that were begun in more than one generation.
    pub redone: u64,
    /// The number of workers that copied the state from other members.
    pub healed: u64,
    /// The number of messages with slices that a worker received in a new generation.
    pub moved: u64,
    /// The number of times that a worker began to restore second copies after a step.
    pub restored: u64,
    /// The number of times that a worker loaded its slices of a checkpoint.
    pub loaded: u64,
    /// The number of workers that reported the loss of a slice.
    pub lost: u64,
    /// The number of terms.
    pub terms: u64,
    /// The end of the job.
    pub ending: Option<JobEnding>,
}

/// The result of a simulation.
#[derive(Debug)]
pub struct Simulated {
    /// The numbers of events.
    pub summary: Summary,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
    /// The trace, if requested: lines with their times in nanoseconds.
    pub trace: Vec<(u64, String)>,
}

/// Simulates a seed. A `script` replaces the seed's own script.
#[must_use]
pub fn simulate(
    seed: u64,
    script: Option<Script>,
    bug: Option<InjectedBug>,
    is_traced: bool,
) -> Simulated {
    let mut world = World::new(seed, script, bug, is_traced);
    let mut invariants = invariants::all(world.run(), world.script());
    let mut summary = Summary::default();
    let mut seen = SummaryCounter::default();
    while let Some((at, fact)) = world.fact() {
        seen.count(&fact, &mut summary);
        for invariant in &mut invariants {
            if let Err(message) = invariant.see(at, &fact) {
                let invariant = invariant.name();
                let violation = Some(Violation {
                    seed,
                    at,
                    invariant,
                    message,
                });
                return Simulated {
                    summary,
                    violation,
                    trace: world.trace().to_vec(),
                };
            }
        }
    }
    Simulated {
        summary,
        violation: None,
        trace: world.trace().to_vec(),
    }
}

#[derive(Default)]
struct SummaryCounter {
    generations: BTreeSet<Generation>,
    computed: BTreeSet<(WorkerId, u64, Generation)>,
}

impl SummaryCounter {
    fn count(&mut self, fact: &Fact, summary: &mut Summary) {
        match fact {
            Fact::Committed { .. } => summary.commits += 1,
            Fact::WorkerBegan(_) => summary.workers += 1,
            Fact::Entered { generation, .. } => {
                self.generations.insert(*generation);
                summary.generations = self.generations.len() as u64;
            }
            Fact::Computes {
                worker,
                generation,
                step,
            } => {
                let first = (*worker, step.0, Generation::FIRST);
                let before = self
                    .computed
                    .range(first..(*worker, step.0, *generation))
                    .next();
                summary.redone += u64::from(before.is_some());
                self.computed.insert((*worker, step.0, *generation));
            }
            Fact::Heals { .. } => summary.healed += 1,
            Fact::Moved(_) => summary.moved += 1,
            Fact::Restores(_) => summary.restored += 1,
            Fact::Loaded(_) => summary.loaded += 1,
            Fact::SliceLost { .. } => summary.lost += 1,
            Fact::Leads(_, term) => summary.terms = summary.terms.max(term.0),
            Fact::Over(ending) => summary.ending = Some(*ending),
            _ => {}
        }
    }
}
