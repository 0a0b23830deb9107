//! The most important failures, one by one, with their promised recovery times.

use ronde_sim::clock::{MS, SECOND};
use ronde_sim::cluster::{ClusterSummary, ClusterWorld, Fault, Script};
use ronde_sim::harness::{Simulated, Simulation, simulate};

fn script(workers: usize, faults: Vec<(u64, Fault)>) -> Script {
    let calm = faults.iter().map(|(at, _)| *at).max().unwrap_or_default() + 3 * SECOND;
    Script {
        workers,
        wanted: workers as u32,
        workers_min: 1,
        coordinators: 1,
        shards: 16,
        steps: 30,
        loss: 0,
        delay_max: 2 * MS,
        is_majority: false,
        division: None,
        faults,
        calm,
    }
}

fn run(script: &Script) -> Simulated<ClusterSummary> {
    let simulated = simulate(Simulation::<ClusterWorld> {
        script: Some(script.clone()),
        is_traced: true,
        ..Simulation::of_seed(1)
    });
    if let Some(violation) = &simulated.violation {
        panic!("{violation}");
    }
    simulated
}

/// Returns the time of the first trace line after `from` that contains all of these parts.
fn when(simulated: &Simulated<ClusterSummary>, from: u64, parts: &[&str]) -> u64 {
    let fits = |line: &str| parts.iter().all(|part| line.contains(part));
    let found = simulated
        .trace
        .iter()
        .find(|(at, line)| *at >= from && fits(line));
    found
        .unwrap_or_else(|| {
            let told = simulated
                .trace
                .iter()
                .filter(|(_, line)| line.starts_with("coordinator"));
            let told: Vec<_> = told
                .filter(|(_, line)| !line.contains(" to worker "))
                .collect();
            panic!("no line with {parts:?} after {from}; the coordinators logged {told:#?}")
        })
        .0
}

const KILL: u64 = 1700 * MS;

#[test]
fn without_faults_no_step_is_recomputed() {
    let simulated = run(&script(4, Vec::new()));
    let summary = &simulated.summary;
    assert_eq!(
        (summary.generations, summary.redone, summary.workers),
        (1, 0, 4)
    );
    assert_eq!((summary.commits, summary.finished), (4 * 30, 1));
}

#[test]
fn a_killed_worker_costs_one_step_and_well_under_a_second() {
    let simulated = run(&script(4, vec![(KILL, Fault::Kill(vec![2]))]));
    let noticed = when(&simulated, KILL, &["Abort"]);
    let on = when(&simulated, KILL, &["Compute", "Generation(2)"]);
    assert!(noticed - KILL < 10 * MS, "{} ms", (noticed - KILL) / MS);
    assert!(on - KILL < 100 * MS, "{} ms", (on - KILL) / MS);
    when(
        &simulated,
        KILL,
        &[
            "killed (SIGKILL); recomputing step ",
            "with 3 workers (generation 2)",
        ],
    );
    // Three survivors recompute the one step in flight; the replacement joins and recomputes nothing.
    assert!(simulated.summary.redone <= 3, "{:?}", simulated.summary);
    assert_eq!(
        (simulated.summary.workers, simulated.summary.generations),
        (5, 3)
    );
    when(
        &simulated,
        KILL,
        &["worker joined; now 4 workers (generation 3)"],
    );
    assert_eq!(simulated.summary.healed, 1);
}

#[test]
fn half_of_the_workers_are_lost_at_once() {
    let simulated = run(&script(8, vec![(KILL, Fault::Kill(vec![0, 2, 5, 7]))]));
    when(
        &simulated,
        KILL,
        &["recomputing step ", "with 4 workers (generation 2)"],
    );
    let on = when(&simulated, KILL, &["Compute", "Generation(2)"]);
    assert!(on - KILL < 150 * MS, "{} ms", (on - KILL) / MS);
    assert_eq!(simulated.summary.finished, 1);
}

#[test]
fn a_stopped_worker_is_detected_removed_and_rejoins() {
    let simulated = run(&script(3, vec![(KILL, Fault::Pause(1, 1500 * MS))]));
    let lost = when(&simulated, KILL, &["silent for 0.5 s; recomputing step "]);
    assert!(lost - KILL < 800 * MS, "{} ms", (lost - KILL) / MS);
    when(
        &simulated,
        KILL + 1500 * MS,
        &["worker joined; now 3 workers"],
    );
    // The same process: no replacement was started.
    assert_eq!(simulated.summary.workers, 3);
}

