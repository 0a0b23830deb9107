//! Failures of jobs whose state is divided among the workers, one by one.

use ronde_sim::clock::{MS, SECOND};
use ronde_sim::cluster::{ClusterSummary, ClusterWorld, Fault, Script, SimulatedDivision};
use ronde_sim::harness::{Simulated, Simulation, simulate};

const KILL: u64 = 1700 * MS;

/// Returns a job of four workers with one slice each.
fn script(copies: u32, faults: Vec<(u64, Fault)>) -> Script {
    let calm = faults.iter().map(|(at, _)| *at).max().unwrap_or_default() + 3 * SECOND;
    Script {
        workers: 4,
        wanted: 4,
        workers_min: 1,
        coordinators: 1,
        shards: 16,
        steps: 30,
        loss: 0,
        delay_max: 2 * MS,
        is_majority: false,
        division: Some(SimulatedDivision {
            copies,
            slices_max: 4,
            servers: 0,
        }),
        faults,
        calm,
    }
}

fn run(script: &Script) -> Simulated<ClusterSummary> {
    let simulated = simulate(Simulation::<ClusterWorld> {
        script: Some(script.clone()),
        ..Simulation::of_seed(1)
    });
    if let Some(violation) = &simulated.violation {
        panic!("{violation}");
    }
    simulated
}

#[test]
fn without_faults_nothing_moves() {
    for copies in [1, 2] {
        let summary = run(&script(copies, Vec::new())).summary;
        assert_eq!((summary.commits, summary.redone), (4 * 30, 0));
        assert_eq!((summary.moved, summary.loaded, summary.lost), (0, 0, 0));
        assert_eq!(summary.finished, 1);
    }
}

#[test]
fn with_two_copies_the_loss_of_a_worker_costs_no_checkpoint() {
    for lost in 0..4 {
        let summary = run(&script(2, vec![(KILL, Fault::Kill(vec![lost]))])).summary;
        assert!(summary.moved > 0, "{summary:?}");
        assert_eq!((summary.loaded, summary.lost, summary.workers), (0, 0, 5));
    }
}

/// Returns what happens when a worker of four is killed, and another one some time later.
fn two_losses(lost: usize, after: u64) -> Simulated<ClusterSummary> {
    let second = Fault::Kill(vec![(lost + 2) % 4]);
    let first = (KILL, Fault::Kill(vec![lost]));
    run(&script(2, vec![first, (KILL + after * MS, second)]))
}

#[test]
fn missing_copies_follow_unless_a_new_worker_joins_first() {
    let kill = |lost, at| run(&script(2, vec![(at, Fault::Kill(vec![lost]))])).summary;
    let times = (0..20).map(|number| KILL + 20 * number * MS);
    let each = times.flat_map(|at| (0..4).map(move |lost| kill(lost, at)));
    let (restored, not): (Vec<_>, Vec<_>) = each.partition(|summary| summary.restored > 0);
    assert!(!restored.is_empty(), "{not:?}");
    for summary in restored.iter().chain(&not) {
        assert_eq!((summary.loaded, summary.lost), (0, 0), "{summary:?}");
    }
}

#[test]
fn a_second_loss_while_copies_are_missing_costs_at_most_a_checkpoint() {
    let (mut continued, mut loaded, mut restored) = (0, 0, 0);
    for lost in 0..4 {
        for after in (50..1500).step_by(50) {
            let summary = two_losses(lost, after).summary;
            assert_eq!(summary.lost, 0, "{lost}, {after} ms: {summary:?}");
            assert_eq!(summary.finished, 1);
            restored += summary.restored;
            match summary.loaded {
                0 => continued += 1,
                _ => loaded += 1,
            }
        }
    }
    assert!(continued > 0 && loaded > 0, "{continued}, {loaded}");
    assert!(restored > 0);
}

#[test]
fn members_without_all_slices_load_the_newest_checkpoint_together() {
    // Each slice is on the owner and on the next rank.
    for (copies, lost) in [(1, vec![2]), (2, vec![1, 2])] {
        let summary = run(&script(copies, vec![(KILL, Fault::Kill(lost))])).summary;
        assert!(summary.loaded > 1, "{summary:?}");
        assert_eq!(summary.lost, 0);
        assert_eq!(summary.finished, 1);
    }
}

#[test]
fn without_a_checkpoint_the_loss_is_reported_and_the_job_begins_again() {
    let summary = run(&script(1, vec![(700 * MS, Fault::Kill(vec![2]))])).summary;
    assert!(summary.lost > 0 && summary.loaded == 0, "{summary:?}");
    assert_eq!(summary.finished, 1);
}

#[test]
fn a_stopped_worker_that_returns_copies_the_state_of_the_others() {
    let mut script = script(1, vec![(KILL, Fault::Pause(1, 2 * SECOND))]);
    script.calm += 2 * SECOND;
    let summary = run(&script).summary;
    // The remaining workers load their slices once, and not again when the first one returns with its old slice.
    assert_eq!((summary.loaded, summary.workers), (3, 4), "{summary:?}");
    assert_eq!(summary.finished, 1);
}

#[test]
fn all_members_of_a_stopped_job_save_their_slices_together() {
    let summary = run(&script(1, vec![(KILL, Fault::Stop)])).summary;
    assert!(summary.steps < 30);
    assert_eq!(summary.written, summary.steps);
}

#[test]
fn members_that_leave_save_their_slices_first() {
    for copies in [1, 2] {
        for fault in [Fault::Drain(1), Fault::Scale(2)] {
            let summary = run(&script(copies, vec![(KILL, fault)])).summary;
            assert_eq!((summary.redone, summary.lost), (0, 0), "{summary:?}");
            assert_eq!(summary.finished, 1);
        }
    }
}
