//! Logical shards: how a global batch is cut, and which rank computes which part.
//!
//! The cut depends on the batch and the shard count alone, never on the world size; only the
//! assignment of shards to ranks does. Runs are contiguous, so that a rank's shards are few
//! complete subtrees of the exact sum.

use std::ops::Range;

use crate::exact::ExactSum;
use crate::{GroupRank, Shard, WorldSize};

/// Cuts `0..len` into `parts` contiguous ranges whose lengths differ by at most one, longer first.
#[must_use]
pub fn even_range(len: u64, parts: u64, part: u64) -> Range<u64> {
    let (base, longer) = (len / parts, len % parts);
    let start = part * base + part.min(longer);
    start..start + base + u64::from(part < longer)
}

/// A global batch cut into logical shards, the shards dealt to ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardPlan {
    shards: u32,
    world_size: WorldSize,
    /// The first so many ranks compute; the others are spares.
    computing: u32,
}

impl ShardPlan {
    /// `None` when there are more workers than shards, or no shard.
    #[must_use]
    pub fn new(shards: u32, world_size: WorldSize) -> Option<Self> {
        Self::with_spares(shards, world_size, world_size.get())
    }

    /// Shards that only the first `computing` ranks share: the others hold no shard, and take part in
    /// reductions and votes all the same. `None` when nobody computes, or more ranks than there are
    /// shards or members.
    #[must_use]
    pub fn with_spares(shards: u32, world_size: WorldSize, computing: u32) -> Option<Self> {
        let possible = 1..=shards.min(world_size.get());
        possible.contains(&computing).then_some(Self {
            shards,
            world_size,
            computing,
        })
    }

    /// How many ranks compute: the first ones.
    #[must_use]
    pub fn computing(&self) -> u32 {
        self.computing
    }

    /// Count of logical shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The shards of a rank; runs of ranks that compute differ by at most one shard.
    #[must_use]
    pub fn run(&self, rank: GroupRank) -> Range<u32> {
        if rank.0 >= self.computing {
            return self.shards..self.shards;
        }
        let run = even_range(self.shards.into(), self.computing.into(), rank.0.into());
        run.start as u32..run.end as u32
    }

    /// Positions inside a global batch of `samples` that make up a shard; may be empty.
    #[must_use]
    pub fn samples(&self, shard: Shard, samples: u64) -> Range<u64> {
        even_range(samples, self.shards.into(), shard.0.into())
    }

    /// The assignment as the exact sum needs it.
    ///
    /// # Panics
    /// Never: runs are contiguous and there is a shard.
    #[must_use]
    pub fn exact_sum(&self) -> ExactSum {
        let bounds = (0..self.world_size.get()).map(|r| self.run(GroupRank(r)).start);
        ExactSum::new(bounds.chain([self.shards]).collect()).expect("runs of shards are contiguous")
    }

    /// Share of the ranks' time that is used when all shards cost the same: 1 when the world size
    /// divides the shard count.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        let longest = self.shards.div_ceil(self.computing);
        f64::from(self.shards) / (f64::from(longest) * f64::from(self.world_size.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_of_a_batch_is_in_exactly_one_shard_of_one_rank() {
        for samples in 0..=40 {
            for shards in 1..=16_u32 {
                for computing in 1..=shards {
                    for spares in [0, 1, 3] {
                        let world_size = WorldSize::new(computing + spares).unwrap();
                        let plan = ShardPlan::with_spares(shards, world_size, computing).unwrap();
                        let mut used = Vec::new();
                        for rank in 0..computing + spares {
                            for shard in plan.run(GroupRank(rank)) {
                                used.extend(plan.samples(Shard(shard), samples));
                            }
                        }
                        assert_eq!(used, (0..samples).collect::<Vec<_>>());
                        assert_eq!(plan.exact_sum().shards(), shards);
                        assert_eq!(plan.exact_sum().size(), world_size.len());
                    }
                }
            }
        }
    }

    #[test]
    fn more_workers_than_shards_is_no_plan() {
        assert!(ShardPlan::new(7, WorldSize::new(8).unwrap()).is_none());
        assert!(ShardPlan::new(0, WorldSize::ONE).is_none());
        let two = WorldSize::new(2).unwrap();
        assert!(ShardPlan::with_spares(4, two, 0).is_none());
        assert!(ShardPlan::with_spares(4, two, 3).is_none());
        assert!(ShardPlan::with_spares(1, two, 1).is_some());
    }

    #[test]
    fn efficiency_is_that_of_the_longest_run() {
        let of = |n| {
            ShardPlan::new(16, WorldSize::new(n).unwrap())
                .unwrap()
                .efficiency()
        };
        assert_eq!(of(4), 1.0);
        assert!((of(3) - 16.0 / 18.0).abs() < 1e-12);
        assert!((of(5) - 0.8).abs() < 1e-12);
    }
}
