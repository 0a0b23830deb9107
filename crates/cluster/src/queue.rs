//! [`EventQueue`]: a worker's events on their way to the supervisor; a full queue drops and counts
//! them.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ronde_core::{Event, Tracker};
use ronde_protocol::WorkerReport;

/// Maximum number of queued events.
pub(crate) const EVENTS_MAX: usize = 65_536;
/// The shortest time between two batches of events: of short steps, a batch has several, which costs the threads of the worker and of
/// the supervisor one wake instead of one for each. The first event after a pause of this length is written at once.
const BATCH_EVERY: Duration = Duration::from_millis(10);

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
    /// The time of the last batch.
    taken: Option<Instant>,
    /// Whether the reader waits for an event, and not for the time of the next batch.
    is_idle: bool,
    /// The number of threads that wait until all data is written.
    flushing: usize,
}

impl EventQueueState {
    /// Returns how long the reader waits before it takes the next batch; `None`: until there is data.
    fn wait(&self) -> Option<Duration> {
        let is_urgent = self.closed || self.flushing > 0 || self.report.is_some();
        match (self.waiting.is_empty() && self.report.is_none(), self.taken) {
            (true, _) => None,
            (false, Some(taken)) if !is_urgent => {
                Some((taken + BATCH_EVERY).saturating_duration_since(ronde_clock::now()))
            }
            (false, _) => Some(Duration::ZERO),
        }
    }
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
        loop {
            match state.wait() {
                Some(Duration::ZERO) => break,
                Some(limit) => {
                    let waited = self.changed.wait_timeout(state, limit);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                None if state.closed => return None,
                None => {
                    state.is_idle = true;
                    let waited = self.changed.wait(state);
                    state = waited.unwrap_or_else(PoisonError::into_inner);
                    state.is_idle = false;
                }
            }
        }
        state.writing = true;
        state.taken = Some(ronde_clock::now());
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
        state.flushing += 1;
        self.changed.notify_all();
        let is_written = loop {
            if !state.writing && state.waiting.is_empty() && state.report.is_none() {
                break true;
            }
            let wait = deadline.saturating_duration_since(ronde_clock::now());
            if wait.is_zero() {
                break false;
            }
            state = self
                .changed
                .wait_timeout(state, wait)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        };
        state.flushing -= 1;
        is_written
    }
}

impl Tracker for EventQueue {
    fn record(&self, event: Event) {
        let mut state = self.lock();
        if state.closed || state.waiting.len() >= EVENTS_MAX {
            state.dropped += 1;
        } else {
            state.waiting.push_back(event);
            if state.is_idle {
                self.changed.notify_all();
            }
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
        assert!(!queue.flush(ronde_clock::now()));
        let batch = queue.take().unwrap().events;
        assert_eq!(batch.len(), EVENTS_MAX);
        assert_eq!(batch[0], notice(0));
        assert!(
            !queue.flush(ronde_clock::now()),
            "the batch is not written yet"
        );
        queue.close();
        queue.record(notice(0));
        assert_eq!(queue.dropped(), 4);
        assert!(queue.take().is_none());
        assert!(queue.flush(ronde_clock::now() + Duration::from_secs(1)));
    }

    #[test]
    fn events_between_two_batches_are_taken_together_unless_someone_waits() {
        let queue = EventQueue::default();
        let far = || ronde_clock::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut batches = Vec::new();
                while let Some(batch) = queue.take() {
                    batches.push(batch.events.len());
                }
                batches
            });
            queue.record(notice(0));
            assert!(queue.flush(far()));
            for n in 1..1000 {
                queue.record(notice(n));
            }
            assert!(queue.flush(far()));
            queue.close();
            let batches = reader.join().unwrap();
            assert_eq!(batches.iter().sum::<usize>(), 1000);
            assert!(batches.len() < 500, "{batches:?}");
        });
    }
}
