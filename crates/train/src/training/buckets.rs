//! [`BucketTuning`]: the first steps of a generation try sizes of buckets, then all ranks take the same.
//!
//! The bits do not depend on the size: every element is summed over shards by itself. What is chosen
//! follows from the times of all ranks, which all of them gather, so that all choose alike.

use ronde_core::{CollectivesExt, Event, Rank};

use super::Training;
use crate::TrainError;

/// Sizes that are tried, in bytes. The first one is taken where it makes no difference.
const SIZES: [usize; 3] = [4 << 20, 1 << 20, 16 << 20];
/// Steps before any that counts: memory is touched for the first time.
const WARM_UP: usize = 2;
/// Steps of each size; the shortest one counts. The first after a change is not among them: it gets new
/// memory.
const TRIES: usize = 3;
/// Another size must take at most this part of the first one's time.
const WORTH: f64 = 0.98;

/// Where the trying stands.
#[derive(Debug)]
pub(super) struct BucketTuning {
    sizes: Vec<usize>,
    /// Seconds of the shortest step of each size so far.
    shortest: Vec<f64>,
    steps: usize,
}

/// What comes after a step.
#[derive(Debug, PartialEq)]
enum Next {
    /// The same size again.
    Stay,
    /// Another size.
    Try(usize),
    /// All were tried.
    Choose,
}

impl BucketTuning {
    /// Tries the sizes that make a difference; `None` where there is nothing to try. `buckets` says how
    /// many buckets a size makes.
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

    /// The size to begin with.
    pub(super) fn first() -> usize {
        SIZES[0]
    }

    /// Takes a step's time in.
    fn step_took(&mut self, seconds: f64) -> Next {
        let Some(counted) = self.steps.checked_sub(WARM_UP) else {
            self.steps += 1;
            return Next::Stay;
        };
        self.steps += 1;
        let (place, attempt) = (counted / (TRIES + 1), counted % (TRIES + 1));
        if attempt > 0 {
            self.shortest[place] = self.shortest[place].min(seconds);
        }
        match self.sizes.get(place + 1) {
            _ if attempt < TRIES => Next::Stay,
            Some(&size) => Next::Try(size),
            None => Next::Choose,
        }
    }

    /// The size whose steps took the least over all ranks; `all` has the times of rank after rank.
    fn choose(&self, all: &[f64]) -> usize {
        let sum = |place: usize| -> f64 {
            let ranks = all.chunks_exact(self.sizes.len());
            ranks.map(|times| times[place]).sum()
        };
        let mut best = 0;
        for place in 1..self.sizes.len() {
            if sum(place) < sum(best) && sum(place) <= WORTH * sum(0) {
                best = place;
            }
        }
        self.sizes[best]
    }
}

impl Training {
    /// Begins to try sizes in a new generation, unless the run file names one. Called by all of its
    /// members before their first step.
    pub(super) fn tune_buckets(&mut self) {
        if self.plan.config.comm.bucket_bytes_max.is_some() {
            return;
        }
        self.strategy.set_bucket_bytes(BucketTuning::first());
        let buckets = |size| self.strategy.buckets_of(size);
        self.tuning = BucketTuning::new(self.place.group.size(), buckets);
    }

    /// After a step that took so long, data apart: tries another size, or takes the best one.
    pub(super) fn step_took(&mut self, seconds: f64) -> Result<(), TrainError> {
        let Some(tuning) = &mut self.tuning else {
            return Ok(());
        };
        let size = match tuning.step_took(seconds) {
            Next::Stay => return Ok(()),
            Next::Try(size) => size,
            Next::Choose => {
                let all = self.place.group.all_gather(&tuning.shortest);
                let size = tuning.choose(&all.map_err(TrainError::BucketSize)?);
                self.tuning = None;
                if self.place.rank == Rank(0) {
                    self.place.tracker.record(Event::BucketSizeChosen {
                        step: self.session.next_step(),
                        bucket_bytes_max: size as u64,
                        buckets: self.strategy.buckets_of(size) as u64,
                    });
                }
                size
            }
        };
        self.strategy.set_bucket_bytes(size);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_tried_and_the_shortest_counts() {
        let mut tuning = BucketTuning::new(2, |size| 64_000_000 / size).unwrap();
        let mut tried = vec![];
        let mut size = BucketTuning::first();
        for step in 0.. {
            // Slow at first, and after each change; 1 MiB is the fastest.
            let seconds = if size == 1 << 20 { 0.5 } else { 1.0 };
            let is_new = step < WARM_UP || tried.last() != Some(&size);
            tried.push(size);
            match tuning.step_took(if is_new { 0.1 } else { seconds }) {
                Next::Stay => {}
                Next::Try(next) => size = next,
                Next::Choose => break,
            }
        }
        assert_eq!(tried.len(), WARM_UP + 3 * (TRIES + 1));
        assert_eq!(tuning.shortest[1], 0.5);
        assert!(tuning.shortest[2] == 1.0);
    }

    #[test]
    fn the_sum_over_ranks_decides_and_the_first_size_stays_where_little_is_won() {
        let tuning = BucketTuning::new(2, |size| size).unwrap();
        assert_eq!(tuning.choose(&[1.0, 0.5, 0.9, 1.0, 1.4, 0.9]), 16 << 20);
        assert_eq!(tuning.choose(&[1.0, 0.4, 0.9, 1.0, 1.3, 0.9]), 1 << 20);
        assert_eq!(tuning.choose(&[1.0, 0.99, 0.99, 1.0, 0.99, 1.2]), 4 << 20);
        assert_eq!(tuning.choose(&[f64::NAN; 6]), 4 << 20);
    }

    #[test]
    fn nothing_is_tried_where_it_makes_no_difference() {
        assert!(BucketTuning::new(1, |size| size).is_none());
        assert!(BucketTuning::new(2, |_| 1).is_none());
        let tuning = BucketTuning::new(2, |size| usize::from(size > 1 << 20)).unwrap();
        assert_eq!(tuning.sizes, [4 << 20, 1 << 20]);
    }
}
