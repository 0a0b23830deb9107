//! [`Balance`]: chooses how many shards each rank computes, from the times that the ranks report with their votes. Pure.
//!
//! Every rank adds the time that it was busy with its shards to its vote on a step, so all ranks have the same times and
//! make the same choice without another exchange. Times are added over windows of at least [`WINDOW_STEPS`] steps and
//! [`WINDOW_S`] seconds of the slowest rank. At the end of a window the shards are apportioned so that the slowest rank
//! needs the least time. They move only if that shortens the step of the window by at least [`WORTH`], so that noise
//! moves nothing.
//!
//! The trained bits do not depend on the choice, because gradients are added along a tree over shards.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ronde_core::shards::ShardPlan;

/// The smallest number of steps of a window.
const WINDOW_STEPS: u32 = 8;
/// The shortest time of a window in seconds.
const WINDOW_S: f64 = 0.5;
/// The smallest fraction of a step that another assignment must save.
const WORTH: f64 = 0.1;

/// The times of all ranks since the last choice.
#[derive(Debug, Clone, Default)]
pub(crate) struct Balance {
    /// The seconds that each rank was busy.
    busy_s: Vec<f64>,
    steps: u32,
    /// Whether the first step with the present assignment was left out: it allocates memory and starts loaders.
    has_begun: bool,
}

/// A choice of [`Balance`].
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BalancedShares {
    /// The new assignment.
    pub(crate) shards: ShardPlan,
    /// The seconds that each rank that computes needs for one shard, by rank.
    pub(crate) shard_s: Vec<f64>,
}

impl Balance {
    /// Records the seconds that each rank was busy with its shards in a step. Returns another assignment if a window has
    /// ended and it is worth the change; the next window then measures the new assignment.
    ///
    /// The last `servers` ranks never have a shard. Nothing is chosen while another rank has none, because its speed is unknown.
    pub(crate) fn observe(
        &mut self,
        busy_s: &[f64],
        present: &ShardPlan,
        servers: usize,
    ) -> Option<BalancedShares> {
        let computing = present.computing() as usize;
        let is_complete = busy_s.len() == present.ranks()
            && busy_s.iter().all(|time| time.is_finite() && *time >= 0.0);
        if !is_complete || computing + servers != present.ranks() {
            return None;
        }
        let busy_s = &busy_s[..computing];
        if !std::mem::replace(&mut self.has_begun, true) {
            return None;
        }
        self.busy_s.resize(busy_s.len(), 0.0);
        self.busy_s
            .iter_mut()
            .zip(busy_s)
            .for_each(|(sum, time)| *sum += time);
        self.steps += 1;
        let slowest = self.busy_s.iter().copied().fold(0.0, f64::max);
        if self.steps < WINDOW_STEPS || slowest < WINDOW_S {
            return None;
        }
        let steps = f64::from(std::mem::take(&mut self.steps));
        let times = std::mem::take(&mut self.busy_s).into_iter();
        let shard_s: Vec<f64> = times
            .zip(present.shares())
            .map(|(time, share)| time / (steps * f64::from(share)))
            .collect();
        let shares = apportion(present.shards(), &shard_s);
        let longest = |shares: &[u32]| {
            let each = shares.iter().zip(&shard_s);
            each.map(|(&share, time)| f64::from(share) * time)
                .fold(0.0, f64::max)
        };
        let now: Vec<u32> = present.shares().take(computing).collect();
        if longest(&shares) > (1.0 - WORTH) * longest(&now) {
            return None;
        }
        self.has_begun = false;
        let shards = ShardPlan::with_shares(&shares)?.followed_by(servers);
        Some(BalancedShares { shards, shard_s })
    }
}

