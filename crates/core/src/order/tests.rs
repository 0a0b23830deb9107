//! Orders are permutations, made of whole windows of whole blocks.

use super::*;
use crate::seed::{Purpose, SeedTree};

fn order(samples: u64, shuffle: Shuffle, epoch: u64) -> SampleOrder {
    let stream = SeedTree::new(3).stream(Purpose::Shuffle, &[epoch]);
    SampleOrder::new(samples, shuffle, stream)
}

fn all(order: &SampleOrder, samples: u64) -> Vec<u64> {
    (0..samples)
        .map(|position| order.sample(position))
        .collect()
}

#[test]
fn blocks_are_permutations_of_every_small_size() {
    for samples in 1..60 {
        for block in 1..9 {
            for window in 1..6 {
                let order = order(samples, Shuffle::Blocks { block, window }, 1);
                let mut sorted = all(&order, samples);
                sorted.sort_unstable();
                assert_eq!(
                    sorted,
                    (0..samples).collect::<Vec<_>>(),
                    "{samples} {block} {window}"
                );
            }
        }
    }
}

#[test]
fn a_window_holds_whole_blocks_and_no_other_samples() {
    for (samples, block, window) in [(1, 1, 1), (59, 4, 3), (60, 4, 3), (61, 4, 5), (7, 100, 2)] {
        for epoch in 0..20 {
            let order = order(samples, Shuffle::Blocks { block, window }, epoch);
            let (mut start, mut windows) = (0, 0);
            while start < samples {
                let end = order.window_end(start).unwrap();
                assert!(start < end && end <= samples);
                let mut held: Vec<u64> = (start..end)
                    .inspect(|&position| assert_eq!(order.window_end(position), Some(end)))
                    .map(|position| order.sample(position))
                    .collect();
                held.sort_unstable();
                let mut blocks: Vec<u64> = held.iter().map(|sample| sample / block).collect();
                blocks.dedup();
                assert!(blocks.len() as u64 <= window);
                let whole: u64 = blocks
                    .iter()
                    .map(|number| (samples - number * block).min(block))
                    .sum();
                assert_eq!(held.len() as u64, whole);
                (start, windows) = (end, windows + 1);
            }
            assert_eq!(windows, samples.div_ceil(block).div_ceil(window));
        }
    }
}

#[test]
fn epochs_differ_and_samples_of_a_window_are_mixed() {
    let shuffle = Shuffle::Blocks {
        block: 32,
        window: 8,
    };
    let first = all(&order(5000, shuffle, 0), 5000);
    assert_ne!(first, all(&order(5000, shuffle, 1), 5000));
    assert_eq!(first, all(&order(5000, shuffle, 0), 5000));
    // 255 of 256 neighbours are in the window; 1 in 8 of these pairs shares a block by chance.
    let pairs = first.windows(2).filter(|w| w[0] / 32 == w[1] / 32).count();
    assert!((400..850).contains(&pairs), "{pairs} of 5000; 605 expected");
}

#[test]
fn a_window_of_all_blocks_mixes_like_a_full_shuffle() {
    let shuffle = Shuffle::Blocks {
        block: 10,
        window: u64::MAX,
    };
    let order = order(10_000, shuffle, 2);
    assert_eq!(order.window_end(0), Some(10_000));
    let order = all(&order, 10_000);
    let close = order
        .windows(2)
        .filter(|w| w[0].abs_diff(w[1]) < 100)
        .count();
    assert!((100..320).contains(&close), "{close}; 199 expected");
}
