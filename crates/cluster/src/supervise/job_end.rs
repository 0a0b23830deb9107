//! Workers that still run when the coordinator reports the end of the job, because they were
//! stopped or hung at that time.

use std::collections::BTreeMap;
use std::time::Duration;

use ronde_core::Rank;
use ronde_protocol::{Reason, ToWorker, WorkerPhase, WorkerReport};

use super::Supervisor;
use crate::launcher::StopSignal;

/// The time and the phase of each worker's last report, and how the job ended.
#[derive(Default)]
pub(super) struct LastReports {
    heard: BTreeMap<Rank, (Duration, WorkerPhase)>,
    reason: Option<Reason>,
}

impl LastReports {
    /// Records a worker's report. Returns the reason for the end of the job if it is over.
    pub(super) fn heard(
        &mut self,
        rank: Rank,
        phase: WorkerPhase,
        now: Duration,
    ) -> Option<Reason> {
        self.heard.insert(rank, (now, phase));
        self.reason.clone()
    }

    /// Forgets a rank that is taken over by another process.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.heard.remove(&rank);
    }

    /// Returns whether a worker has ever reported.
    pub(super) fn has_reported(&self, rank: Rank) -> bool {
        self.heard.contains_key(&rank)
    }

    /// Returns whether the job is over.
    pub(super) fn is_over(&self) -> bool {
        self.reason.is_some()
    }

    /// Returns whether a worker has been silent for longer than `silence`.
    pub(super) fn is_silent(&self, rank: Rank, now: Duration, silence: Duration) -> bool {
        let heard = self.heard.get(&rank);
        heard.is_some_and(|(at, _)| now.saturating_sub(*at) > silence)
    }

    /// Returns whether a worker has reported that its part of the run is complete. It reports no more
    /// once it knows that the job is over, and its program may still use the result.
    fn is_complete(&self, rank: Rank) -> bool {
        let heard = self.heard.get(&rank);
        heard.is_some_and(|(_, phase)| *phase == WorkerPhase::Complete)
    }
}

impl Supervisor<'_> {
    /// Handles the end of the job. The members know about it; a silent member, which is stopped or
    /// hung, is terminated so that it does not delay the end.
    pub(super) fn end_silent_workers(&mut self, reason: Reason) {
        if self.last_words.is_over() {
            return;
        }
        self.last_words.reason = Some(reason);
        let now = self.now();
        let silence = self.coordination.settings().silence;
        for rank in self.endings.running() {
            if self.last_words.is_silent(rank, now, silence) && !self.last_words.is_complete(rank) {
                self.roster.signalled(rank, StopSignal::Terminate);
                self.endings.sent(rank, StopSignal::Terminate, now);
                self.launcher.signal(rank, StopSignal::Terminate);
            }
        }
    }

    /// Notifies a worker that reports after the end of the job.
    pub(super) fn send_end(&self, rank: Rank, report: &WorkerReport, reason: Reason) {
        let term = report.term;
        self.control
            .send_to_worker(rank, ToWorker::End { term, reason });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_workers_that_were_silent_before_the_end_are_terminated() {
        let ms = Duration::from_millis;
        let mut words = LastReports::default();
        let training = WorkerPhase::Training;
        assert_eq!(words.heard(Rank(0), training, ms(100)), None);
        words.heard(Rank(1), training, ms(1500));
        words.heard(Rank(2), training, ms(100));
        words.heard(Rank(4), WorkerPhase::Complete, ms(100));
        words.forget(Rank(2));
        let silent = |rank| words.is_silent(Rank(rank), ms(2000), ms(1000));
        assert_eq!([0, 1, 2, 3].map(silent), [true, false, false, false]);
        let complete = |rank| words.is_complete(Rank(rank));
        assert_eq!([0, 2, 3, 4].map(complete), [false, false, false, true]);
        assert!(!words.is_over());
        words.reason = Some(Reason::Drained);
        assert_eq!(
            words.heard(Rank(3), training, ms(2500)),
            Some(Reason::Drained)
        );
    }
}
