//! [`simulate`]: one seed, from the first event to the end or to the first broken invariant.

use std::collections::BTreeSet;

use ronde_core::Generation;
use ronde_elastic::{JobEnding, WorkerId};

use crate::fact::Fact;
use crate::faults::Script;
use crate::invariants;
use crate::sabotage::Sabotage;
use crate::world::World;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Of the simulation.
    pub seed: u64,
    /// When, in nanoseconds of the simulation.
    pub at: u64,
    /// Which.
    pub invariant: &'static str,
    /// How.
    pub message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "seed {}: \"{}\" is broken at {:.3} s: {}\n  replay: cargo run --release -p ronde-sim -- --seed {}",
            self.seed,
            self.invariant,
            self.at as f64 / 1e9,
            self.message,
            self.seed
        )
    }
}

/// What happened in a simulation, to see that much did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Summary {
    /// Commits, over all workers.
    pub commits: u64,
    /// Generations that a worker entered.
    pub generations: u64,
    /// Worker processes.
    pub workers: u64,
    /// Steps that were begun in more than one generation.
    pub redone: u64,
    /// Workers that took the state over from others.
    pub healed: u64,
    /// Terms.
    pub terms: u64,
    /// How it ended.
    pub ending: Option<JobEnding>,
}

/// A simulation, as far as it went.
#[derive(Debug)]
pub struct Simulated {
    /// What happened.
    pub summary: Summary,
    /// What must not have happened.
    pub violation: Option<Violation>,
    /// Lines with their times in nanoseconds, where a trace was asked for.
    pub trace: Vec<(u64, String)>,
}

/// Simulates a seed. A `script` takes the place of the seed's own.
#[must_use]
pub fn simulate(
    seed: u64,
    script: Option<Script>,
    sabotage: Option<Sabotage>,
    is_traced: bool,
) -> Simulated {
    let mut world = World::new(seed, script, sabotage, is_traced);
    let mut invariants = invariants::all(world.run(), world.script());
    let mut summary = Summary::default();
    let mut seen = Seen::default();
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
struct Seen {
    generations: BTreeSet<Generation>,
    computed: BTreeSet<(WorkerId, u64, Generation)>,
}

impl Seen {
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
                let first = (*worker, step.0, Generation(0));
                let before = self
                    .computed
                    .range(first..(*worker, step.0, *generation))
                    .next();
                summary.redone += u64::from(before.is_some());
                self.computed.insert((*worker, step.0, *generation));
            }
            Fact::Heals { .. } => summary.healed += 1,
            Fact::Leads(_, term) => summary.terms = summary.terms.max(term.0),
            Fact::Over(ending) => summary.ending = Some(*ending),
            _ => {}
        }
    }
}
