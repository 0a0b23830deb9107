//! [`FailureDetector`]: finds workers that have not reported for too long.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Time, WorkerId};

/// The time of each worker's last report, with a limit on the silence after it.
#[derive(Debug, Clone)]
pub struct FailureDetector {
    limit: Duration,
    heard: BTreeMap<WorkerId, Time>,
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
        let at = self.heard.entry(worker).or_insert(now);
        *at = now.max(*at);
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
            .map(|(&worker, &at)| (worker, now.since(at)))
            .filter(|(_, silence)| *silence > limit)
            .collect();
        for (worker, _) in &late {
            self.heard.remove(worker);
        }
        late
    }

    /// Returns the time at which the next worker will be overdue unless it reports.
    #[must_use]
    pub fn deadline(&self) -> Option<Time> {
        let first = self.heard.values().min()?;
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
}
