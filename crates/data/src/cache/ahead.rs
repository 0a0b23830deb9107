//! [`Ahead`]: threads that fetch pages before they are read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use super::object::{RUN_PAGES, Shared};
use super::span::runs;

/// Runs of pages that wait at most. What is more is fetched when it is read.
const WAITING_MAX: usize = 1024;

/// Threads that fetch pages, and what waits for them. They start when there is something to do, and end with this.
pub(super) struct Ahead {
    queue: Arc<Queue>,
    threads_max: usize,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Objects that nobody reads any more are not fetched.
    waiting: VecDeque<(Weak<Shared>, Range<u64>)>,
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl Ahead {
    pub(super) fn new(threads_max: usize) -> Self {
        Self {
            queue: Arc::default(),
            threads_max,
        }
    }

    /// Takes a run; false when too many wait.
    fn push(&self, object: &Arc<Shared>, run: Range<u64>) -> bool {
        let mut state = self.queue.lock();
        if state.waiting.len() >= WAITING_MAX {
            return false;
        }
        state.waiting.push_back((Arc::downgrade(object), run));
        if state.waiting.len() > state.idle && state.threads < self.threads_max {
            let queue = Arc::clone(&self.queue);
            let thread = std::thread::Builder::new().name("ronde-cache".to_owned());
            // Without a thread what waits is fetched when it is read.
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

impl Drop for Ahead {
    fn drop(&mut self) {
        let mut state = self.queue.lock();
        state.is_closed = true;
        state.waiting.clear();
        drop(state);
        // They are not waited for: one of them may be who drops this.
        self.queue.changed.notify_all();
    }
}

impl Queue {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((object, run)) = self.next() {
            let Some(object) = object.upgrade() else {
                continue;
            };
            // Whoever reads it meets the error, too, and tells it.
            let _ = object.fetch(run.clone(), 0, &mut [], false);
            object.forget(run);
        }
    }

    fn next(&self) -> Option<(Weak<Shared>, Range<u64>)> {
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

/// Has pages, which rise, fetched ahead. While nothing can be kept that would be for nothing, so it is not done.
pub(super) fn announce(object: &Arc<Shared>, pages: &[u64]) {
    if pages.is_empty() || !object.cache.keeps() {
        return;
    }
    for run in runs(&object.take_new(pages), RUN_PAGES) {
        if !object.cache.ahead.push(object, run.clone()) {
            object.forget(run);
        }
    }
}
