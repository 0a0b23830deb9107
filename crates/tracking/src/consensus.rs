//! [`ConsensusTally`]: the distance of replicas that average in pairs, and the cost of their exchanges.

/// The rounds of a run in which replicas average in pairs.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ConsensusTally {
    /// The number of rounds.
    pub rounds: u64,
    /// The distance at the end of the last round: see `Event::ReplicasAveraged`.
    pub last: f64,
    /// The greatest distance at the end of a round.
    pub most: f64,
    /// The number of exchanges with an effect.
    pub exchanges: u64,
    /// The number of exchanges without one.
    pub missed: u64,
    /// The bytes of both.
    pub bytes: u64,
}

impl ConsensusTally {
    /// Adds a round.
    pub(crate) fn add(&mut self, distance: f64, (exchanges, missed): (u64, u64), bytes: u64) {
        self.rounds += 1;
        self.last = distance;
        self.most = self.most.max(distance);
        self.exchanges += exchanges;
        self.missed += missed;
        self.bytes += bytes;
    }

    /// Returns the mean bytes of an exchange, both ways; 0 without exchanges.
    #[must_use]
    pub fn bytes_each(&self) -> u64 {
        self.bytes / (self.exchanges + self.missed).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_added() {
        let mut tally = ConsensusTally::default();
        assert_eq!(tally.bytes_each(), 0);
        tally.add(0.5, (3, 1), 700);
        tally.add(0.25, (4, 0), 800);
        assert_eq!((tally.rounds, tally.last, tally.most), (2, 0.25, 0.5));
        assert_eq!((tally.exchanges, tally.missed), (7, 1));
        assert_eq!(tally.bytes_each(), 187);
    }
}
