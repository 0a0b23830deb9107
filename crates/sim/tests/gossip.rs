//! Rounds in which replicas average in pairs: each update counts once, whatever dies, and known bugs are found.

use std::sync::atomic::{AtomicU64, Ordering};

use ronde_sim::gossip::{GossipBug, SimulatedRound, simulate_gossip};

const SEEDS: u64 = 20_000;

fn sum(one: &SimulatedRound, other: &SimulatedRound) -> SimulatedRound {
    SimulatedRound {
        attempts: one.attempts + other.attempts,
        deaths: one.deaths + other.deaths,
        again: one.again + other.again,
        dropped: one.dropped + other.dropped,
        exchanges: one.exchanges + other.exchanges,
        missed: one.missed + other.missed,
        helped: one.helped + other.helped,
    }
}

#[test]
fn every_update_counts_once() {
    let next = AtomicU64::new(0);
    let work = || {
        let mut total = SimulatedRound::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return total;
            }
            let one = simulate_gossip(seed, None).unwrap_or_else(|problem| panic!("{problem}"));
            total = sum(&total, &one);
        }
    };
    let total = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        let totals = threads.into_iter().map(|thread| thread.join().unwrap());
        totals.reduce(|one, other| sum(&one, &other)).unwrap()
    });
    // The seeds must contain enough of everything.
    assert!(total.deaths > SEEDS / 4, "{total:?}");
    assert!(total.attempts > SEEDS + SEEDS / 2, "{total:?}");
    assert!(
        total.again > SEEDS && total.dropped > SEEDS / 100,
        "{total:?}"
    );
    assert!(
        total.exchanges > 5 * SEEDS && total.missed > SEEDS / 10,
        "{total:?}"
    );
    assert!(total.helped > SEEDS, "{total:?}");
}

#[test]
fn every_bug_is_detected() {
    for bug in GossipBug::ALL {
        let found = (0..4_000).find_map(|seed| simulate_gossip(seed, Some(bug)).err());
        assert!(found.is_some(), "not detected: {bug:?}");
    }
}

#[test]
fn a_seed_is_the_same_every_time() {
    for seed in 0..20 {
        assert_eq!(simulate_gossip(seed, None), simulate_gossip(seed, None));
    }
}
