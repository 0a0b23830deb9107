//! Rounds of parameter servers: each update counts once, whatever dies, and known bugs are found.

use std::sync::atomic::{AtomicU64, Ordering};

use ronde_sim::served::{ServedBug, ServedSummary, simulate_round};

const SEEDS: u64 = 20_000;

#[test]
fn every_update_counts_once() {
    let next = AtomicU64::new(0);
    let work = || {
        let mut total = ServedSummary::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return total;
            }
            let one = simulate_round(seed, None).unwrap_or_else(|problem| panic!("{problem}"));
            total.attempts += one.attempts;
            total.deaths += one.deaths;
            total.repeated += one.repeated;
            total.refused += one.refused;
            total.restarts += one.restarts;
            total.staleness = total.staleness.max(one.staleness);
        }
    };
    let total = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        let totals = threads.into_iter().map(|thread| thread.join().unwrap());
        totals
            .reduce(|one, other| ServedSummary {
                attempts: one.attempts + other.attempts,
                deaths: one.deaths + other.deaths,
                repeated: one.repeated + other.repeated,
                refused: one.refused + other.refused,
                restarts: one.restarts + other.restarts,
                staleness: one.staleness.max(other.staleness),
            })
            .unwrap()
    });
    // The seeds must contain enough of everything.
    assert!(total.deaths > SEEDS / 2, "{total:?}");
    assert!(total.attempts > SEEDS + SEEDS / 4, "{total:?}");
    assert!(total.repeated > SEEDS && total.refused > SEEDS, "{total:?}");
    assert!(
        total.restarts > SEEDS / 100 && total.staleness > 10,
        "{total:?}"
    );
}

#[test]
fn every_bug_is_detected() {
    for bug in ServedBug::ALL {
        let found = (0..2_000).find_map(|seed| simulate_round(seed, Some(bug)).err());
        assert!(found.is_some(), "not detected: {bug:?}");
    }
}

#[test]
fn a_seed_is_the_same_every_time() {
    for seed in 0..20 {
        assert_eq!(simulate_round(seed, None), simulate_round(seed, None));
    }
}
