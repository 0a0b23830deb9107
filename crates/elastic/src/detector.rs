//! [`Detector`]: who was heard when, and who has been silent for too long.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Time, WorkerId};

/// Deadlines of silence.
#[derive(Debug, Clone)]
pub struct Detector {
    limit: Duration,
    heard: BTreeMap<WorkerId, Time>,
}

impl Detector {
    /// Nobody is watched yet; a silence longer than `limit` is a loss.
    #[must_use]
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            heard: BTreeMap::new(),
        }
    }

    /// A worker was heard, or is expected from now on.
    pub fn heard(&mut self, worker: WorkerId, now: Time) {
        let at = self.heard.entry(worker).or_insert(now);
        *at = now.max(*at);
    }

    /// A worker is no longer watched.
    pub fn forget(&mut self, worker: WorkerId) {
        self.heard.remove(&worker);
    }

    /// Those that have been silent for longer than the limit, and for how long. They are forgotten.
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

    /// When the next one will be overdue unless it is heard.
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
    fn silence_is_noticed_once_and_at_its_deadline() {
        let mut detector = Detector::new(Duration::from_nanos(10));
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
