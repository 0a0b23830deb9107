//! What a [`Supervisor`] does with workers that are still there when the coordinator has said that the job is
//! over: those that slept through its end.

use std::collections::BTreeMap;
use std::time::Duration;

use ronde_core::Rank;
use ronde_elastic::{Reason, WorkerReport, ToWorker};

use super::Supervisor;
use crate::launcher::StopSignal;

/// When each worker was heard last, and how the job ended.
#[derive(Default)]
pub(super) struct LastWords {
    heard: BTreeMap<Rank, Duration>,
    reason: Option<Reason>,
}

impl LastWords {
    /// A worker reports. When the job is over: why.
    pub(super) fn heard(&mut self, rank: Rank, now: Duration) -> Option<Reason> {
        self.heard.insert(rank, now);
        self.reason.clone()
    }

    /// Another process takes a place.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.heard.remove(&rank);
    }

    /// Whether the job is over.
    pub(super) fn is_over(&self) -> bool {
        self.reason.is_some()
    }

    /// Whether a worker was silent for too long.
    fn is_silent(&self, rank: Rank, now: Duration, silence: Duration) -> bool {
        let heard = self.heard.get(&rank);
        heard.is_some_and(|at| now.saturating_sub(*at) > silence)
    }
}

impl Supervisor<'_> {
    /// The coordinator has said that the job is over. Its members know; whoever has been silent, because it is
    /// stopped or hangs, must not keep the others from their end.
    pub(super) fn let_go(&mut self, reason: Reason) {
        if self.last_words.is_over() {
            return;
        }
        self.last_words.reason = Some(reason);
        let now = self.now();
        let Some(silence) = self.coordination.as_ref().map(|decider| decider.silence()) else {
            return;
        };
        for rank in self.endings.running() {
            if self.last_words.is_silent(rank, now, silence) {
                self.roster.told(rank, StopSignal::Terminate);
                self.endings.sent(rank, StopSignal::Terminate, now);
                self.launcher.signal(rank, StopSignal::Terminate);
            }
        }
    }

    /// A worker that reports after the end hears of it.
    pub(super) fn tell_end(&self, rank: Rank, report: &WorkerReport, reason: Reason) {
        let term = report.term;
        self.control.tell(rank, ToWorker::End { term, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_was_silent_before_the_end_is_told_from_whoever_is_starting() {
        let ms = Duration::from_millis;
        let mut words = LastWords::default();
        assert_eq!(words.heard(Rank(0), ms(100)), None);
        words.heard(Rank(1), ms(1500));
        words.heard(Rank(2), ms(100));
        words.forget(Rank(2));
        let silent = |rank| words.is_silent(Rank(rank), ms(2000), ms(1000));
        assert_eq!([0, 1, 2, 3].map(silent), [true, false, false, false]);
        assert!(!words.is_over());
        words.reason = Some(Reason::Drained);
        assert_eq!(words.heard(Rank(3), ms(2500)), Some(Reason::Drained));
    }
}
