//! [`RoundPlacement`]: the ranks that serve the slots of the state, and those that compute.

use ronde_core::words::{WordReader, packed, unpacked};

use super::slot_log::{ServedRound, SlotLog};

/// A slot, or the copy of one, that a rank has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotHolding {
    /// The round in which its updates were applied.
    pub round: ServedRound,
    /// The number of the slot.
    pub slot: u32,
    /// The number of applied updates.
    pub version: u64,
    /// Whether each update of the round was applied.
    pub applied: Vec<bool>,
}

impl SlotHolding {
    /// Describes a slot by its log.
    #[must_use]
    pub fn of(slot: u32, log: &SlotLog) -> Self {
        Self {
            round: log.round(),
            slot,
            version: log.version(),
            applied: log.applied(),
        }
    }

    /// Returns the holdings of a rank as numbers: first how many numbers follow.
    #[must_use]
    pub fn encode_all(holdings: &[Self]) -> Vec<u64> {
        let mut words = vec![0, holdings.len() as u64];
        for holding in holdings {
            holding.round.encode(&mut words);
            words.extend([u64::from(holding.slot), holding.version]);
            words.extend(packed(&holding.applied));
        }
        words[0] = words.len() as u64 - 1;
        words
    }

    /// Reads the holdings of `ranks` ranks, one rank after the other; `None` if they are not valid.
    #[must_use]
    pub fn decode_all(words: &[u64], ranks: usize) -> Option<Vec<Vec<Self>>> {
        let mut all = WordReader(words);
        let mut of_ranks = Vec::new();
        for _ in 0..ranks {
            let len = all.u64()?;
            let mut words = WordReader(all.take(len)?);
            let mut holdings = Vec::new();
            for _ in 0..words.u64()? {
                let round = ServedRound::decode(&mut words)?;
                let (slot, version) = (words.u32()?, words.u64()?);
                let packed = words.take(u64::from(round.updates).div_ceil(64))?;
                holdings.push(Self {
                    round,
                    slot,
                    version,
                    applied: unpacked(packed, round.updates as usize),
                });
            }
            of_ranks.push(holdings);
        }
        all.0.is_empty().then_some(of_ranks)
    }
}

/// The settings of a placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementSettings {
    /// The number of ranks.
    pub ranks: usize,
    /// The number of ranks that have each slot, 1 or 2.
    pub copies: u32,
}

/// The holders of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotPlace {
    /// The rank that serves the slot.
    pub primary: usize,
    /// The rank that has a copy of it.
    pub copy: Option<usize>,
    /// The rank that has its newest version; `None`: the round starts from the state of the previous one.
    pub source: Option<usize>,
}

/// The roles of the ranks in a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoundPlacement {
    /// The holders of each slot.
    pub slots: Vec<SlotPlace>,
    /// The ranks that compute, in order.
    pub workers: Vec<usize>,
    /// Whether each update has been applied by all slots.
    pub done: Vec<bool>,
}

impl RoundPlacement {
    /// Decides about a round from the holdings of all ranks; pure, so all ranks get the same result.
    ///
    /// As many ranks serve as there are slots, but at least one computes; a single rank does both. A slot stays with the rank
    /// that has its newest version, if that rank serves. If no rank has some slot of the round, all slots start again from the
    /// state before the round, which every rank has.
    #[must_use]
    pub fn decide(
        round: ServedRound,
        settings: PlacementSettings,
        holdings: &[Vec<SlotHolding>],
    ) -> Self {
        let newest: Option<Vec<(usize, &SlotHolding)>> = (0..round.slots)
            .map(|slot| newest(round, slot, holdings))
            .collect();
        let servers = servers(round.slots as usize, settings.ranks, newest.as_deref());
        let mut loads = vec![0; servers.len()];
        let most = (round.slots as usize).div_ceil(servers.len());
        let mut primaries = vec![None; round.slots as usize];
        for (slot, primary) in primaries.iter_mut().enumerate() {
            let source = newest.as_ref().map(|newest| newest[slot].0);
            let at = servers.iter().position(|rank| Some(*rank) == source);
            if let Some(at) = at.filter(|at| loads[*at] < most) {
                loads[at] += 1;
                *primary = Some(at);
            }
        }
        let workers: Vec<usize> = match servers.len() < settings.ranks {
            true => (0..settings.ranks)
                .filter(|rank| !servers.contains(rank))
                .collect(),
            false => vec![0],
        };
        let slots = primaries.into_iter().enumerate().map(|(slot, primary)| {
            let at = primary.unwrap_or_else(|| {
                let least = (0..servers.len()).min_by_key(|at| loads[*at]).unwrap_or(0);
                loads[least] += 1;
                least
            });
            let primary = servers[at];
            let next = servers[(at + 1) % servers.len()];
            let other = if next == primary { workers[0] } else { next };
            SlotPlace {
                primary,
                copy: (settings.copies > 1 && other != primary).then_some(other),
                source: newest.as_ref().map(|newest| newest[slot].0),
            }
        });
        let slots = slots.collect();
        let done = (0..round.updates as usize).map(|update| {
            let applied = |newest: &Vec<(usize, &SlotHolding)>| {
                let mut slots = newest.iter();
                slots.all(|(_, holding)| holding.applied.get(update) == Some(&true))
            };
            newest.as_ref().is_some_and(applied)
        });
        Self {
            done: done.collect(),
            slots,
            workers,
        }
    }

