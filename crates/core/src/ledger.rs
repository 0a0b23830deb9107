//! [`Ledger`]: proof that each sample was used exactly once an epoch.
//!
//! Ids travel with the batches and are entered after their backward pass, at the commit of their
//! step; so the ledger says what *was* used, not what was planned. Every rank holds the whole
//! ledger, because every vote carries the ids: a rank that dies takes nothing with it.

use crate::Epoch;

/// What became of the samples of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochVerdict {
    /// Which epoch.
    pub epoch: Epoch,
    /// Samples used exactly once.
    pub used_once: u64,
    /// Samples that should have been used and were not.
    pub missing: u64,
    /// Samples used more than once.
    pub repeated: u64,
}

impl EpochVerdict {
    /// Whether every expected sample was used exactly once.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.missing == 0 && self.repeated == 0
    }
}

/// Which samples of the current epoch have been used. Memory: two bits a sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ledger {
    samples: u64,
    expected: u64,
    epoch: Epoch,
    used: Vec<u64>,
    again: Vec<u64>,
}

impl Ledger {
    /// A ledger for a data set of `samples`, of which an epoch should use `expected`.
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

    /// The epoch being counted.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Notes that samples were used in the current epoch.
    ///
    /// # Errors
    /// An id that is not in the data set, by number; nothing is noted then.
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

    /// What has become of the samples so far.
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

    /// Its contents as words, for a rank that has none: epoch, then the used and the repeated samples.
    pub(crate) fn words(&self) -> Vec<u64> {
        let mut words = vec![self.epoch.0];
        words.extend(&self.used);
        words.extend(&self.again);
        words
    }

    /// Takes over what [`Ledger::words`] gave; false, and nothing is changed, when it is of another
    /// data set.
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

    /// Closes the epoch and opens the next.
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
    fn missing_and_repeated_samples_are_told_apart() {
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
