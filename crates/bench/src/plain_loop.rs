//! The lower bound of the time of a sum over shared memory: a loop that reads, adds and writes the
//! same bytes without waiting for another rank.

use ronde_core::ReduceOp;

use crate::values::ElementSource;

/// The number of elements that fit into the first-level cache.
const BLOCK: usize = 2048;

/// Each rank's share of `bytes` of f32 of all `ranks`, `buffers` times.
pub(crate) struct PlainLoop {
    /// For each buffer and every rank, its slice of this rank's share.
    sets: Vec<Vec<Vec<f32>>>,
}

impl PlainLoop {
    pub(crate) fn new(seed: u64, ranks: usize, bytes: usize, buffers: usize) -> Self {
        let source = ElementSource::new(seed, ReduceOp::Sum);
        let share = (bytes / size_of::<f32>()).div_ceil(ranks).max(1);
        let slice = |rank: usize| {
            let mut slice = vec![0.0; share];
            source.fill(rank, 0, &mut slice);
            slice
        };
        let set: Vec<Vec<f32>> = (0..ranks).map(slice).collect();
        Self {
            sets: vec![set; buffers],
        }
    }

    /// Returns the seconds of each of `iterations` sums: all slices are added into the first, which
    /// is then copied to all others, as after an all-reduce.
    pub(crate) fn turn(&mut self, iterations: usize) -> Vec<f64> {
        let mut seconds = Vec::with_capacity(iterations);
        for i in 0..iterations {
            let place = i % self.sets.len();
            let set = &mut self.sets[place];
            let start = ronde_clock::now();
            if let Some((first, others)) = set.split_first_mut() {
                sum(first, others);
            }
            seconds.push(start.elapsed().as_secs_f64());
            std::hint::black_box(set);
        }
        seconds
    }
}

/// Leaves the sum in all slices. Works in blocks, so that each element is read from memory once and
/// written once.
fn sum(first: &mut [f32], others: &mut [Vec<f32>]) {
    let mut at = 0;
    for block in first.chunks_mut(BLOCK) {
        let end = at + block.len();
        for other in &*others {
            for (into, from) in block.iter_mut().zip(&other[at..end]) {
                *into += *from;
            }
        }
        for other in &mut *others {
            other[at..end].copy_from_slice(block);
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_in_all_slices() {
        let mut all = PlainLoop::new(5, 3, 60_000, 2);
        let expected: Vec<f32> = (0..5000)
            .map(|i| all.sets[0][0][i] + all.sets[0][1][i] + all.sets[0][2][i])
            .collect();
        assert_eq!(all.turn(2).len(), 2);
        for slice in all.sets.iter().flatten() {
            assert_eq!(*slice, expected);
        }
    }
}
