//! Thousands of seeds: no invariant is violated, and the seeds contain enough events.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ronde_protocol::JobEnding;
use ronde_sim::{Summary, simulate};

/// `cargo xtask soak` simulates more.
const SEEDS: u64 = 5_000;

#[test]
fn no_invariant_is_violated() {
    let (next, total) = (
        AtomicU64::new(0),
        Mutex::new((Summary::default(), [0_u64; 2])),
    );
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return;
            }
            let simulated = simulate(seed, None, None, false);
            if let Some(violation) = simulated.violation {
                next.store(SEEDS, Ordering::Relaxed);
                panic!("{violation}");
            }
            let one = simulated.summary;
            let mut total = total
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            total.0.commits += one.commits;
            total.0.generations += one.generations;
            total.0.redone += one.redone;
            total.0.healed += one.healed;
            total.0.moved += one.moved;
            total.0.loaded += one.loaded;
            total.0.lost += one.lost;
            total.0.terms += one.terms;
            total.1[usize::from(one.ending == Some(JobEnding::Finished))] += 1;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    // The scripts must contain enough faults.
    let (summary, [stopped, finished]) = total.into_inner().unwrap_or_default();
    assert!(summary.commits > 40 * SEEDS, "{summary:?}");
    assert!(summary.generations > 2 * SEEDS, "{summary:?}");
    assert!(
        summary.redone > SEEDS && summary.healed > SEEDS / 2,
        "{summary:?}"
    );
    assert!(
        summary.moved > SEEDS / 2 && summary.loaded > SEEDS / 10 && summary.lost > SEEDS / 10,
        "{summary:?}"
    );
    assert!(summary.terms > 5 * SEEDS / 4, "{summary:?}");
    assert!(
        stopped > SEEDS / 100 && finished > SEEDS / 2,
        "{stopped} stopped, {finished} finished"
    );
}

#[test]
fn a_seed_is_the_same_every_time() {
    for seed in [3, 9, 251] {
        let (one, other) = (
            simulate(seed, None, None, true),
            simulate(seed, None, None, true),
        );
        assert_eq!(one.trace, other.trace);
        assert!(one.trace.len() > 100);
    }
}
