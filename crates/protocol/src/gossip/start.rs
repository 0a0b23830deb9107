//! [`GossipStart`]: which replicas of an interrupted round continue.

use ronde_core::words::{WordReader, packed, unpacked};

use super::update_log::{GossipRound, UpdateLog};

/// The replica that a rank has of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaHolding {
    /// The round.
    pub round: GossipRound,
    /// The last attempt that it took part in.
    pub attempt: u64,
    /// Whether each update of the round was applied to it.
    pub applied: Vec<bool>,
}

impl ReplicaHolding {
    /// Describes a replica by its log.
    #[must_use]
    pub fn of(log: &UpdateLog) -> Self {
        Self {
            round: log.round(),
            attempt: log.attempt(),
            applied: log.applied(),
        }
    }

    /// Returns the holding of a rank as numbers; a single 0 without one.
    #[must_use]
    pub fn encode(holding: Option<&Self>) -> Vec<u64> {
        let Some(holding) = holding else {
            return vec![0];
        };
        let mut words = vec![1];
        holding.round.encode(&mut words);
        words.push(holding.attempt);
        words.extend(packed(&holding.applied));
        words
    }

    /// Reads the holdings of `ranks` ranks, one rank after the other; `None` if they are not valid.
    #[must_use]
    pub fn decode_all(words: &[u64], ranks: usize) -> Option<Vec<Option<Self>>> {
        let mut words = WordReader(words);
        let mut holdings = Vec::new();
        for _ in 0..ranks {
            if words.u64()? == 0 {
                holdings.push(None);
                continue;
            }
            let (round, attempt) = (GossipRound::decode(&mut words)?, words.u64()?);
            let flags = words.take(u64::from(round.updates).div_ceil(64))?;
            holdings.push(Some(Self {
                round,
                attempt,
                applied: unpacked(flags, round.updates as usize),
            }));
        }
        words.0.is_empty().then_some(holdings)
    }
}

/// How the members of a group begin a round, or continue it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GossipStart {
    /// Whether each update is applied to a replica that continues.
    pub done: Vec<bool>,
    /// Whether the replica of each rank continues.
    pub continues: Vec<bool>,
    /// The rank whose replica the remaining ranks copy; `None`: they begin with the state before the round.
    pub source: Option<usize>,
}

impl GossipStart {
    /// Decides about a round from the holdings of all ranks; pure, so all ranks have the same result.
    ///
    /// A rank that has missed an attempt may have updates that others have computed again since. So the replicas of the last attempt
    /// are first, and one that has an update of an earlier one does not continue.
    #[must_use]
    pub fn decide(round: GossipRound, holdings: &[Option<ReplicaHolding>]) -> Self {
        let mut order: Vec<(usize, &ReplicaHolding)> = holdings
            .iter()
            .enumerate()
            .filter_map(|(rank, holding)| Some((rank, holding.as_ref()?)))
            .filter(|(_, holding)| holding.round == round)
            .collect();
        order.sort_by_key(|(rank, holding)| (std::cmp::Reverse(holding.attempt), *rank));
        let mut start = Self {
            done: vec![false; round.updates as usize],
            continues: vec![false; holdings.len()],
            source: None,
        };
        let mut most = 0;
        for (rank, holding) in order {
            let both = holding.applied.iter().zip(&start.done);
            if both.into_iter().any(|(own, done)| *own && *done) {
                continue;
            }
            start.continues[rank] = true;
            for (own, done) in holding.applied.iter().zip(&mut start.done) {
                *done |= *own;
            }
            let count = holding.applied.iter().filter(|own| **own).count();
            if start.source.is_none() || count > most {
                (start.source, most) = (Some(rank), count);
            }
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use ronde_core::Step;

    const ROUND: GossipRound = GossipRound {
        step: Step(1),
        start: 5,
        updates: 70,
    };

    fn holding(attempt: u64, applied: &[usize]) -> Option<ReplicaHolding> {
        Some(ReplicaHolding {
            round: ROUND,
            attempt,
            applied: (0..70).map(|update| applied.contains(&update)).collect(),
        })
    }

    fn done(start: &GossipStart) -> Vec<usize> {
        (0..70).filter(|update| start.done[*update]).collect()
    }

    #[test]
    fn replicas_continue_and_a_new_rank_copies_the_one_with_most_updates() {
        let holdings = [holding(1, &[0, 4]), None, holding(1, &[1, 3, 69])];
        let start = GossipStart::decide(ROUND, &holdings);
        assert_eq!(done(&start), [0, 1, 3, 4, 69]);
        assert_eq!(start.continues, [true, false, true]);
        assert_eq!(start.source, Some(2));
        let words: Vec<u64> = holdings
            .iter()
            .flat_map(|held| ReplicaHolding::encode(held.as_ref()))
            .collect();
        assert_eq!(
            ReplicaHolding::decode_all(&words, 3),
            Some(holdings.to_vec())
        );
        for end in 0..words.len() {
            assert_eq!(ReplicaHolding::decode_all(&words[..end], 3), None);
        }
        let none = GossipStart::decide(ROUND, &[None, None]);
        assert_eq!(
            (done(&none), none.source, none.continues),
            (Vec::new(), None, vec![false; 2])
        );
    }

    #[test]
    fn a_replica_that_was_away_does_not_continue_with_updates_that_were_computed_again() {
        // Rank 0 was away in attempt 2, in which rank 1 has computed its update 0 again.
        let holdings = [holding(1, &[0, 2]), holding(2, &[0, 1]), holding(1, &[5])];
        let start = GossipStart::decide(ROUND, &holdings);
        assert_eq!(start.continues, [false, true, true]);
        assert_eq!(done(&start), [0, 1, 5]);
        assert_eq!(start.source, Some(1));
    }

    #[test]
    fn replicas_of_another_round_are_foreign() {
        let mut other = holding(9, &[1]);
        if let Some(other) = &mut other {
            other.round.start = 6;
        }
        let start = GossipStart::decide(ROUND, &[other, holding(1, &[0])]);
        assert_eq!(start.continues, [false, true]);
        assert_eq!(done(&start), [0]);
    }

    proptest! {
        /// Each update that is done is applied to exactly one replica that continues, and one of the last attempt always continues.
        #[test]
        fn each_update_that_is_done_is_in_one_replica(
            held in proptest::collection::vec((0..4_u64, any::<u64>()), 1..7),
        ) {
            let holdings: Vec<Option<ReplicaHolding>> = held
                .iter()
                .map(|(attempt, bits)| {
                    let applied = (0..70).map(|update| update < 64 && bits >> update & 1 == 1);
                    (*attempt > 0).then(|| ReplicaHolding {
                        round: ROUND,
                        attempt: *attempt,
                        applied: applied.collect(),
                    })
                })
                .collect();
            let start = GossipStart::decide(ROUND, &holdings);
            let kept = || holdings.iter().zip(&start.continues).filter(|(_, kept)| **kept);
            for update in 0..70 {
                let count = kept().filter(|(held, _)| held.as_ref().unwrap().applied[update]).count();
                prop_assert_eq!(count, usize::from(start.done[update]));
            }
            let last = holdings.iter().flatten().map(|held| held.attempt).max();
            let of_last = |held: &Option<ReplicaHolding>| held.as_ref().map(|held| held.attempt) == last;
            prop_assert!(last.is_none() || kept().any(|(held, _)| of_last(held)));
            prop_assert_eq!(start.source.is_some(), last.is_some());
        }
    }
}
