//! [`SlotLog`]: the updates that a slot of the state has applied, and the decision about each push.

use ronde_core::staleness::StalenessTally;
use ronde_core::words::WordReader;
use ronde_core::{BatchCounts, Step};

/// A round: pushes and holdings of any other one are foreign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ServedRound {
    /// The number of the round, which is a step of the run.
    pub step: Step,
    /// The hash of the weights at its start.
    pub start: u64,
    /// The number of its updates.
    pub updates: u32,
    /// The number of slots into which the state is divided.
    pub slots: u32,
}

impl ServedRound {
    pub(super) fn encode(&self, words: &mut Vec<u64>) {
        words.extend([self.step.0, self.start]);
        words.extend([u64::from(self.updates), u64::from(self.slots)]);
    }

    pub(super) fn decode(words: &mut WordReader<'_>) -> Option<Self> {
        Some(Self {
            step: Step(words.u64()?),
            start: words.u64()?,
            updates: words.u32()?,
            slots: words.u32()?,
        })
    }
}

/// The samples that an update was computed from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct UpdateSamples {
    /// The numbers of samples that were used, and of counted targets.
    pub counts: BatchCounts,
    /// The number of samples that could not be read.
    pub skipped: u64,
    /// The loss, summed over the counted targets.
    pub loss_sum: f64,
    /// The numbers of all its samples in the data set.
    pub sample_ids: Vec<u64>,
}

/// The description of a pushed gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PushHeader {
    /// The round.
    pub round: ServedRound,
    /// The attempt at the round that the push belongs to: see [`SlotLog::enter`].
    pub attempt: u64,
    /// The number of the update within the round.
    pub update: u32,
    /// The version of the slot that the gradient was computed from.
    pub base: u64,
    /// The rank of the worker.
    pub worker: u32,
}

/// The reason why a push is refused; it changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushProblem {
    /// The push is of another round, or of another state.
    #[error("the gradient belongs to another round")]
    OtherRound,
    /// The push is of a membership that has ended. Slots that it has reached may be lost, so it says nothing about them.
    #[error("the gradient was pushed before the members changed")]
    OtherAttempt,
    /// The round has no such update.
    #[error("the round has no such update")]
    UnknownUpdate,
    /// The slot has no such version yet.
    #[error("the gradient was computed from a version that does not exist")]
    UnknownVersion,
    /// More updates were applied since the pull than the run allows.
    #[error(
        "{staleness} updates were applied since the weights were fetched, and the limit is {limit}"
    )]
    TooStale {
        /// The updates since the pull.
        staleness: u64,
        /// The most that the run allows.
        limit: u64,
    },
    /// A value is NaN or infinite.
    #[error("the gradient is not finite")]
    NotFinite,
}

/// The decision about a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushVerdict {
    /// The gradient is applied as the next version.
    Apply {
        /// The number of updates that were applied since the pull.
        staleness: u64,
        /// The version before it.
        version: u64,
    },
    /// The update was applied before.
    Repeated,
    /// The gradient is not used.
    Refused(PushProblem),
}

/// The updates that one slot has applied in a round.
#[derive(Debug, Clone, PartialEq)]
pub struct SlotLog {
    round: ServedRound,
    staleness_max: Option<u64>,
    attempt: u64,
    version: u64,
    reports: Vec<Option<UpdateSamples>>,
    staleness: StalenessTally,
}

impl SlotLog {
    /// Creates the log of a slot at the start of a round. Gradients that are staler than `staleness_max` are refused.
    #[must_use]
    pub fn new(round: ServedRound, staleness_max: Option<u64>) -> Self {
        Self {
            round,
            staleness_max,
            attempt: 0,
            version: 0,
            reports: vec![None; round.updates as usize],
            staleness: StalenessTally::default(),
        }
    }

    /// Accepts the pushes of one attempt only from now on: the members of a round have a higher one after each failure.
    pub fn enter(&mut self, attempt: u64) {
        self.attempt = attempt;
    }

    /// Returns the round.
    #[must_use]
    pub fn round(&self) -> ServedRound {
        self.round
    }

    /// Returns the number of applied updates.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the reports of the applied updates, by their numbers; those of other slots than the first are empty.
    #[must_use]
    pub fn reports(&self) -> &[Option<UpdateSamples>] {
        &self.reports
    }

    /// Returns whether each update has been applied.
    #[must_use]
    pub fn applied(&self) -> Vec<bool> {
        self.reports.iter().map(Option::is_some).collect()
    }

    /// Returns the staleness of the applied gradients.
    #[must_use]
    pub fn staleness(&self) -> &StalenessTally {
        &self.staleness
    }

    /// Decides about a push. If it is to be applied, it counts as applied from now on.
    pub fn offer(
        &mut self,
        push: &PushHeader,
        is_finite: bool,
        report: UpdateSamples,
    ) -> PushVerdict {
        if push.round != self.round {
            return PushVerdict::Refused(PushProblem::OtherRound);
        }
        if push.attempt != self.attempt {
            return PushVerdict::Refused(PushProblem::OtherAttempt);
        }
        let Some(place) = self.reports.get_mut(push.update as usize) else {
            return PushVerdict::Refused(PushProblem::UnknownUpdate);
        };
        if place.is_some() {
            return PushVerdict::Repeated;
        }
        let Some(staleness) = self.version.checked_sub(push.base) else {
            return PushVerdict::Refused(PushProblem::UnknownVersion);
        };
        if let Some(limit) = self.staleness_max.filter(|limit| staleness > *limit) {
            return PushVerdict::Refused(PushProblem::TooStale { staleness, limit });
        }
        if !is_finite {
            return PushVerdict::Refused(PushProblem::NotFinite);
        }
        *place = Some(report);
        let version = self.version;
        self.version += 1;
        self.staleness.add(push.worker, staleness);
        PushVerdict::Apply { staleness, version }
    }

