//! Replays a seed with its trace, or runs many: `ronde-sim --seed N [--bug NAME] | --seeds FROM..TO`.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool prints its results"
)]

use std::process::ExitCode;

use ronde_sim::{InjectedBug, Summary, simulate};

const USAGE: &str = "\
ronde-sim --seed N           one simulation, with its trace
ronde-sim --seeds FROM..TO   many; stops at the first broken invariant
  --bug NAME                 inject a known bug";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let name = value("--bug");
    let bug = name.as_deref().and_then(InjectedBug::named);
    if name.is_some() && bug.is_none() {
        let names: Vec<&str> = InjectedBug::ALL.iter().map(|(name, _)| *name).collect();
        eprintln!("unknown bug: expected one of {}", names.join(", "));
        return ExitCode::from(2);
    }
    if let Some(seed) = value("--seed").and_then(|seed| seed.parse().ok()) {
        return one(seed, bug);
    }
    let range = value("--seeds").and_then(|range| {
        let (from, to) = range.split_once("..")?;
        Some(from.parse().ok()?..to.parse().ok()?)
    });
    let Some(range) = range else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    many(range, bug)
}

fn one(seed: u64, bug: Option<InjectedBug>) -> ExitCode {
    let simulated = simulate(seed, None, bug, true);
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

fn many(range: std::ops::Range<u64>, bug: Option<InjectedBug>) -> ExitCode {
    let mut total = Summary::default();
    let mut count = 0;
    for seed in range {
        let simulated = simulate(seed, None, bug, false);
        if let Some(violation) = simulated.violation {
            println!("{violation}");
            return ExitCode::FAILURE;
        }
        count += 1;
        let summary = simulated.summary;
        total.commits += summary.commits;
        total.generations += summary.generations;
        total.workers += summary.workers;
        total.redone += summary.redone;
        total.healed += summary.healed;
        total.moved += summary.moved;
        total.restored += summary.restored;
        total.loaded += summary.loaded;
        total.lost += summary.lost;
        total.terms += summary.terms;
    }
    println!("{count} seeds: {total:?}");
    ExitCode::SUCCESS
}
