//! [`ReadAhead`]: threads that fetch pages before they are read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use super::object::{CachedFile, RUN_PAGES};
use super::page_layout::runs;

/// The maximum number of queued page ranges. Further pages are fetched when they are read.
const WAITING_MAX: usize = 1024;

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
    waiting: VecDeque<(Weak<CachedFile>, Range<u64>)>,
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
    fn push(&self, object: &Arc<CachedFile>, run: Range<u64>) -> bool {
        let mut state = self.queue.lock();
        if state.waiting.len() >= WAITING_MAX {
            return false;
        }
        state.waiting.push_back((Arc::downgrade(object), run));
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
            let Some(object) = object.upgrade() else {
                continue;
            };
            // The reader will get and report the same error.
            let _ = object.fetch(run.clone(), 0, &mut [], false);
            object.forget(run);
        }
    }

    fn next(&self) -> Option<(Weak<CachedFile>, Range<u64>)> {
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

/// Queues pages, in ascending order, for fetching ahead, unless pages cannot be stored.
pub(super) fn announce(object: &Arc<CachedFile>, pages: &[u64]) {
    if pages.is_empty() || !object.cache.can_store() {
        return;
    }
    for run in runs(&object.take_new(pages), RUN_PAGES) {
        if !object.cache.ahead.push(object, run.clone()) {
            object.forget(run);
        }
    }
}
