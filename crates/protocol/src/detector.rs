//! [`FailureDetector`]: finds workers that have not reported for too long.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::membership::WorkerId;
use crate::time::Time;

/// A worker whose process is known to lack CPU time may be silent for this many times the limit.
const BUSY_FACTOR: u32 = 20;

/// The signs of life of one worker.
#[derive(Debug, Clone, Copy)]
struct SignsOfLife {
    reported: Time,
    /// The last report, or the last time at which the process was known to lack CPU time.
    alive: Time,
}

/// The signs of life of each worker, with a limit on the silence after them.
///
/// Silence alone does not distinguish a process that is stopped, hung or unreachable from one that
/// waits for a core, and on a host with many more workers than cores the latter is usual. The launcher
/// on the worker's host can distinguish the two; see [`FailureDetector::busy`].
#[derive(Debug, Clone)]
pub struct FailureDetector {
    limit: Duration,
    heard: BTreeMap<WorkerId, SignsOfLife>,
}

impl FailureDetector {
    /// Returns a detector that watches no worker yet; a silence above `limit` is a loss.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            heard: BTreeMap::new(),
        }
    }

    /// Records a report of a worker, or that one is expected from now on.
    pub fn heard(&mut self, worker: WorkerId, now: Time) {
        let new = SignsOfLife {
            reported: now,
            alive: now,
        };
        let signs = self.heard.entry(worker).or_insert(new);
        signs.reported = now.max(signs.reported);
        signs.alive = now.max(signs.alive);
    }

    /// Records that a worker's process lacks CPU time, so that its silence is not a failure yet. Has no
    /// effect on a worker that is not watched, or whose last report is too old.
    pub fn busy(&mut self, worker: WorkerId, now: Time) {
        let limit = self.limit * BUSY_FACTOR;
        if let Some(signs) = self.heard.get_mut(&worker)
            && now.since(signs.reported) <= limit
        {
            signs.alive = now.max(signs.alive);
        }
    }

    /// Stops watching a worker.
    pub fn forget(&mut self, worker: WorkerId) {
        self.heard.remove(&worker);
    }

    /// Removes the workers that have been silent for longer than the limit, and returns them with
    /// their silence.
    pub fn overdue(&mut self, now: Time) -> Vec<(WorkerId, Duration)> {
        let limit = self.limit;
        let late: Vec<(WorkerId, Duration)> = self
            .heard
            .iter()
            .filter(|(_, signs)| now.since(signs.alive) > limit)
            .map(|(&worker, signs)| (worker, now.since(signs.reported)))
            .collect();
        for (worker, _) in &late {
            self.heard.remove(worker);
        }
        late
    }

    /// Returns the time at which the next worker will be overdue unless it reports.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let first = self.heard.values().map(|signs| signs.alive).min()?;
        Some(first.after(self.limit + Duration::from_nanos(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_worker_is_reported_once_and_at_its_deadline() {
        let mut detector = FailureDetector::new(Duration::from_nanos(10));
        assert_eq!(detector.deadline(), None);
        detector.heard(WorkerId(1), Time(0));
        detector.heard(WorkerId(2), Time(5));
        detector.heard(WorkerId(2), Time(3));
        assert_eq!(detector.deadline(), Some(Time(11)));
        assert!(detector.overdue(Time(10)).is_empty());
        assert_eq!(
            detector.overdue(Time(11)),
            [(WorkerId(1), Duration::from_nanos(11))]
        );
        assert!(detector.overdue(Time(12)).is_empty());
        detector.forget(WorkerId(2));
        assert!(detector.overdue(Time(99)).is_empty());
    }

    #[test]
    fn a_worker_without_cpu_time_is_not_lost_up_to_a_limit() {
        let mut detector = FailureDetector::new(Duration::from_nanos(10));
        detector.heard(WorkerId(1), Time(0));
        detector.heard(WorkerId(2), Time(0));
        detector.busy(WorkerId(1), Time(8));
        detector.busy(WorkerId(3), Time(8));
        let lost = |worker, silence| [(WorkerId(worker), Duration::from_nanos(silence))];
        assert_eq!(detector.overdue(Time(11)), lost(2, 11));
        assert_eq!(detector.deadline(), Some(Time(19)));
        for at in (18..=200).step_by(10) {
            detector.busy(WorkerId(1), Time(at));
            assert!(detector.overdue(Time(at)).is_empty());
        }
        detector.busy(WorkerId(1), Time(201));
        assert_eq!(detector.overdue(Time(209)), lost(1, 209));
    }
}
