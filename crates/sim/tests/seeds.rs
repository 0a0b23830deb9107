//! Thousands of seeds of each world: no invariant is violated, and the seeds contain enough events.

use ronde_sim::cluster::ClusterWorld;
use ronde_sim::gossip::GossipWorld;
use ronde_sim::harness::{SimulatedWorld, Simulation, simulate, simulate_seeds};
use ronde_sim::served::ServedWorld;

/// The number of seeds of a cluster; `cargo xtask soak` simulates more.
const CLUSTERS: u64 = 5_000;
/// The number of seeds of rounds.
const ROUNDS: u64 = 20_000;

fn total<W: SimulatedWorld>(seeds: u64) -> W::Summary {
    simulate_seeds::<W>(0..seeds).unwrap_or_else(|violation| panic!("{violation}"))
}

#[test]
fn clusters_violate_no_invariant() {
    let sum = total::<ClusterWorld>(CLUSTERS);
    // The scripts must contain enough faults.
    assert!(sum.commits > 40 * CLUSTERS, "{sum:?}");
    assert!(sum.generations > 2 * CLUSTERS, "{sum:?}");
    assert!(
        sum.redone > CLUSTERS && sum.healed > CLUSTERS / 2,
        "{sum:?}"
    );
    assert!(
        sum.moved > CLUSTERS / 2 && sum.loaded > CLUSTERS / 10,
        "{sum:?}"
    );
    assert!(sum.lost > CLUSTERS / 10, "{sum:?}");
    assert!(sum.terms > 5 * CLUSTERS / 4, "{sum:?}");
    assert!(
        sum.stopped > CLUSTERS / 100 && sum.finished > CLUSTERS / 2,
        "{sum:?}"
    );
}

#[test]
fn served_rounds_count_every_update_once() {
    let sum = total::<ServedWorld>(ROUNDS);
    assert!(sum.deaths > ROUNDS / 2, "{sum:?}");
    assert!(sum.attempts > ROUNDS + ROUNDS / 4, "{sum:?}");
    assert!(sum.repeated > ROUNDS && sum.refused > ROUNDS, "{sum:?}");
    assert!(sum.restarts > ROUNDS / 100 && sum.staleness > 10, "{sum:?}");
}

#[test]
fn gossip_rounds_count_every_update_once() {
    let sum = total::<GossipWorld>(ROUNDS);
    assert!(sum.deaths > ROUNDS / 4, "{sum:?}");
    assert!(sum.attempts > ROUNDS + ROUNDS / 2, "{sum:?}");
    assert!(sum.again > ROUNDS && sum.dropped > ROUNDS / 100, "{sum:?}");
    assert!(
        sum.exchanges > 5 * ROUNDS && sum.missed > ROUNDS / 10,
        "{sum:?}"
    );
    assert!(sum.helped > ROUNDS, "{sum:?}");
}

fn check_repeatable<W: SimulatedWorld>(seeds: impl IntoIterator<Item = u64>) {
    for seed in seeds {
        let run = || {
            simulate(Simulation::<W> {
                is_traced: true,
                ..Simulation::of_seed(seed)
            })
        };
        let (one, other) = (run(), run());
        assert_eq!(one.trace, other.trace);
        assert_eq!(one.summary, other.summary);
        assert!(!one.trace.is_empty());
    }
}

#[test]
fn a_seed_is_the_same_every_time() {
    check_repeatable::<ClusterWorld>([3, 9, 251]);
    check_repeatable::<ServedWorld>(0..20);
    check_repeatable::<GossipWorld>(0..20);
}
