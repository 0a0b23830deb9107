//! Waits for a slow operation of some ranks while all ranks keep the group alive.

use std::time::Duration;

use ronde_clock::Stopwatch;
use ronde_core::{CollectiveError, CollectivesExt, Event, Group, Rank, Tracker};

/// The longest interval between two messages.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(2);
/// The time after which a wait is reported, in seconds.
const REPORT_AFTER_S: f64 = 2.0;
/// The time between two reports, in seconds.
const REPORT_EVERY_S: f64 = 30.0;
/// The maximum number of ranks in a report.
const RANKS_MAX: usize = 8;

/// Returns the polling interval for a group with this timeout.
pub(crate) fn poll_interval(timeout: Duration) -> Duration {
    (timeout / 4).min(POLL_INTERVAL_MAX)
}

/// A wait of all ranks for an operation, which rank 0 reports if it takes longer than two seconds.
pub(crate) struct SlowWait<'a> {
    what: String,
    rank: Rank,
    tracker: &'a dyn Tracker,
    since: Stopwatch,
    limit_s: Option<f64>,
    next_report_s: f64,
}

impl<'a> SlowWait<'a> {
    /// Starts a wait of `rank` for `what`, such as "the checkpoint of step 3 to be written".
    pub(crate) fn start(what: String, rank: Rank, tracker: &'a dyn Tracker) -> Self {
        Self {
            what,
            rank,
            tracker,
            since: Stopwatch::start(),
            limit_s: None,
            next_report_s: REPORT_AFTER_S,
        }
    }

    /// Sets after how many seconds the wait ends; the operation checks it.
    pub(crate) fn until(mut self, limit_s: f64) -> Self {
        self.limit_s = Some(limit_s);
        self
    }

    /// Returns the message about a wait that has taken `waited_s`, if one is due; `finished` has a 1 for each rank that has
    /// finished.
    fn message(&mut self, waited_s: f64, finished: &[u8]) -> Option<String> {
        if waited_s < self.next_report_s {
            return None;
        }
        self.next_report_s = waited_s + REPORT_EVERY_S;
        let ranks = finished.iter().enumerate();
        let ranks = ranks.filter(|(_, done)| **done == 0);
        let mut ranks: Vec<String> = ranks.map(|(rank, _)| rank.to_string()).collect();
        if let Some(more @ 1..) = ranks.len().checked_sub(RANKS_MAX) {
            ranks.truncate(RANKS_MAX);
            ranks.push(format!("and {more} more"));
        }
        let limit = self.limit_s.map_or_else(String::new, |limit_s| {
            format!(", for at most {:.0} s more", (limit_s - waited_s).max(0.0))
        });
        let (what, ranks) = (&self.what, ranks.join(", "));
        Some(format!(
            "waiting for {what}{limit}: after {waited_s:.0} s, these ranks have not finished: {ranks}"
        ))
    }

    fn continues(&mut self, finished: &[u8]) {
        if self.rank == Rank(0)
            && let Some(message) = self.message(self.since.elapsed_s(), finished)
        {
            let rank = None;
            self.tracker.record(Event::Notice { rank, message });
        }
    }
}

/// Returns on all ranks after `operation` has returned a value on each of them. All ranks call it; `operation` may block for the
/// interval that it is passed. Cost: one byte from each rank to all ranks per interval.
///
/// # Errors
/// A peer was lost.
pub(crate) fn wait_for_all<T>(
    group: &dyn Group,
    interval: Duration,
    wait: &mut SlowWait<'_>,
    mut operation: impl FnMut(Duration) -> Option<T>,
) -> Result<T, CollectiveError> {
    let mut mine = None;
    loop {
        if mine.is_none() {
            mine = operation(interval);
        }
        let finished = group.all_gather(&[u8::from(mine.is_some())])?;
        if finished.iter().all(|done| *done == 1)
            && let Some(mine) = mine.take()
        {
            return Ok(mine);
        }
        wait.continues(&finished);
    }
}

#[cfg(test)]
mod tests {
    use ronde_core::NullTracker;

    use super::*;

    #[test]
    fn a_wait_is_reported_after_two_seconds_with_the_slow_ranks_and_its_end() {
        let what = "the checkpoint of step 3".to_owned();
        let mut wait = SlowWait::start(what, Rank(0), &NullTracker).until(100.0);
        assert_eq!(wait.message(1.9, &[0, 1]), None);
        assert_eq!(
            wait.message(2.0, &[0, 1, 0]).unwrap(),
            "waiting for the checkpoint of step 3, for at most 98 s more: after 2 s, these ranks have not finished: 0, 2"
        );
        assert_eq!(wait.message(31.0, &[0, 1]), None);
        let many = wait.message(32.0, &[0; 10]).unwrap();
        assert!(many.ends_with("6, 7, and 2 more"), "{many}");
    }
}
