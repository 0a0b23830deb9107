//! [`CacheCounters`] and [`CacheEvent`]: statistics and events of a cache.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The maximum number of queued events.
const EVENTS_MAX: usize = 100;

/// The statistics of a cache in this process since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounters {
    /// The bytes fetched from remote files.
    pub remote_bytes: u64,
    /// The bytes read from pages on disk.
    pub cached_bytes: u64,
    /// The number of reads from pages on disk, including pages that another process had just fetched.
    pub hits: u64,
    /// The number of fetched pages.
    pub fetched: u64,
    /// The number of damaged pages; each was fetched again.
    pub damaged: u64,
    /// The number of pages evicted by this process.
    pub evicted: u64,
    /// The number of fetched pages that could not be stored.
    pub not_kept: u64,
    /// The time that readers waited for pages fetched by other processes.
    pub waited: Duration,
}

/// An event that should be shown to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// A page was damaged. It was removed and fetched again.
    Damaged {
        /// The remote file.
        file: String,
        /// The first byte of the page in the file.
        offset: u64,
        /// The kind of damage.
        problem: String,
    },
    /// Pages cannot be stored; the run continues without. Reported once until a page can be stored again.
    NotKept {
        /// The cause.
        problem: String,
    },
    /// Another process took too long to fetch a page, so this process fetched it without storing it.
    WaitedTooLong {
        /// The remote file.
        file: String,
        /// The first byte of the page in the file.
        offset: u64,
    },
}

impl fmt::Display for CacheEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged {
                file,
                offset,
                problem,
            } => write!(
                f,
                "the cached page of {file} at byte {offset} is damaged ({problem}); it was fetched again"
            ),
            Self::NotKept { problem } => {
                write!(
                    f,
                    "cannot store pages in the data cache: {problem}; continuing without it"
                )
            }
            Self::WaitedTooLong { file, offset } => write!(
                f,
                "another process took too long to fetch {file} at byte {offset}; it was fetched here"
            ),
        }
    }
}

/// The counters and queued events of a cache.
#[derive(Debug, Default)]
pub(super) struct CacheStats {
    pub(super) remote_bytes: AtomicU64,
    pub(super) cached_bytes: AtomicU64,
    pub(super) hits: AtomicU64,
    pub(super) fetched: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) evicted: AtomicU64,
    pub(super) not_kept: AtomicU64,
    pub(super) waited_ns: AtomicU64,
    events: Mutex<VecDeque<CacheEvent>>,
}

/// Adds to a counter.
pub(super) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl CacheStats {
    pub(super) fn counters(&self) -> CacheCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        CacheCounters {
            remote_bytes: read(&self.remote_bytes),
            cached_bytes: read(&self.cached_bytes),
            hits: read(&self.hits),
            fetched: read(&self.fetched),
            damaged: read(&self.damaged),
            evicted: read(&self.evicted),
            not_kept: read(&self.not_kept),
            waited: Duration::from_nanos(read(&self.waited_ns)),
        }
    }

    /// Queues an event. Events beyond the limit are dropped; the counters still include them.
    pub(super) fn report(&self, event: CacheEvent) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < EVENTS_MAX {
            events.push_back(event);
        }
    }

    pub(super) fn take(&self) -> Vec<CacheEvent> {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        events.drain(..).collect()
    }
}
