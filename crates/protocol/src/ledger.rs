//! [`Ledger`]: checks that each sample is used exactly once per epoch.
//!
//! Ids travel with the batches and are recorded after their backward pass, at the commit of their step.
//! The ledger therefore records which samples *were* used, not which ones were planned. Every vote carries
//! the ids, so every rank holds the whole ledger and the loss of a rank loses no entries.

use ronde_core::Epoch;

/// The numbers of used, missing and repeated samples of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochVerdict {
    /// The epoch.
    pub epoch: Epoch,
    /// The number of samples used exactly once.
    pub used_once: u64,
    /// The number of samples that should have been used but were not.
    pub missing: u64,
    /// The number of samples used more than once.
    pub repeated: u64,
}

impl EpochVerdict {
    /// Returns whether every expected sample was used exactly once.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.missing == 0 && self.repeated == 0
    }
}

/// The set of samples used in the current epoch. Memory: two bits per sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    samples: u64,
    expected: u64,
    epoch: Epoch,
    used: Vec<u64>,
    again: Vec<u64>,
}

impl Ledger {
    /// Creates a ledger for a data set of `samples` samples; an epoch should use `expected` of them.
    #[must_use]
    pub fn new(samples: u64, expected: u64) -> Self {
        let words = samples.div_ceil(64) as usize;
        Self {
            samples,
            expected,
            epoch: Epoch(0),
            used: vec![0; words],
            again: vec![0; words],
        }
    }

    /// Returns the current epoch.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Records that samples were used in the current epoch.
    ///
    /// # Errors
    /// The first id that is not in the data set; the ledger is then unchanged.
    pub fn enter(&mut self, ids: &[u64]) -> Result<(), u64> {
        if let Some(&id) = ids.iter().find(|&&id| id >= self.samples) {
            return Err(id);
        }
        for &id in ids {
            let (word, bit) = ((id / 64) as usize, 1 << (id % 64));
            self.again[word] |= self.used[word] & bit;
            self.used[word] |= bit;
        }
        Ok(())
    }

    /// Returns the numbers of used, missing and repeated samples so far.
    #[must_use]
    pub fn verdict(&self) -> EpochVerdict {
        let count = |words: &[u64]| words.iter().map(|w| u64::from(w.count_ones())).sum::<u64>();
        let (used, repeated) = (count(&self.used), count(&self.again));
        EpochVerdict {
            epoch: self.epoch,
            used_once: used - repeated,
            missing: self.expected.saturating_sub(used),
            repeated,
        }
    }

    /// Returns the contents as words, for a rank that copies the state: the epoch, the used samples, the repeated
    /// samples.
    pub(crate) fn words(&self) -> Vec<u64> {
        let mut words = vec![self.epoch.0];
        words.extend(&self.used);
        words.extend(&self.again);
        words
    }

    /// Replaces the contents with the result of [`Ledger::words`]. Returns false and changes nothing if the words
    /// belong to another data set.
    pub(crate) fn take_over(&mut self, words: &[u64]) -> bool {
        let Some((&epoch, bits)) = words.split_first() else {
            return false;
        };
        if bits.len() != 2 * self.used.len() {
            return false;
        }
        let (used, again) = bits.split_at(self.used.len());
        self.epoch = Epoch(epoch);
        self.used.copy_from_slice(used);
        self.again.copy_from_slice(again);
        true
    }

    /// Ends the epoch, returns its verdict, and begins the next epoch.
    pub fn finish_epoch(&mut self) -> EpochVerdict {
        let verdict = self.verdict();
        self.used.fill(0);
        self.again.fill(0);
        self.epoch = self.epoch.next();
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_and_repeated_samples_are_counted_separately() {
        let mut ledger = Ledger::new(130, 130);
        ledger.enter(&(0..130).collect::<Vec<_>>()).unwrap();
        assert!(ledger.finish_epoch().is_exact());
        ledger.enter(&(0..100).collect::<Vec<_>>()).unwrap();
        ledger.enter(&[5, 5, 129]).unwrap();
        let verdict = ledger.finish_epoch();
        assert_eq!(
            (verdict.used_once, verdict.missing, verdict.repeated),
            (100, 29, 1)
        );
        assert_eq!(verdict.epoch, Epoch(1));
        assert_eq!(ledger.enter(&[0, 130]), Err(130));
        assert_eq!(ledger.verdict().missing, 130);
    }
}
