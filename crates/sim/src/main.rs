//! Replays a seed with its trace, or runs many.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool prints its results"
)]

use std::ops::Range;
use std::process::ExitCode;

use ronde_sim::cluster::ClusterWorld;
use ronde_sim::gossip::GossipWorld;
use ronde_sim::harness::{SimulatedWorld, Simulation, simulate, simulate_seeds};
use ronde_sim::served::ServedWorld;

const USAGE: &str = "\
ronde-sim --seed N           one simulation, with its trace
ronde-sim --seeds FROM..TO   many; stops at the first violated invariant
  --world NAME               cluster (default), served or gossip
  --bug NAME                 inject a known bug into one simulation";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match argument(&arguments, "--world").as_deref() {
        None | Some(ClusterWorld::NAME) => run::<ClusterWorld>(&arguments),
        Some(ServedWorld::NAME) => run::<ServedWorld>(&arguments),
        Some(GossipWorld::NAME) => run::<GossipWorld>(&arguments),
        Some(name) => {
            eprintln!("unknown world {name:?}: expected cluster, served or gossip");
            ExitCode::from(2)
        }
    }
}

/// Returns the value after an argument.
fn argument(arguments: &[String], name: &str) -> Option<String> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.get(at + 1).cloned()
}

fn run<W: SimulatedWorld>(arguments: &[String]) -> ExitCode {
    let name = argument(arguments, "--bug");
    let bug = name.as_ref().map(|name| {
        let found = W::BUGS.iter().find(|(known, _)| known == name);
        found.map(|(_, bug)| *bug)
    });
    if bug == Some(None) {
        let names: Vec<&str> = W::BUGS.iter().map(|(name, _)| *name).collect();
        eprintln!("unknown bug: expected one of {}", names.join(", "));
        return ExitCode::from(2);
    }
    let bug = bug.flatten();
    let seed = argument(arguments, "--seed").and_then(|seed| seed.parse().ok());
    let seeds = argument(arguments, "--seeds").and_then(|seeds| {
        let (from, to) = seeds.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    match (seed, seeds) {
        (Some(seed), None) => one::<W>(seed, bug),
        (None, Some(seeds)) if bug.is_none() => many::<W>(seeds),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn one<W: SimulatedWorld>(seed: u64, bug: Option<W::Bug>) -> ExitCode {
    let simulated = simulate(Simulation::<W> {
        bug,
        is_traced: true,
        ..Simulation::of_seed(seed)
    });
    for (at, line) in &simulated.trace {
        println!("{:9.3} {line}", *at as f64 / 1e9);
    }
    println!("{:?}", simulated.summary);
    match simulated.violation {
        Some(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}

fn many<W: SimulatedWorld>(seeds: Range<u64>) -> ExitCode {
    let number = seeds.end.saturating_sub(seeds.start);
    match simulate_seeds::<W>(seeds) {
        Ok(total) => {
            println!("{number} seeds: {total:?}");
            ExitCode::SUCCESS
        }
        Err(violation) => {
            println!("{violation}");
            ExitCode::FAILURE
        }
    }
}
