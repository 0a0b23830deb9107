//! [`UpdateLog`]: the updates that the replica of one rank has applied in a round.

use std::collections::BTreeMap;

use ronde_core::words::WordReader;
use ronde_core::{BatchCounts, Step};

use crate::served::UpdateSamples;

/// A round: replicas of any other one are foreign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GossipRound {
    /// The number of the round, which is a step of the run.
    pub step: Step,
    /// The hash of the weights at its start.
    pub start: u64,
    /// The number of its updates.
    pub updates: u32,
}

impl GossipRound {
    pub(super) fn encode(&self, words: &mut Vec<u64>) {
        words.extend([self.step.0, self.start, self.updates.into()]);
    }

    pub(super) fn decode(words: &mut WordReader<'_>) -> Option<Self> {
        Some(Self {
            step: Step(words.u64()?),
            start: words.u64()?,
            updates: words.u32()?,
        })
    }
}

/// The updates of a replica, with their samples.
#[derive(Debug, Clone, PartialEq)]
pub struct UpdateLog {
    round: GossipRound,
    attempt: u64,
    updates: BTreeMap<u32, UpdateSamples>,
}

impl UpdateLog {
    /// Creates the log of a replica at the start of a round.
    #[must_use]
    pub fn new(round: GossipRound) -> Self {
        Self {
            round,
            attempt: 0,
            updates: BTreeMap::new(),
        }
    }

    /// Takes part in an attempt at the round: the members have a higher one after each failure.
    pub fn enter(&mut self, attempt: u64) {
        self.attempt = attempt;
    }

    /// Returns the round.
    #[must_use]
    pub fn round(&self) -> GossipRound {
        self.round
    }

    /// Returns the last attempt that the replica took part in.
    #[must_use]
    pub fn attempt(&self) -> u64 {
        self.attempt
    }

    /// Notes an update that the replica has applied. Returns whether it is of the round and was not applied before.
    pub fn insert(&mut self, update: u32, samples: UpdateSamples) -> bool {
        let is_new = update < self.round.updates && !self.updates.contains_key(&update);
        if is_new {
            self.updates.insert(update, samples);
        }
        is_new
    }

    /// Returns the number of applied updates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.updates.len()
    }

    /// Returns whether no update was applied.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.updates.is_empty()
    }

    /// Returns whether each update of the round was applied.
    #[must_use]
    pub fn applied(&self) -> Vec<bool> {
        let all = 0..self.round.updates;
        all.map(|update| self.updates.contains_key(&update))
            .collect()
    }

    /// Returns the numbers of the samples of all applied updates.
    #[must_use]
    pub fn sample_ids(&self) -> Vec<u64> {
        let each = self.updates.values();
        each.flat_map(|samples| &samples.sample_ids)
            .copied()
            .collect()
    }

    /// Returns the numbers of samples and counted targets of all applied updates.
    #[must_use]
    pub fn counts(&self) -> BatchCounts {
        self.updates.values().map(|of| of.counts).sum()
    }

    /// Returns the applied updates for the other ranks, without the numbers of their samples.
    #[must_use]
    pub fn logged(&self) -> Vec<LoggedUpdate> {
        let each = self.updates.iter();
        each.map(|(update, of)| LoggedUpdate {
            update: *update,
            counts: of.counts,
            skipped: of.skipped,
            loss_sum: of.loss_sum,
        })
        .collect()
    }
}

/// An update that some replica has applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoggedUpdate {
    /// Its number within the round.
    pub update: u32,
    /// The numbers of its samples that were used, and of its counted targets.
    pub counts: BatchCounts,
    /// The number of its samples that could not be read.
    pub skipped: u64,
    /// The loss, summed over the counted targets.
    pub loss_sum: f64,
}

impl LoggedUpdate {
    /// The number of words of an update in a message.
    pub const WORDS: usize = 5;

    /// Returns the update as numbers.
    #[must_use]
    pub fn encode(&self) -> [u64; Self::WORDS] {
        let BatchCounts { samples, targets } = self.counts;
        let loss = self.loss_sum.to_bits();
        [self.update.into(), samples, targets, self.skipped, loss]
    }

    /// Reads an update; `None` if the numbers are not valid.
    #[must_use]
    pub fn decode(words: [u64; Self::WORDS]) -> Option<Self> {
        Some(Self {
            update: u32::try_from(words[0]).ok()?,
            counts: BatchCounts {
                samples: words[1],
                targets: words[2],
            },
            skipped: words[3],
            loss_sum: f64::from_bits(words[4]),
        })
    }
}

/// The reason why the logs of all ranks are not those of a complete round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeProblem {
    /// No replica has an update.
    #[error("no worker has computed update {0} of the round")]
    Missing(u32),
    /// Two replicas have an update.
    #[error("two workers have computed update {0} of the round")]
    Repeated(u32),
    /// The round has no such update.
    #[error("the round has no update {0}")]
    Unknown(u32),
}

/// Merges the logs of all ranks at the end of a round of `updates` updates: returns each update once, in their order.
///
/// # Errors
/// An update is missing, repeated or unknown.
pub fn merge_updates(
    updates: u32,
    logs: impl IntoIterator<Item = LoggedUpdate>,
) -> Result<Vec<LoggedUpdate>, MergeProblem> {
    let mut all = vec![None; updates as usize];
    for logged in logs {
        let update = logged.update;
        let place = all.get_mut(update as usize);
        let place = place.ok_or(MergeProblem::Unknown(update))?;
        if place.replace(logged).is_some() {
            return Err(MergeProblem::Repeated(update));
        }
    }
    let numbered = all.into_iter().zip(0..);
    numbered
        .map(|(logged, update)| logged.ok_or(MergeProblem::Missing(update)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: GossipRound = GossipRound {
        step: Step(2),
        start: 9,
        updates: 4,
    };

    fn samples(ids: &[u64]) -> UpdateSamples {
        UpdateSamples {
            counts: BatchCounts {
                samples: ids.len() as u64,
                targets: 2 * ids.len() as u64,
            },
            skipped: 0,
            loss_sum: 0.5,
            sample_ids: ids.to_vec(),
        }
    }

    #[test]
    fn logs_of_all_ranks_make_a_round() {
        let (mut first, mut second) = (UpdateLog::new(ROUND), UpdateLog::new(ROUND));
        assert!(first.is_empty() && first.insert(3, samples(&[7])));
        assert!(first.insert(0, samples(&[1, 2])));
        assert!(!first.insert(0, samples(&[1, 2])), "once");
        assert!(!first.insert(4, samples(&[])), "of the round");
        assert_eq!(first.applied(), [true, false, false, true]);
        assert_eq!(
            (first.sample_ids(), first.counts().samples),
            (vec![1, 2, 7], 3)
        );
        second.insert(1, samples(&[4]));
        let both = |first: &UpdateLog, second: &UpdateLog| {
            let all = first.logged().into_iter().chain(second.logged());
            let words = all.map(|update| update.encode());
            merge_updates(4, words.filter_map(LoggedUpdate::decode))
        };
        assert_eq!(both(&first, &second), Err(MergeProblem::Missing(2)));
        second.insert(2, samples(&[]));
        let merged = both(&first, &second).unwrap();
        assert!(merged.iter().map(|one| one.update).eq(0..4));
        second.insert(3, samples(&[7]));
        assert_eq!(both(&first, &second), Err(MergeProblem::Repeated(3)));
        let unknown = LoggedUpdate {
            update: 4,
            ..merged[0]
        };
        assert_eq!(merge_updates(4, [unknown]), Err(MergeProblem::Unknown(4)));
    }
}
