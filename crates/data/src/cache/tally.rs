//! [`CacheCounters`] and [`CacheEvent`]: what a cache tells about itself.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Most events that wait to be taken.
const EVENTS_MAX: usize = 100;

/// What a cache has done in this process since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounters {
    /// Bytes that were fetched from remote files.
    pub remote_bytes: u64,
    /// Bytes that were read from pages on disk.
    pub cached_bytes: u64,
    /// Reads of pages that were on disk, also those that somebody else had just fetched.
    pub hits: u64,
    /// Pages that were fetched.
    pub fetched: u64,
    /// Pages that were not what had been written; each was fetched again.
    pub damaged: u64,
    /// Pages that were evicted by this process.
    pub evicted: u64,
    /// Pages that were fetched and could not be kept.
    pub not_kept: u64,
    /// Time that readers waited for pages that somebody else fetched.
    pub waited: Duration,
}

/// Something that a user should be told.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// A page was not what had been written. It was removed and fetched again.
    Damaged {
        /// The remote file.
        file: String,
        /// First byte of the page in it.
        offset: u64,
        /// What was wrong.
        problem: String,
    },
    /// Pages cannot be kept; the run goes on without. Told once until one can be kept again.
    NotKept {
        /// Why not.
        problem: String,
    },
    /// Somebody else was to fetch a page and did not for too long, so it was fetched without being kept.
    WaitedTooLong {
        /// The remote file.
        file: String,
        /// First byte of the page in it.
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
                "the cached page of {file} from byte {offset} on is damaged ({problem}); it was fetched again"
            ),
            Self::NotKept { problem } => {
                write!(
                    f,
                    "the data cache keeps nothing: {problem}; reading goes on without"
                )
            }
            Self::WaitedTooLong { file, offset } => write!(
                f,
                "another process was to fetch {file} from byte {offset} on and did not; it was fetched here"
            ),
        }
    }
}

/// Counts and events while they grow.
#[derive(Debug, Default)]
pub(super) struct Tally {
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

/// Adds to a count.
pub(super) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

impl Tally {
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

    /// What is too much is left out: the counts still tell of it.
    pub(super) fn tell(&self, event: CacheEvent) {
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