#[test]
fn training_continues_without_a_coordinator_and_the_next_one_takes_over() {
    let simulated = run(&script(
        3,
        vec![(KILL, Fault::KillCoordinator(0, 1500 * MS))],
    ));
    when(&simulated, KILL + 1400 * MS, &["Commit", "Generation(1)"]);
    when(
        &simulated,
        KILL + 1500 * MS,
        &["this coordinator leads in term 2, generation 1"],
    );
    assert_eq!(
        (simulated.summary.generations, simulated.summary.redone),
        (1, 0)
    );
    assert_eq!(simulated.summary.terms, 2);
}

#[test]
fn a_worker_that_dies_without_a_coordinator_is_replaced_by_the_next_coordinator() {
    let faults = vec![
        (KILL, Fault::KillCoordinator(0, 1500 * MS)),
        (KILL + 300 * MS, Fault::Kill(vec![0])),
    ];
    let simulated = run(&script(3, faults));
    when(
        &simulated,
        KILL + 1500 * MS,
        &["worker 0 on host 0 killed (SIGKILL); ", "(generation 2)"],
    );
    assert_eq!(simulated.summary.finished, 1);
}

#[test]
fn the_side_with_the_lease_continues_and_the_other_waits() {
    // One side: workers 0 and 1. Other side: workers 2 and 3, the coordinator (4) and the store (5).
    let cut = Fault::Partition {
        side: 0b11,
        is_two_way: true,
        duration: 1500 * MS,
    };
    let simulated = run(&script(4, vec![(KILL, cut)]));
    when(
        &simulated,
        KILL,
        &["recomputing step ", "with 2 workers (generation 2)"],
    );
    let healed = KILL + 1500 * MS;
    when(&simulated, healed, &["joined; now 4 workers (generation "]);
    let trains = |(at, line): &&(u64, String)| {
        (KILL + 1000 * MS..healed).contains(at) && line.contains("Compute")
    };
    let steps: Vec<_> = simulated.trace.iter().filter(trains).collect();
    assert!(!steps.is_empty() && steps.iter().all(|(_, line)| line.contains("Generation(2)")));
    assert_eq!(simulated.summary.workers, 4);
}

#[test]
fn a_minority_with_the_lease_waits_if_a_majority_is_required() {
    let cut = Fault::Partition {
        side: 0b111,
        is_two_way: true,
        duration: 1200 * MS,
    };
    let mut script = script(4, vec![(KILL, cut)]);
    script.is_majority = true;
    let simulated = run(&script);
    when(
        &simulated,
        KILL,
        &["waiting: 1 of 4 members of generation 1 are reachable"],
    );
    assert_eq!(simulated.summary.workers, 4);
    assert_eq!(simulated.summary.finished, 1);
}

#[test]
fn a_drained_worker_leaves_between_two_steps() {
    let simulated = run(&script(3, vec![(KILL, Fault::Drain(1))]));
    when(
        &simulated,
        KILL,
        &["worker left; now 2 workers (generation 2)"],
    );
    when(&simulated, KILL, &["ends: left the job in good order"]);
    assert_eq!(
        (simulated.summary.redone, simulated.summary.workers),
        (0, 3)
    );
}

#[test]
fn a_job_grows_and_shrinks_between_two_steps() {
    let mut script = script(
        5,
        vec![(KILL, Fault::Scale(2)), (KILL + SECOND, Fault::Scale(5))],
    );
    script.wanted = 4;
    let simulated = run(&script);
    when(
        &simulated,
        KILL,
        &["2 workers left; now 2 workers (generation 2)"],
    );
    when(&simulated, KILL + SECOND, &["now 5 workers"]);
    assert_eq!(simulated.summary.redone, 0);
}

#[test]
fn a_stopped_job_ends_with_a_checkpoint_of_its_last_step() {
    let summary = run(&script(3, vec![(KILL, Fault::Stop)])).summary;
    assert!(summary.steps < 30);
    assert_eq!(summary.recorded, summary.steps);
}

#[test]
fn when_all_workers_leave_the_job_stops_with_a_checkpoint() {
    let faults = (0..3).map(|place| (KILL, Fault::Drain(place))).collect();
    let simulated = run(&script(3, faults));
    assert_eq!(simulated.summary.stopped, 1);
    when(
        &simulated,
        KILL,
        &["stopped by the departure of all workers; checkpoint at step"],
    );
}
