//! [`ReadAhead`]: threads that fetch pages before they are read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

/// The maximum number of queued page ranges. Further pages are fetched when they are read.
const WAITING_MAX: usize = 1024;

/// A file whose pages can be fetched before they are read.
pub(super) trait FetchAhead: Send + Sync {
    /// Fetches pages. An error is dropped: the reader will get and report the same one.
    fn fetch_ahead(&self, run: Range<u64>);
}

/// Threads that fetch pages, and their queue. Threads start on demand and end when this is dropped.
pub(super) struct ReadAhead {
    queue: Arc<ReadAheadQueue>,
    threads_max: usize,
}

#[derive(Default)]
struct ReadAheadQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    /// Weak references, so that files without readers are not fetched.
    waiting: VecDeque<(Weak<dyn FetchAhead>, Range<u64>)>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl ReadAhead {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            queue: Arc::default(),
            threads_max,
        }
    }

    /// Queues a range of pages; returns false when the queue is full.
    pub(super) fn push(&self, object: Weak<dyn FetchAhead>, run: Range<u64>) -> bool {
        let mut state = self.queue.lock();
        if state.waiting.len() >= WAITING_MAX {
            return false;
        }
        state.waiting.push_back((object, run));
        if state.waiting.len() > state.idle && state.threads < self.threads_max {
            let queue = Arc::clone(&self.queue);
            let thread = std::thread::Builder::new().name("ronde-cache".to_owned());
            // If no thread can be started, pages are fetched when they are read.
            if thread.spawn(move || queue.work()).is_ok() {
                state.threads += 1;
            } else if state.threads == 0 {
                state.waiting.clear();
                return false;
            }
        }
        drop(state);
        self.queue.changed.notify_one();
        true
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.is_closed = true;
        state.waiting.clear();
        drop(state);
        // The threads are not joined, because one of them may be dropping this.
        self.queue.changed.notify_all();
    }
}

impl ReadAheadQueue {
    fn lock(&self) -> std::sync::MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((object, run)) = self.next() {
            if let Some(object) = object.upgrade() {
                object.fetch_ahead(run);
            }
        }
    }

    fn next(&self) -> Option<(Weak<dyn FetchAhead>, Range<u64>)> {
        let mut state = self.lock();
        state.idle += 1;
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(run) = state.waiting.pop_front() {
                state.idle -= 1;
                return Some(run);
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}
