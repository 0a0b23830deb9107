//! Logical shards: the division of a global batch, and the assignment of its parts to ranks.
//!
//! The division depends only on the batch and the number of shards, never on the world size. Only the
//! assignment of shards to ranks depends on the world size. Each rank has a contiguous range of shards, which
//! consists of few complete subtrees of the exact sum.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::exact::ExactSum;
use crate::rank::{GroupRank, Shard, WorldSize};

/// Returns range `part` of `0..len` divided into `parts` contiguous ranges whose lengths differ by at most one,
/// longer ranges first.
#[must_use]
pub fn even_range(len: u64, parts: u64, part: u64) -> Range<u64> {
    let (base, longer) = (len / parts, len % parts);
    let start = part * base + part.min(longer);
    start..start + base + u64::from(part < longer)
}

/// Returns the lengths of the ranges of [`even_range`] that are not empty, for some lengths that are divided.
#[must_use]
pub fn even_sizes(lens: &BTreeSet<u64>, parts: u64) -> BTreeSet<u64> {
    let parts = parts.max(1);
    let both = lens
        .iter()
        .flat_map(|len| [len / parts, len.div_ceil(parts)]);
    both.filter(|size| *size > 0).collect()
}

/// The division of a global batch into logical shards, and the assignment of shards to ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    /// The first shard of each rank, then the number of shards.
    bounds: Arc<[u32]>,
    /// The number of ranks that compute, which are the first ones; the remaining ranks are spares.
    computing: u32,
}

impl ShardPlan {
    /// Assigns shards to all ranks; `None` if there are more workers than shards, or no shards.
    #[must_use]
    pub fn new(shards: u32, world_size: WorldSize) -> Option<Self> {
        Self::with_spares(shards, world_size, world_size.get())
    }

    /// Assigns shards to the first `computing` ranks only. The remaining ranks hold no shard, but take part in
    /// reductions and votes. `None` if `computing` is zero or larger than the number of shards or ranks.
    #[must_use]
    pub fn with_spares(shards: u32, world_size: WorldSize, computing: u32) -> Option<Self> {
        let possible = 1..=shards.min(world_size.get());
        if !possible.contains(&computing) {
            return None;
        }
        let share = |rank: u32| {
            let range = even_range(shards.into(), computing.into(), rank.into());
            (range.end - range.start) as u32
        };
        let shares = (0..world_size.get()).map(|rank| match rank < computing {
            true => share(rank),
            false => 0,
        });
        Some(Self::uneven(shares, computing))
    }

    /// Assigns groups of `together` shards to all ranks, each group to one rank; `None` if there are more workers than groups, or
    /// no shards.
    #[must_use]
    pub fn of_groups(groups: u32, together: u32, world_size: WorldSize) -> Option<Self> {
        let groups = Self::new(groups, world_size)?;
        let shards = u64::from(groups.shards()) * u64::from(together);
        let is_valid = together > 0 && u32::try_from(shards).is_ok();
        let shares = groups.shares().map(|share| share * together);
        is_valid.then(|| Self::uneven(shares, groups.computing))
    }

    /// Assigns a number of shards to each rank, in the order of ranks; `None` without a rank, or with one without a shard.
    #[must_use]
    pub fn with_shares(shares: &[u32]) -> Option<Self> {
        let is_valid = !shares.is_empty() && !shares.contains(&0);
        let total: u64 = shares.iter().map(|&share| u64::from(share)).sum();
        let is_valid = is_valid && u32::try_from(total).is_ok();
        is_valid.then(|| Self::uneven(shares.iter().copied(), shares.len() as u32))
    }

    /// Returns the same assignment with further ranks, which have no shards.
    #[must_use]
    pub fn followed_by(&self, ranks: usize) -> Self {
        let none = std::iter::repeat_n(0, ranks);
        Self::uneven(self.shares().chain(none), self.computing)
    }

    /// Assigns a number of shards to each rank, in the order of ranks; some ranks may have none. `computing` is the number of
    /// ranks that divide the shards among themselves.
    pub(crate) fn uneven(shares: impl Iterator<Item = u32>, computing: u32) -> Self {
        let ends = shares.scan(0, |end, share| {
            *end += share;
            Some(*end)
        });
        Self {
            bounds: std::iter::once(0).chain(ends).collect(),
            computing,
        }
    }

