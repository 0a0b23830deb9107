//! [`BucketTuning`]: tries bucket sizes in the first steps of a generation, then sets the best one on all ranks.
//!
//! The trained bits do not depend on the size, because every element is summed over shards separately. All ranks
//! gather the times of all ranks, so they make the same choice.

/// The sizes to try, in bytes. The first one is the default.
const SIZES: [usize; 3] = [4 << 20, 1 << 20, 16 << 20];
/// The number of initial steps that are not measured, because they touch memory for the first time.
const WARM_UP: usize = 2;
/// The number of measured steps of each size; the shortest one counts. The first step after a change is not
/// measured, because it allocates memory.
const TRIES: usize = 3;
/// Another size is chosen only if its time is at most this fraction of the default's.
const WORTH: f64 = 0.98;

/// The progress of the tuning.
#[derive(Debug)]
pub(super) struct BucketTuning {
    sizes: Vec<usize>,
    /// The shortest step of each size so far, in seconds.
    pub(super) shortest: Vec<f64>,
    steps: usize,
}

/// The action after a step.
#[derive(Debug, PartialEq)]
pub(super) enum TuningAction {
    /// Keep the current size.
    Stay,
    /// Try another size.
    Try(usize),
    /// Choose the best size; all were tried.
    Choose,
}

impl BucketTuning {
    /// Creates the tuning of the sizes that give different numbers of buckets; `None` if there is only one.
    /// `buckets` returns the number of buckets of a size.
    pub(super) fn new(ranks: usize, buckets: impl Fn(usize) -> usize) -> Option<Self> {
        let mut sizes: Vec<usize> = Vec::new();
        for size in SIZES {
            if sizes.iter().all(|&other| buckets(other) != buckets(size)) {
                sizes.push(size);
            }
        }
        (ranks > 1 && sizes.len() > 1).then(|| Self {
            shortest: vec![f64::INFINITY; sizes.len()],
            sizes,
            steps: 0,
        })
    }

    /// Returns the default size.
    pub(super) fn first() -> usize {
        SIZES[0]
    }

    /// Records the time of a step and returns the next action.
    pub(super) fn step_took(&mut self, seconds: f64) -> TuningAction {
        let Some(counted) = self.steps.checked_sub(WARM_UP) else {
            self.steps += 1;
            return TuningAction::Stay;
        };
        self.steps += 1;
        let (index, attempt) = (counted / (TRIES + 1), counted % (TRIES + 1));
        if attempt > 0 {
            self.shortest[index] = self.shortest[index].min(seconds);
        }
        match self.sizes.get(index + 1) {
            _ if attempt < TRIES => TuningAction::Stay,
            Some(&size) => TuningAction::Try(size),
            None => TuningAction::Choose,
        }
    }

    /// Returns the size with the shortest time, summed over all ranks; `all` holds the times of each rank in turn.
    pub(super) fn choose(&self, all: &[f64]) -> usize {
        let sum = |index: usize| -> f64 {
            let ranks = all.chunks_exact(self.sizes.len());
            ranks.map(|times| times[index]).sum()
        };
        let mut best = 0;
        for index in 1..self.sizes.len() {
            if sum(index) < sum(best) && sum(index) <= WORTH * sum(0) {
                best = index;
            }
        }
        self.sizes[best]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_tried_and_its_shortest_step_is_kept() {
        let mut tuning = BucketTuning::new(2, |size| 64_000_000 / size).unwrap();
        let mut tried = vec![];
        let mut size = BucketTuning::first();
        for step in 0.. {
            // Slow at first and after each change; 1 MiB is the fastest.
            let seconds = if size == 1 << 20 { 0.5 } else { 1.0 };
            let is_new = step < WARM_UP || tried.last() != Some(&size);
            tried.push(size);
            match tuning.step_took(if is_new { 0.1 } else { seconds }) {
                TuningAction::Stay => {}
                TuningAction::Try(next) => size = next,
                TuningAction::Choose => break,
            }
        }
        assert_eq!(tried.len(), WARM_UP + 3 * (TRIES + 1));
        assert_eq!(tuning.shortest[1], 0.5);
        assert!(tuning.shortest[2] == 1.0);
    }

    #[test]
    fn the_sum_over_ranks_decides_and_small_gains_keep_the_default() {
        let tuning = BucketTuning::new(2, |size| size).unwrap();
        assert_eq!(tuning.choose(&[1.0, 0.5, 0.9, 1.0, 1.4, 0.9]), 16 << 20);
        assert_eq!(tuning.choose(&[1.0, 0.4, 0.9, 1.0, 1.3, 0.9]), 1 << 20);
        assert_eq!(tuning.choose(&[1.0, 0.99, 0.99, 1.0, 0.99, 1.2]), 4 << 20);
        assert_eq!(tuning.choose(&[f64::NAN; 6]), 4 << 20);
    }

    #[test]
    fn sizes_with_equal_buckets_are_not_tried() {
        assert!(BucketTuning::new(1, |size| size).is_none());
        assert!(BucketTuning::new(2, |_| 1).is_none());
        let tuning = BucketTuning::new(2, |size| usize::from(size > 1 << 20)).unwrap();
        assert_eq!(tuning.sizes, [4 << 20, 1 << 20]);
    }
}
