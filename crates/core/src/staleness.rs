//! [`StalenessTally`]: how many updates were applied between the pull and the push of each worker's gradients.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::words::WordReader;

/// The number of a worker's counts: one for each staleness, and the last one for all higher ones.
pub const STALENESS_COUNTS: usize = 65;

/// The staleness of one worker's gradients in a round.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct WorkerStaleness {
    /// The rank of the worker.
    pub rank: u32,
    /// The number of gradients by staleness: the updates that were applied between their pull and their push. The last of
    /// [`STALENESS_COUNTS`] counts has all higher ones; zeros at the end are left out.
    pub counts: Vec<u64>,
}

impl WorkerStaleness {
    /// Returns the number of gradients.
    #[must_use]
    pub fn updates(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the mean staleness; 0 without gradients.
    #[must_use]
    pub fn mean(&self) -> f64 {
        let each = self.counts.iter().enumerate();
        let sum: u64 = each
            .map(|(staleness, count)| staleness as u64 * count)
            .sum();
        sum as f64 / self.updates().max(1) as f64
    }

    /// Returns the highest staleness; 0 without gradients.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.counts.len().saturating_sub(1) as u64
    }
}

/// The staleness of all workers' gradients in a round.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StalenessTally {
    counts: BTreeMap<u32, Vec<u64>>,
}

impl StalenessTally {
    /// Adds the gradients of other rounds.
    pub fn merge(&mut self, workers: &[WorkerStaleness]) {
        for WorkerStaleness { rank, counts } in workers {
            let own = self.counts.entry(*rank).or_default();
            if own.len() < counts.len() {
                own.resize(counts.len().min(STALENESS_COUNTS), 0);
            }
            for (own, count) in own.iter_mut().zip(counts) {
                *own += count;
            }
        }
    }

    /// Counts a gradient of a worker.
    pub fn add(&mut self, rank: u32, staleness: u64) {
        let counts = self.counts.entry(rank).or_default();
        let index = usize::try_from(staleness).unwrap_or(usize::MAX);
        let index = index.min(STALENESS_COUNTS - 1);
        if counts.len() <= index {
            counts.resize(index + 1, 0);
        }
        counts[index] += 1;
    }

    /// Returns the staleness of each worker, by rank.
    #[must_use]
    pub fn workers(&self) -> Vec<WorkerStaleness> {
        let each = self.counts.iter();
        each.map(|(rank, counts)| WorkerStaleness {
            rank: *rank,
            counts: counts.clone(),
        })
        .collect()
    }

    /// Appends the tally to a message.
    pub fn encode(&self, words: &mut Vec<u64>) {
        words.push(self.counts.len() as u64);
        for (rank, counts) in &self.counts {
            words.extend([u64::from(*rank), counts.len() as u64]);
            words.extend(counts);
        }
    }

    /// Reads a tally; `None` if the message is not valid.
    pub fn decode(words: &mut WordReader<'_>) -> Option<Self> {
        let mut counts = BTreeMap::new();
        for _ in 0..words.u64()? {
            let rank = words.u32()?;
            let len = words.u64()?;
            if len > STALENESS_COUNTS as u64 {
                return None;
            }
            counts.insert(rank, words.take(len)?.to_vec());
        }
        Some(Self { counts })
    }
}
