//! [`BatchPlan`]: the samples of each step. Batches follow the shuffled order of an epoch, for any world size.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::order::{SampleOrder, Shuffle};
use crate::rank::{Epoch, Step};
use crate::seed::{Purpose, SeedTree};

/// The division of an epoch into global batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchPlan {
    samples: u64,
    global_batch_size: u64,
    drop_last: bool,
    shuffle: Shuffle,
    seed: u64,
}

/// The samples of one step: positions `range` of the order of an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalBatch {
    /// The step.
    pub step: Step,
    /// The epoch that the step belongs to.
    pub epoch: Epoch,
    /// Positions in the order of the epoch.
    pub positions: Range<u64>,
    /// Whether this is the last step of its epoch.
    pub ends_epoch: bool,
}

impl GlobalBatch {
    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.positions.end - self.positions.start
    }
}

impl BatchPlan {
    /// Creates a plan; `None` if an epoch would have no step.
    #[must_use]
    pub fn new(
        samples: u64,
        global_batch_size: u64,
        drop_last: bool,
        shuffle: impl Into<Shuffle>,
        seed: u64,
    ) -> Option<Self> {
        let plan = Self {
            samples,
            global_batch_size,
            drop_last,
            shuffle: shuffle.into(),
            seed,
        };
        (global_batch_size > 0 && plan.steps_per_epoch() > 0).then_some(plan)
    }

    /// Returns the number of samples of the data set.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the number of samples of a step; the last one of an epoch may have fewer.
    #[must_use]
    pub fn global_batch_size(&self) -> u64 {
        self.global_batch_size
    }

    /// Returns the number of samples that an epoch uses: all, or those of full batches with `drop_last`.
    #[must_use]
    pub fn samples_per_epoch(&self) -> u64 {
        if self.drop_last {
            self.samples - self.samples % self.global_batch_size
        } else {
            self.samples
        }
    }

    /// Returns the number of steps of an epoch; the last step may be smaller.
    #[must_use]
    pub fn steps_per_epoch(&self) -> u64 {
        self.samples_per_epoch().div_ceil(self.global_batch_size)
    }

    /// Returns the samples of a step.
    #[must_use]
    pub fn batch(&self, step: Step) -> GlobalBatch {
        let (epoch, within) = (
            step.0 / self.steps_per_epoch(),
            step.0 % self.steps_per_epoch(),
        );
        let start = within * self.global_batch_size;
        let end = (start + self.global_batch_size).min(self.samples_per_epoch());
        let ends_epoch = within + 1 == self.steps_per_epoch();
        GlobalBatch {
            step,
            epoch: Epoch(epoch),
            positions: start..end,
            ends_epoch,
        }
    }

    /// Returns the numbers of samples that the batches of `steps` steps have.
    #[must_use]
    pub fn batch_sizes(&self, steps: u64) -> BTreeSet<u64> {
        let last = self.steps_per_epoch() - 1;
        let steps = [0, last].into_iter().filter(|step| *step < steps);
        steps.map(|step| self.batch(Step(step)).samples()).collect()
    }

    /// Returns the order of an epoch, which maps positions to samples. Depends only on the seed and the epoch.
    #[must_use]
    pub fn order(&self, epoch: Epoch) -> SampleOrder {
        let stream = SeedTree::new(self.seed).stream(Purpose::Shuffle, &[epoch.0]);
        SampleOrder::new(self.samples, self.shuffle, stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_is_used_once_per_epoch_for_all_small_sizes() {
        for samples in 1..=30 {
            for batch in 1..=12 {
                for drop_last in [false, true] {
                    let Some(plan) = BatchPlan::new(samples, batch, drop_last, true, 5) else {
                        assert!(drop_last && samples < batch);
                        continue;
                    };
                    for epoch in 0..3 {
                        let mut used: Vec<u64> = (0..plan.steps_per_epoch())
                            .map(|s| plan.batch(Step(epoch * plan.steps_per_epoch() + s)))
                            .inspect(|b| assert_eq!(b.epoch, Epoch(epoch)))
                            .inspect(|b| assert!(b.samples() > 0 && b.samples() <= batch))
                            .flat_map(|b| b.positions)
                            .map(|p| plan.order(Epoch(epoch)).sample(p))
                            .collect();
                        used.sort_unstable();
                        used.dedup();
                        let expected = if drop_last {
                            samples - samples % batch
                        } else {
                            samples
                        };
                        assert_eq!(used.len() as u64, expected);
                    }
                }
            }
        }
    }

    #[test]
    fn the_odd_last_batch_of_the_digits() {
        let plan = BatchPlan::new(1437, 64, false, true, 42).unwrap();
        assert_eq!(plan.steps_per_epoch(), 23);
        let last = plan.batch(Step(22));
        assert!(last.ends_epoch);
        assert_eq!(last.samples(), 29);
        assert_eq!(plan.batch(Step(23)).epoch, Epoch(1));
    }
}