    /// Returns the rank that has the leases.
    #[must_use]
    pub fn lead(&self) -> usize {
        self.slots.first().map_or(0, |slot| slot.primary)
    }
}

/// Returns the rank with the newest version of a slot; the first one if several have it.
fn newest(
    round: ServedRound,
    slot: u32,
    holdings: &[Vec<SlotHolding>],
) -> Option<(usize, &SlotHolding)> {
    let all = holdings.iter().enumerate();
    let all = all.flat_map(|(rank, held)| held.iter().map(move |holding| (rank, holding)));
    let of_slot = all.filter(|(_, holding)| holding.round == round && holding.slot == slot);
    of_slot.max_by_key(|(rank, holding)| (holding.version, std::cmp::Reverse(*rank)))
}

/// Returns the ranks that serve: those with the newest slots first, then the last ones.
fn servers(slots: usize, ranks: usize, newest: Option<&[(usize, &SlotHolding)]>) -> Vec<usize> {
    let count = slots.min(ranks.saturating_sub(1)).max(1);
    let mut servers: Vec<usize> = Vec::with_capacity(count);
    let holders = newest.into_iter().flatten().map(|(rank, _)| *rank);
    for rank in holders.chain((0..ranks.max(1)).rev()) {
        if servers.len() < count && !servers.contains(&rank) {
            servers.push(rank);
        }
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;
    use ronde_core::Step;

    const ROUND: ServedRound = ServedRound {
        step: Step(1),
        start: 5,
        updates: 70,
        slots: 2,
    };

    fn holding(slot: u32, applied: &[usize]) -> SlotHolding {
        SlotHolding {
            round: ROUND,
            slot,
            version: applied.len() as u64,
            applied: (0..70).map(|update| applied.contains(&update)).collect(),
        }
    }

    fn decide(ranks: usize, holdings: &[Vec<SlotHolding>]) -> RoundPlacement {
        let settings = PlacementSettings { ranks, copies: 2 };
        RoundPlacement::decide(ROUND, settings, holdings)
    }

    #[test]
    fn a_round_begins_with_the_last_ranks_as_servers() {
        let place = decide(4, &vec![Vec::new(); 4]);
        let slot = |primary, copy| SlotPlace {
            primary,
            copy: Some(copy),
            source: None,
        };
        assert_eq!(place.slots, [slot(3, 2), slot(2, 3)]);
        assert_eq!((place.workers.clone(), place.lead()), (vec![0, 1], 3));
        assert!(!place.done.contains(&true));
        // Two ranks: one computes, and has the copies.
        let place = decide(2, &vec![Vec::new(); 2]);
        assert_eq!(place.slots, [slot(1, 0), slot(1, 0)]);
        // A single rank does all.
        let place = decide(1, &[Vec::new()]);
        assert_eq!((place.slots[1].primary, place.slots[1].copy), (0, None));
        assert_eq!(place.workers, [0]);
    }

    #[test]
    fn the_newest_versions_continue_and_incomplete_updates_are_computed_again() {
        // Rank 0 has served slot 0; the copy of slot 1 at rank 2 lags behind.
        let holdings = vec![
            vec![holding(0, &[0, 1, 2])],
            Vec::new(),
            vec![holding(1, &[0, 2]), holding(0, &[0, 1])],
        ];
        let place = decide(3, &holdings);
        assert_eq!(
            (place.slots[0].primary, place.slots[0].source),
            (0, Some(0))
        );
        assert_eq!(
            (place.slots[1].primary, place.slots[1].source),
            (2, Some(2))
        );
        assert_eq!(place.slots[0].copy, Some(2));
        assert_eq!(place.workers, [1]);
        let done: Vec<usize> = (0..70).filter(|update| place.done[*update]).collect();
        assert_eq!(done, [0, 2]);
        let words: Vec<u64> = holdings
            .iter()
            .flat_map(|held| SlotHolding::encode_all(held))
            .collect();
        assert_eq!(SlotHolding::decode_all(&words, 3), Some(holdings));
        for end in 0..words.len() {
            assert_eq!(SlotHolding::decode_all(&words[..end], 3), None);
        }
    }

    #[test]
    fn a_round_starts_again_if_a_slot_is_lost_with_its_copy() {
        let mut other = holding(1, &[0]);
        other.round.start = 6;
        let place = decide(2, &[vec![holding(0, &[0, 1]), other], Vec::new()]);
        assert!(place.slots.iter().all(|slot| slot.source.is_none()));
        assert!(!place.done.contains(&true));
    }
}
