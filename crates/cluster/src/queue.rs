//! [`EventQueue`]: a worker's events on their way to the supervisor; a full queue drops and counts
//! them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ronde_core::{Event, Tracker};
use ronde_elastic::WorkerReport;

use crate::clock;

/// Maximum number of queued events.
pub(crate) const EVENTS_MAX: usize = 65_536;

/// The queued data to write.
pub(crate) struct OutgoingBatch {
    pub(crate) events: VecDeque<Event>,
    pub(crate) report: Option<WorkerReport>,
}

/// A bounded queue with one reader.
#[derive(Default)]
pub(crate) struct EventQueue {
    state: Mutex<EventQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct EventQueueState {
    waiting: VecDeque<Event>,
    /// The newest report; an older one that was not written is obsolete.
    report: Option<WorkerReport>,
    writing: bool,
    closed: bool,
    dropped: u64,
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, EventQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for queued data and returns all of it; `None` once the queue is closed and empty. The
    /// batch counts as unwritten until the next call.
    pub(crate) fn take(&self) -> Option<OutgoingBatch> {
        let mut state = self.lock();
        state.writing = false;
        self.changed.notify_all();
        while state.waiting.is_empty() && state.report.is_none() {
            if state.closed {
                return None;
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.writing = true;
        Some(OutgoingBatch {
            events: std::mem::take(&mut state.waiting),
            report: state.report.take(),
        })
    }

    /// Sends a report with the next batch.
    pub(crate) fn report(&self, report: WorkerReport) {
        let mut state = self.lock();
        if !state.closed {
            state.report = Some(report);
            self.changed.notify_all();
        }
    }

    /// Counts events that could not be sent.
    pub(crate) fn add_dropped(&self, count: u64) {
        self.lock().dropped += count;
    }

    /// Returns the number of events lost so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.lock().dropped
    }

    /// Rejects further events; queued ones are still written.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Waits until all data is written, at most until `deadline`; returns whether it was.
    pub(crate) fn flush(&self, deadline: Instant) -> bool {
        let mut state = self.lock();
        while state.writing || !state.waiting.is_empty() || state.report.is_some() {
            let wait = deadline.saturating_duration_since(clock::now());
            if wait.is_zero() {
                return false;
            }
            state = self
                .changed
                .wait_timeout(state, wait)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }
}

impl Tracker for EventQueue {
    fn record(&self, event: Event) {
        let mut state = self.lock();
        if state.closed || state.waiting.len() >= EVENTS_MAX {
            state.dropped += 1;
        } else {
            state.waiting.push_back(event);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn notice(n: usize) -> Event {
        Event::Notice {
            rank: None,
            message: n.to_string(),
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_a_closed_one_ends() {
        let queue = EventQueue::default();
        for n in 0..EVENTS_MAX + 3 {
            queue.record(notice(n));
        }
        assert_eq!(queue.dropped(), 3);
        assert!(!queue.flush(clock::now()));
        let batch = queue.take().unwrap().events;
        assert_eq!(batch.len(), EVENTS_MAX);
        assert_eq!(batch[0], notice(0));
        assert!(!queue.flush(clock::now()), "the batch is not written yet");
        queue.close();
        queue.record(notice(0));
        assert_eq!(queue.dropped(), 4);
        assert!(queue.take().is_none());
        assert!(queue.flush(clock::now() + Duration::from_secs(1)));
    }
}
