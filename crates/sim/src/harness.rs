//! [`simulate`]: simulates one seed of a [`SimulatedWorld`] from the first event to the end, or to the first violated invariant.

use std::fmt::{self, Debug, Display};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::rng::Rng;
use crate::timeline::Timeline;

/// A world of simulated processes: hosts, links and faults around real state machines.
pub trait SimulatedWorld: Sized {
    /// Its name on the command line.
    const NAME: &'static str;
    /// The bugs that can be injected, with their names on the command line.
    const BUGS: &'static [(&'static str, Self::Bug)];
    /// A known bug, to prove that the invariants find it.
    type Bug: Copy + PartialEq + Debug + Sync + 'static;
    /// The size and the faults of a simulation.
    type Script;
    /// An event.
    type Event;
    /// The numbers of events, to verify that seeds have enough of them.
    type Summary: SeedSummary;

    /// Draws the script of a seed.
    fn draw_script(rng: &mut Rng) -> Self::Script;

    /// Creates a world with its first events.
    fn new(start: WorldStart<Self>) -> Self;

    /// Returns the clock and the future events.
    fn timeline(&mut self) -> &mut Timeline<Self::Event>;

    /// Executes an event.
    fn execute(&mut self, event: Self::Event);

    /// Checks the invariants after an event. Returns whether the simulation is complete.
    ///
    /// # Errors
    /// An invariant is violated.
    fn check(&mut self) -> Result<bool, BrokenInvariant>;

    /// Checks the invariants when no time is left, or no event.
    ///
    /// # Errors
    /// An invariant is violated: usually that every simulation ends.
    fn check_timeout(&mut self) -> Result<(), BrokenInvariant>;

    /// Returns the numbers of events so far.
    fn summary(&self) -> Self::Summary;
}

/// The values with which a world begins.
pub struct WorldStart<W: SimulatedWorld> {
    /// The seed.
    pub seed: u64,
    /// The random generator, from which the script was drawn.
    pub rng: Rng,
    /// The size and the faults.
    pub script: W::Script,
    /// The injected bug.
    pub bug: Option<W::Bug>,
    /// Whether a trace is recorded.
    pub is_traced: bool,
}

/// Numbers of events that can be added up.
pub trait SeedSummary: Default + Debug + Clone + PartialEq + Send {
    /// Adds the numbers of another simulation; of a maximum, the larger one counts.
    fn add(&mut self, other: &Self);
}

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokenInvariant {
    /// The name of the invariant.
    pub invariant: &'static str,
    /// The details.
    pub message: String,
}

/// The name of an invariant.
#[derive(Debug, Clone, Copy)]
pub struct InvariantName(pub &'static str);

impl InvariantName {
    /// Returns the violation of this invariant.
    #[must_use]
    pub fn broken(self, message: String) -> BrokenInvariant {
        BrokenInvariant {
            invariant: self.0,
            message,
        }
    }
}

/// A violation of an invariant in the simulation of a seed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The name of the world.
    pub world: &'static str,
    /// The seed of the simulation.
    pub seed: u64,
    /// The time, in nanoseconds of the simulation.
    pub at: u64,
    /// The invariant.
    pub broken: BrokenInvariant,
}

impl Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed {}: \"{}\" is violated at {:.3} s: {}\n  replay: cargo run --release -p ronde-sim -- --world {} --seed {}",
            self.seed,
            self.broken.invariant,
            self.at as f64 / 1e9,
            self.broken.message,
            self.world,
            self.seed
        )
    }
}

/// The settings of a simulation.
pub struct Simulation<W: SimulatedWorld> {
    /// The seed.
    pub seed: u64,
    /// A script instead of the one that is drawn from the seed.
    pub script: Option<W::Script>,
    /// The injected bug.
    pub bug: Option<W::Bug>,
    /// Whether a trace is recorded.
    pub is_traced: bool,
}

impl<W: SimulatedWorld> Simulation<W> {
    /// Returns the simulation of a seed with its own script, without a bug or a trace.
    #[must_use]
    pub fn of_seed(seed: u64) -> Self {
        Self {
            seed,
            script: None,
            bug: None,
            is_traced: false,
        }
    }
}

/// The result of a simulation.
#[derive(Debug)]
pub struct Simulated<S> {
    /// The numbers of events.
    pub summary: S,
    /// The violated invariant, if any.
    pub violation: Option<Violation>,
    /// The trace, if requested: lines with their times in nanoseconds.
    pub trace: Vec<(u64, String)>,
}

/// Runs a simulation. The same settings give the same result.
#[must_use]
pub fn simulate<W: SimulatedWorld>(simulation: Simulation<W>) -> Simulated<W::Summary> {
    let Simulation {
        seed,
        script,
        bug,
        is_traced,
    } = simulation;
    let mut rng = Rng::new(seed);
    let script = script.unwrap_or_else(|| W::draw_script(&mut rng));
    let mut world = W::new(WorldStart {
        seed,
        rng,
        script,
        bug,
        is_traced,
    });
    let ended = run(&mut world);
    let violation = ended.err().map(|broken| Violation {
        world: W::NAME,
        seed,
        at: world.timeline().now(),
        broken,
    });
    Simulated {
        summary: world.summary(),
        violation,
        trace: world.timeline().take_trace(),
    }
}

fn run<W: SimulatedWorld>(world: &mut W) -> Result<(), BrokenInvariant> {
    while let Some(event) = world.timeline().next_event() {
        world.execute(event);
        if world.check()? {
            return Ok(());
        }
    }
    world.check_timeout()
}

/// Simulates many seeds with two threads. Returns the sum of their numbers.
///
/// # Errors
/// An invariant is violated; no further seed is simulated.
pub fn simulate_seeds<W: SimulatedWorld>(seeds: Range<u64>) -> Result<W::Summary, Box<Violation>> {
    let next = AtomicU64::new(seeds.start);
    let result = Mutex::new(Ok(W::Summary::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let simulated = simulate(Simulation::<W>::of_seed(seed));
            let mut result = result
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            match (&mut *result, simulated.violation) {
                (_, Some(violation)) => {
                    next.store(seeds.end, Ordering::Relaxed);
                    *result = Err(Box::new(violation));
                }
                (Ok(total), None) => total.add(&simulated.summary),
                (Err(_), None) => return,
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(work);
        }
    });
    result
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Returns the first violation that a bug causes, if one of the seeds shows it.
#[must_use]
pub fn first_violation<W: SimulatedWorld>(bug: W::Bug, seeds: Range<u64>) -> Option<Violation> {
    seeds.into_iter().find_map(|seed| {
        simulate(Simulation::<W> {
            bug: Some(bug),
            ..Simulation::of_seed(seed)
        })
        .violation
    })
}

/// Returns the names of the bugs of a world that no seed shows.
#[must_use]
pub fn missed_bugs<W: SimulatedWorld>(seeds: Range<u64>) -> Vec<&'static str> {
    let bugs = W::BUGS.iter();
    let missed = bugs.filter(|(_, bug)| first_violation::<W>(*bug, seeds.clone()).is_none());
    missed.map(|(name, _)| *name).collect()
}