/// Returns the number of shards of each rank, at least one, for which the slowest rank needs the least time; `shard_s`
/// holds the seconds of each rank for one shard. Ranks of equal time have shares that differ by at most one, larger ones
/// first. There must be at least as many shards as ranks.
fn apportion(shards: u32, shard_s: &[f64]) -> Vec<u32> {
    let mut shares = vec![1; shard_s.len()];
    // The time of each rank with one more shard. Times are at least zero, so their bits have their order.
    let time = |share: u32, rank: usize| (f64::from(share) * shard_s[rank]).to_bits();
    let mut next: BinaryHeap<_> = (0..shard_s.len())
        .map(|rank| Reverse((time(2, rank), rank)))
        .collect();
    for _ in shard_s.len()..shards as usize {
        let Some(Reverse((_, rank))) = next.pop() else {
            break;
        };
        shares[rank] += 1;
        next.push(Reverse((time(shares[rank] + 1, rank), rank)));
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ronde_core::WorldSize;

    /// Runs steps on ranks of the given seconds per shard; returns the shares after each change.
    fn changes(shards: u32, shard_s: &[f64], steps: usize) -> Vec<Vec<u32>> {
        let world_size = WorldSize::new(shard_s.len() as u32).unwrap();
        let mut plan = ShardPlan::new(shards, world_size).unwrap();
        let mut balance = Balance::default();
        let mut changes = vec![];
        for step in 0..steps {
            // Noise of 4 % that differs between the ranks.
            let busy = plan
                .shares()
                .zip(shard_s)
                .enumerate()
                .map(|(rank, (n, s))| f64::from(n) * s * (1.0 + 0.04 * ((step + rank) % 2) as f64));
            let busy: Vec<f64> = busy.collect();
            if let Some(chosen) = balance.observe(&busy, &plan, 0) {
                plan = chosen.shards;
                changes.push(plan.shares().collect());
            }
        }
        changes
    }

    #[test]
    fn a_slow_rank_gets_fewer_shards_once() {
        assert_eq!(changes(16, &[0.1, 0.3], 60), [[12, 4]]);
        assert_eq!(changes(9, &[0.3, 0.1, 0.1], 60), [[1, 4, 4]]);
        assert_eq!(changes(4, &[0.1, 10.0], 60), [[3, 1]]);
    }

    #[test]
    fn ranks_of_nearly_equal_speed_keep_their_shares() {
        assert!(changes(16, &[0.1, 0.105, 0.1], 200).is_empty());
        assert!(changes(2, &[0.1, 0.3], 60).is_empty());
        assert!(changes(8, &[0.0, 0.0], 60).is_empty());
    }

    #[test]
    fn a_window_has_enough_steps_and_time() {
        let plan = ShardPlan::new(4, WorldSize::new(2).unwrap()).unwrap();
        let mut balance = Balance::default();
        let chosen: Vec<_> = (0..20)
            .filter(|_| balance.observe(&[0.01, 0.04], &plan, 0).is_some())
            .collect();
        assert_eq!(
            chosen,
            [13],
            "one step is left out, then 13 take over half a second"
        );
    }

    #[test]
    fn invalid_times_and_spares_choose_nothing() {
        let world_size = WorldSize::new(2).unwrap();
        let plan = ShardPlan::new(4, world_size).unwrap();
        let spare = ShardPlan::with_spares(4, world_size, 1).unwrap();
        let mut balance = Balance::default();
        for _ in 0..40 {
            assert_eq!(balance.observe(&[f64::NAN, 1.0], &plan, 0), None);
            assert_eq!(balance.observe(&[-1.0, 1.0], &plan, 0), None);
            assert_eq!(balance.observe(&[1.0], &plan, 0), None);
            assert_eq!(balance.observe(&[1.0, 3.0], &spare, 0), None);
        }
    }

    #[test]
    fn servers_keep_no_shards() {
        let world_size = WorldSize::new(3).unwrap();
        let plan = ShardPlan::with_spares(8, world_size, 2).unwrap();
        let mut balance = Balance::default();
        let mut observe = || balance.observe(&[0.4, 1.2, 0.1], &plan, 1);
        let chosen = (0..20).find_map(|_| observe()).unwrap();
        assert_eq!(chosen.shards.shares().collect::<Vec<_>>(), [6, 2, 0]);
        assert_eq!(chosen.shards.computing(), 2);
        assert_eq!(chosen.shard_s.len(), 2);
    }

    proptest! {
        #[test]
        fn no_other_apportionment_of_two_ranks_is_shorter(
            shards in 2_u32..60,
            times in (0.001_f64..1.0, 0.001_f64..1.0),
        ) {
            let shares = apportion(shards, &[times.0, times.1]);
            prop_assert_eq!(shares[0] + shares[1], shards);
            let longest = |first: u32| {
                (f64::from(first) * times.0).max(f64::from(shards - first) * times.1)
            };
            for first in 1..shards {
                prop_assert!(longest(shares[0]) <= longest(first) * (1.0 + 1e-12));
            }
        }

        #[test]
        fn every_rank_has_a_shard_and_all_shards_have_a_rank(
            extra in 0_u32..100,
            times in prop::collection::vec(0.0_f64..10.0, 1..9),
        ) {
            let shards = times.len() as u32 + extra;
            let shares = apportion(shards, &times);
            prop_assert_eq!(shares.iter().sum::<u32>(), shards);
            prop_assert!(!shares.contains(&0));
        }
    }
}
