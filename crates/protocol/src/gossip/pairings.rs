//! [`Pairings`]: which two ranks average their replicas.

use ronde_core::Step;
use ronde_core::permutation::Permutation;
use ronde_core::seed::{Purpose, SeedTree};

/// The pairs of a round, from the seed of the run.
///
/// Exchanges of a rank are numbered from 0. Those with one number are disjoint pairs of ranks; with an odd number of ranks, one has no
/// partner. In `n - 1` consecutive exchanges of an even number `n` of ranks (`n` of an odd one), each pair meets once: a tournament by the
/// circle method, in an order that is drawn again for each such cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pairings {
    seeds: SeedTree,
    round: Step,
    ranks: u32,
}

impl Pairings {
    /// Creates the pairings of a round.
    #[must_use]
    pub fn new(seeds: SeedTree, round: Step, ranks: u32) -> Self {
        Self {
            seeds,
            round,
            ranks,
        }
    }

    /// Returns the partner of a rank in an exchange; `None` if it has none.
    #[must_use]
    pub fn partner(&self, rank: u32, number: u64) -> Option<u32> {
        if self.ranks < 2 || rank >= self.ranks {
            return None;
        }
        // With an odd number of ranks, the partner of the last position has no exchange.
        let places = u64::from(self.ranks).next_multiple_of(2);
        let turns = places - 1;
        let (cycle, turn) = (number / turns, number % turns);
        let coordinates = [self.round.0, cycle];
        let stream = self.seeds.stream(Purpose::Pairing, &coordinates);
        let order = Permutation::new(places, stream);
        let place = order.position_of(rank.into());
        // The last position is fixed; two others meet if their positions add up to the turn, modulo the number of turns.
        let other = match place == turns {
            true => turn * (places / 2) % turns,
            false => (turn + turns - place) % turns,
        };
        let other = if other == place { turns } else { other };
        u32::try_from(order.at(other))
            .ok()
            .filter(|partner| *partner < self.ranks)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn pairings(seed: u64, round: u64, ranks: u32) -> Pairings {
        Pairings::new(SeedTree::new(seed), Step(round), ranks)
    }

    #[test]
    fn partners_agree_and_all_pairs_meet_once_in_a_cycle() {
        for ranks in 1..=17 {
            let pairs = pairings(3, 5, ranks);
            let turns = u64::from(ranks.next_multiple_of(2)) - 1;
            for cycle in 0..3 {
                let mut met = BTreeSet::new();
                for number in cycle * turns..(cycle + 1) * turns {
                    let alone = (0..ranks).filter(|rank| pairs.partner(*rank, number).is_none());
                    assert_eq!(alone.count() as u32, ranks % 2, "{ranks} ranks");
                    for rank in 0..ranks {
                        let Some(partner) = pairs.partner(rank, number) else {
                            continue;
                        };
                        assert_ne!(partner, rank);
                        assert_eq!(pairs.partner(partner, number), Some(rank));
                        if rank < partner {
                            assert!(met.insert((rank, partner)), "{ranks} ranks");
                        }
                    }
                }
                assert_eq!(met.len() as u32, ranks * (ranks - 1) / 2);
            }
            assert_eq!(pairs.partner(ranks, 0), None);
        }
    }

    #[test]
    fn the_order_depends_on_the_seed_and_the_round() {
        let order = |seed, round| -> Vec<Option<u32>> {
            let pairs = pairings(seed, round, 8);
            (0..7).map(|number| pairs.partner(0, number)).collect()
        };
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(2, 0));
        assert_ne!(order(1, 0), order(1, 1));
    }
}