    /// Returns the number of ranks that compute, which are the first ones.
    #[must_use]
    pub fn computing(&self) -> u32 {
        self.computing
    }

    /// Returns the number of ranks, spares included.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.bounds.len() - 1
    }

    /// Returns the number of logical shards.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.bounds[self.ranks()]
    }

    /// Returns the shards of a rank; none for a spare and for a rank outside the group.
    #[must_use]
    pub fn run(&self, rank: GroupRank) -> Range<u32> {
        let bound = |index: usize| self.bounds[index.min(self.ranks())];
        bound(rank.index())..bound(rank.index() + 1)
    }

    /// Returns the number of shards of each rank.
    pub fn shares(&self) -> impl Iterator<Item = u32> + '_ {
        self.bounds.windows(2).map(|pair| pair[1] - pair[0])
    }

    /// Returns the positions of a shard in a global batch of `samples` samples; may be empty.
    #[must_use]
    pub fn samples(&self, shard: Shard, samples: u64) -> Range<u64> {
        even_range(samples, self.shards().into(), shard.0.into())
    }

    /// Returns the assignment as the exact sum needs it.
    ///
    /// # Panics
    /// Never: the ranges are contiguous and there is at least one shard.
    #[must_use]
    pub fn exact_sum(&self) -> ExactSum {
        ExactSum::new(self.bounds.to_vec()).expect("ranges of shards are contiguous")
    }

    /// Returns the share of the ranks' time that is used if all shards take the same time: 1 if the world size
    /// divides the number of shards.
    #[must_use]
    pub fn efficiency(&self) -> f64 {
        let longest = self.shares().max().unwrap_or_default();
        f64::from(self.shards()) / (f64::from(longest) * self.ranks() as f64)
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
    fn groups_stay_together() {
        let of = |groups, together, workers| {
            ShardPlan::of_groups(groups, together, WorldSize::new(workers).unwrap())
        };
        let runs = |plan: ShardPlan| plan.shares().collect::<Vec<_>>();
        assert_eq!(runs(of(4, 2, 3).unwrap()), [4, 2, 2]);
        assert_eq!(of(5, 1, 3), ShardPlan::new(5, WorldSize::new(3).unwrap()));
        assert!(of(4, 2, 5).is_none() && of(4, 0, 2).is_none());
        assert!(of(1 << 20, 1 << 20, 2).is_none());
    }

    #[test]
    fn shares_may_be_unequal() {
        let plan = ShardPlan::with_shares(&[5, 1, 2]).unwrap();
        let runs: Vec<_> = (0..4).map(|rank| plan.run(GroupRank(rank))).collect();
        assert_eq!(runs, [0..5, 5..6, 6..8, 8..8]);
        assert_eq!((plan.shards(), plan.computing(), plan.ranks()), (8, 3, 3));
        assert_eq!(plan.shares().collect::<Vec<_>>(), [5, 1, 2]);
        assert_eq!(plan.exact_sum().shards(), 8);
        assert!((plan.efficiency() - 8.0 / 15.0).abs() < 1e-12);
        assert!(ShardPlan::with_shares(&[]).is_none());
        assert!(ShardPlan::with_shares(&[3, 0]).is_none());
        assert!(ShardPlan::with_shares(&[u32::MAX, 1]).is_none());
    }

    #[test]
    fn more_workers_than_shards_are_rejected() {
        assert!(ShardPlan::new(7, WorldSize::new(8).unwrap()).is_none());
        assert!(ShardPlan::new(0, WorldSize::ONE).is_none());
        let two = WorldSize::new(2).unwrap();
        assert!(ShardPlan::with_spares(4, two, 0).is_none());
        assert!(ShardPlan::with_spares(4, two, 3).is_none());
        assert!(ShardPlan::with_spares(1, two, 1).is_some());
    }

    #[test]
    fn efficiency_is_determined_by_the_rank_with_the_most_shards() {
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
