//! [`ExchangeBook`]: the exchanges of one rank, and the decision about each one that another rank begins.

use std::collections::BTreeMap;

use super::Pairings;

/// An exchange that a rank begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairExchange {
    /// The other rank.
    pub partner: u32,
    /// The number of the exchange.
    pub number: u64,
}

/// The decision about an exchange that another rank has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeVerdict {
    /// Both replicas become their mean.
    Average,
    /// This rank waits for the answer to another exchange, until which its replica must not change.
    Busy,
    /// Both ranks have begun an exchange with each other: that of the lower rank counts.
    Crossed,
    /// The exchange was answered before.
    Repeated,
    /// The two have met in this exchange or a later one, or they are not a pair.
    Declined,
}

/// The exchanges of a rank in a round.
///
/// A rank never waits for more than one answer, and answers at once, also while it waits; so ranks cannot wait for each other in a
/// circle. While a rank waits, its replica does not change, so both ends of an exchange have the same mean.
#[derive(Debug, Clone)]
pub struct ExchangeBook {
    rank: u32,
    pairings: Pairings,
    next: u64,
    under_way: Option<PairExchange>,
    /// The last exchange that was answered for each rank.
    answered: BTreeMap<u32, u64>,
    /// The last exchange in which this rank has met each one.
    met: BTreeMap<u32, u64>,
    averaged: u64,
    missed: u64,
}

impl ExchangeBook {
    /// Creates the book of a rank.
    #[must_use]
    pub fn new(rank: u32, pairings: Pairings) -> Self {
        Self {
            rank,
            pairings,
            next: 0,
            under_way: None,
            answered: BTreeMap::new(),
            met: BTreeMap::new(),
            averaged: 0,
            missed: 0,
        }
    }

    /// Begins this rank's next exchange. `None`: it has no partner in it, or the partner has begun it earlier.
    pub fn begin(&mut self) -> Option<PairExchange> {
        let number = self.next;
        self.next += 1;
        let partner = self.pairings.partner(self.rank, number)?;
        if self.has_met(partner, number) {
            return None;
        }
        self.under_way = Some(PairExchange { partner, number });
        self.under_way
    }

    fn has_met(&self, partner: u32, number: u64) -> bool {
        self.met.get(&partner).is_some_and(|last| *last >= number)
    }

    /// Returns the exchange whose answer this rank waits for.
    #[must_use]
    pub fn under_way(&self) -> Option<PairExchange> {
        self.under_way
    }

    /// Ends the exchange that this rank has begun: with the mean, or without an effect.
    pub fn end(&mut self, is_averaged: bool) {
        let Some(PairExchange { partner, number }) = self.under_way.take() else {
            return;
        };
        if is_averaged {
            self.meet(partner, number);
            self.averaged += 1;
        } else {
            self.missed += 1;
        }
    }

    fn meet(&mut self, partner: u32, number: u64) {
        let last = self.met.entry(partner).or_insert(number);
        *last = number.max(*last);
    }

    /// Decides about an exchange that another rank has begun. After [`ExchangeVerdict::Average`] the caller averages at once.
    pub fn offer(&mut self, from: u32, number: u64) -> ExchangeVerdict {
        if self.pairings.partner(self.rank, number) != Some(from) {
            return ExchangeVerdict::Declined;
        }
        match self.answered.get(&from) {
            Some(last) if *last == number => return ExchangeVerdict::Repeated,
            Some(last) if *last > number => return ExchangeVerdict::Declined,
            _ => {}
        }
        if self.has_met(from, number) {
            return ExchangeVerdict::Declined;
        }
        // Each exchange is answered once: a late repetition must not have an effect at one end only.
        self.answered.insert(from, number);
        match self.under_way {
            // Also for another exchange with the same rank: it may have answered this one already.
            Some(own) if (own.partner, own.number) != (from, number) => {
                return ExchangeVerdict::Busy;
            }
            Some(_) if self.rank < from => return ExchangeVerdict::Crossed,
            _ => {}
        }
        self.meet(from, number);
        ExchangeVerdict::Average
    }

    /// Returns the number of exchanges that this rank has begun and that had an effect.
    #[must_use]
    pub fn averaged(&self) -> u64 {
        self.averaged
    }

    /// Returns the number of exchanges that this rank has begun without an effect: the partner was waiting for another rank, or has begun
    /// the same one.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ronde_core::Step;
    use ronde_core::seed::SeedTree;

    fn books(ranks: u32) -> Vec<ExchangeBook> {
        let pairings = Pairings::new(SeedTree::new(7), Step(0), ranks);
        let ranks = 0..ranks;
        ranks
            .map(|rank| ExchangeBook::new(rank, pairings))
            .collect()
    }

    #[test]
    fn a_pair_meets_once_whoever_begins() {
        let mut books = books(4);
        let own = books[2].begin().unwrap();
        let partner = own.partner as usize;
        assert_eq!(books[partner].offer(2, 0), ExchangeVerdict::Average);
        assert_eq!(books[partner].offer(2, 0), ExchangeVerdict::Repeated);
        books[2].end(true);
        assert_eq!((books[2].averaged(), books[2].missed()), (1, 0));
        // The partner arrives later, and has nothing to do.
        assert_eq!(books[partner].begin(), None);
        assert_eq!(books[2].offer(own.partner, 0), ExchangeVerdict::Declined);
        let other = (0..4).find(|rank| *rank != 2 && *rank != own.partner);
        assert_eq!(
            books[2].offer(other.unwrap(), 0),
            ExchangeVerdict::Declined,
            "no pair"
        );
    }

    #[test]
    fn of_two_that_begin_at_once_the_lower_one_counts() {
        let mut books = books(2);
        let (low, high) = (books[0].begin().unwrap(), books[1].begin().unwrap());
        assert_eq!((low.partner, high.partner), (1, 0));
        assert_eq!(books[0].offer(1, 0), ExchangeVerdict::Crossed);
        assert_eq!(books[1].offer(0, 0), ExchangeVerdict::Average);
        books[1].end(false);
        books[0].end(true);
        assert_eq!((books[1].averaged(), books[1].missed()), (0, 1));
        assert_eq!((books[0].averaged(), books[0].missed()), (1, 0));
    }

    #[test]
    fn a_rank_that_waits_for_another_one_is_busy() {
        let mut books = books(4);
        let own = books[0].begin().unwrap();
        let later = (1..3).find_map(|number| {
            let partner = books[0].pairings.partner(0, number)?;
            (partner != own.partner).then_some((partner, number))
        });
        let (third, number) = later.unwrap();
        assert_eq!(books[0].offer(third, number), ExchangeVerdict::Busy);
        books[0].end(false);
        assert_eq!(books[0].missed(), 1);
        assert_eq!(books[0].offer(third, number), ExchangeVerdict::Repeated);
        let (fourth, later) = (number + 1..6)
            .find_map(|number| Some((books[0].pairings.partner(0, number)?, number)))
            .unwrap();
        assert_eq!(books[0].offer(fourth, later), ExchangeVerdict::Average);
    }
}