    /// Returns the log as numbers, for another server.
    #[must_use]
    pub fn encode(&self) -> Vec<u64> {
        let mut words = Vec::new();
        self.round.encode(&mut words);
        words.push(self.version);
        self.staleness.encode(&mut words);
        let applied = self.reports.iter().flatten().count();
        words.push(applied as u64);
        for (update, report) in self.reports.iter().enumerate() {
            let Some(report) = report else { continue };
            let BatchCounts { samples, targets } = report.counts;
            words.extend([update as u64, samples, targets, report.skipped]);
            words.extend([report.loss_sum.to_bits(), report.sample_ids.len() as u64]);
            words.extend(&report.sample_ids);
        }
        words
    }

    /// Reads a log of a round; `None` if it is not valid or of another round.
    #[must_use]
    pub fn decode(words: &[u64], round: ServedRound, staleness_max: Option<u64>) -> Option<Self> {
        let mut words = WordReader(words);
        let mut this = Self::new(round, staleness_max);
        if ServedRound::decode(&mut words)? != round {
            return None;
        }
        this.version = words.u64()?;
        this.staleness = StalenessTally::decode(&mut words)?;
        for _ in 0..words.u64()? {
            let place = this.reports.get_mut(words.u32()? as usize)?;
            let counts = BatchCounts {
                samples: words.u64()?,
                targets: words.u64()?,
            };
            let skipped = words.u64()?;
            let (loss_sum, ids) = (f64::from_bits(words.u64()?), words.u64()?);
            *place = Some(UpdateSamples {
                counts,
                skipped,
                loss_sum,
                sample_ids: words.take(ids)?.to_vec(),
            });
        }
        let applied = this.reports.iter().flatten().count() as u64;
        (words.0.is_empty() && applied == this.version).then_some(this)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: ServedRound = ServedRound {
        step: Step(3),
        start: 77,
        updates: 5,
        slots: 2,
    };

    fn push(update: u32, base: u64) -> PushHeader {
        PushHeader {
            round: ROUND,
            attempt: 0,
            update,
            base,
            worker: 1,
        }
    }

    #[test]
    fn each_update_is_applied_once_and_foreign_pushes_change_nothing() {
        let mut log = SlotLog::new(ROUND, Some(1));
        let report = UpdateSamples::default;
        let applied = |staleness, version| PushVerdict::Apply { staleness, version };
        assert_eq!(log.offer(&push(4, 0), true, report()), applied(0, 0));
        assert_eq!(
            log.offer(&push(4, 0), true, report()),
            PushVerdict::Repeated
        );
        assert_eq!(log.offer(&push(2, 0), true, report()), applied(1, 1));
        let unchanged = log.clone();
        let other = PushHeader {
            round: ServedRound { start: 78, ..ROUND },
            ..push(0, 2)
        };
        let too_stale = PushProblem::TooStale {
            staleness: 2,
            limit: 1,
        };
        let late = PushHeader {
            attempt: 1,
            ..push(0, 2)
        };
        for (header, is_finite, problem) in [
            (late, true, PushProblem::OtherAttempt),
            (push(5, 2), true, PushProblem::UnknownUpdate),
            (push(0, 3), true, PushProblem::UnknownVersion),
            (push(0, 0), true, too_stale),
            (push(0, 2), false, PushProblem::NotFinite),
            (other, true, PushProblem::OtherRound),
        ] {
            let verdict = log.offer(&header, is_finite, report());
            assert_eq!(verdict, PushVerdict::Refused(problem));
        }
        assert_eq!(log, unchanged);
        assert_eq!(log.applied(), [false, false, true, false, true]);
        let workers = log.staleness().workers();
        assert_eq!((workers[0].rank, &*workers[0].counts), (1, &[1, 1][..]));
        assert_eq!((workers[0].mean(), workers[0].most()), (0.5, 1));
    }

    #[test]
    fn a_log_survives_a_message_and_damage_is_refused() {
        let mut log = SlotLog::new(ROUND, None);
        for update in [3, 0] {
            let report = UpdateSamples {
                counts: BatchCounts {
                    samples: 7,
                    targets: 21,
                },
                skipped: 1,
                loss_sum: 0.5,
                sample_ids: vec![1, 2, u64::MAX],
            };
            log.offer(&push(update, 0), true, report);
        }
        let words = log.encode();
        assert_eq!(SlotLog::decode(&words, ROUND, None), Some(log));
        let other = ServedRound { slots: 3, ..ROUND };
        assert_eq!(SlotLog::decode(&words, other, None), None);
        for end in 0..words.len() {
            assert_eq!(SlotLog::decode(&words[..end], ROUND, None), None, "{end}");
        }
        for index in 0..words.len() {
            let mut damaged = words.clone();
            damaged[index] = u64::MAX;
            // Damage is refused or read as other numbers; it never ends the process.
            let _ = SlotLog::decode(&damaged, ROUND, None);
        }
    }
}
