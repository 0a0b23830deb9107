//! [`BatchQueue`]: requests that wait to be computed together.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Requests that wait to be computed together, in the order of their arrival. Threads take them in batches.
pub(super) struct BatchQueue<T> {
    state: Mutex<BatchQueueState<T>>,
    changed: Condvar,
    /// The largest number of requests.
    capacity: usize,
}

struct BatchQueueState<T> {
    waiting: VecDeque<WaitingItem<T>>,
    /// The number of samples of all waiting requests.
    samples: usize,
    is_closed: bool,
}

struct WaitingItem<T> {
    item: T,
    samples: usize,
    since: Instant,
}

impl<T> BatchQueue<T> {
    /// Creates an empty queue of at most `capacity` requests.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            state: Mutex::new(BatchQueueState {
                waiting: VecDeque::new(),
                samples: 0,
                is_closed: false,
            }),
            changed: Condvar::new(),
            capacity,
        }
    }

    fn lock(&self) -> MutexGuard<'_, BatchQueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request with a number of samples. Returns false if the queue is full or closed.
    pub(super) fn push(&self, item: T, samples: usize) -> bool {
        let mut state = self.lock();
        if state.is_closed || state.waiting.len() >= self.capacity {
            return false;
        }
        state.samples += samples;
        state.waiting.push_back(WaitingItem {
            item,
            samples,
            since: ronde_clock::now(),
        });
        self.changed.notify_one();
        true
    }

    /// Returns the number of waiting requests.
    pub(super) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Refuses further requests. Those that wait are still taken.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for a batch: requests with together `samples_max` samples, or those that arrived until the first one has waited
    /// for `wait`. A larger request is a batch by itself. Returns `None` once the queue is closed and empty.
    pub(super) fn next_batch(&self, samples_max: usize, wait: Duration) -> Option<Vec<T>> {
        let mut state = self.lock();
        loop {
            let Some(first) = state.waiting.front() else {
                if state.is_closed {
                    return None;
                }
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = wait.saturating_sub(ronde_clock::now().duration_since(first.since));
            if left.is_zero() || state.is_closed || state.samples >= samples_max {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let mut batch = Vec::new();
        let mut samples = 0;
        while let Some(next) = state.waiting.front() {
            if !batch.is_empty() && samples + next.samples > samples_max {
                break;
            }
            let Some(next) = state.waiting.pop_front() else {
                break;
            };
            samples += next.samples;
            batch.push(next.item);
        }
        state.samples -= samples;
        if !state.waiting.is_empty() {
            self.changed.notify_one();
        }
        Some(batch)
    }

    /// Returns up to `count` requests that wait already.
    pub(super) fn take(&self, count: usize) -> Vec<T> {
        let mut state = self.lock();
        let count = count.min(state.waiting.len());
        let taken: Vec<WaitingItem<T>> = state.waiting.drain(..count).collect();
        state.samples -= taken.iter().map(|item| item.samples).sum::<usize>();
        taken.into_iter().map(|item| item.item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn a_batch_is_closed_by_its_samples_or_its_wait() {
        let queue = BatchQueue::new(4);
        for (item, samples) in [('a', 2), ('b', 1), ('c', 2), ('d', 9)] {
            assert!(queue.push(item, samples));
        }
        assert!(!queue.push('e', 1), "the queue is full");
        assert_eq!(queue.next_batch(4, LONG), Some(vec!['a', 'b']));
        assert_eq!(queue.next_batch(4, LONG), Some(vec!['c']));
        assert_eq!(queue.next_batch(4, LONG), Some(vec!['d']));
        assert!(queue.push('f', 1));
        assert_eq!(queue.next_batch(4, Duration::ZERO), Some(vec!['f']));
    }

    #[test]
    fn a_closed_queue_is_emptied_at_once() {
        let queue = BatchQueue::new(4);
        assert!(queue.push('a', 1) && queue.push('b', 1));
        assert_eq!(queue.take(1), ['a']);
        queue.close();
        assert!(!queue.push('c', 1));
        assert_eq!(queue.next_batch(4, LONG), Some(vec!['b']));
        assert_eq!(queue.next_batch(4, LONG), None);
        assert!(queue.take(1).is_empty() && queue.len() == 0);
    }
}
