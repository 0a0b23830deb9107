//! [`CachedObject`]: a remote file that is read through the cache.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ronde_clock::{Stopwatch, pause};
use ronde_store::{Stamp, StoreError, StoredObject, Version};

use super::Cache;
use super::page::PageKey;
use super::page_folder::{LOCKS, LockAttempt, NotStored, PageLock};
use super::page_layout::{PageLayout, overlap, runs};
use super::read_ahead::FetchAhead;
use super::stats::{CacheEvent, add};
use crate::source::SourceFile;

/// The maximum number of pages fetched by one request.
pub(super) const RUN_PAGES: u64 = 4;

/// A remote file that is read through a cache. The remote file is opened when the first page is missing.
pub(super) struct CachedObject(Arc<CachedFile>);

/// The state that readers share with the read-ahead threads.
pub(super) struct CachedFile {
    pub(super) cache: Arc<Cache>,
    file: SourceFile,
    location: String,
    /// The key from which the keys of pages are derived.
    identity: [u8; 32],
    pub(super) pages: PageLayout,
    remote: OnceLock<Box<dyn StoredObject>>,
    progress: Mutex<ReaderPosition>,
}

/// The position of a sequential reader.
struct ReaderPosition {
    /// The first byte after the last read.
    next: u64,
    /// The first page after the last one that is fetched ahead.
    ahead: u64,
    /// The pages that wait to be fetched ahead, or are being fetched.
    announced: HashSet<u64>,
}

impl CachedObject {
    pub(super) fn new(cache: Arc<Cache>, file: &SourceFile) -> Self {
        Self(Arc::new(CachedFile::new(cache, file)))
    }
}

impl StoredObject for CachedObject {
    fn bytes(&self) -> u64 {
        self.0.pages.bytes
    }

    fn prefetch(&self, ranges: &[Range<u64>]) {
        let mut pages: Vec<u64> = ranges
            .iter()
            .flat_map(|range| self.0.pages.covering(range))
            .collect();
        pages.sort_unstable();
        pages.dedup();
        announce(&self.0, &pages);
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let shared = &self.0;
        let end = start.saturating_add(into.len() as u64);
        if end > shared.pages.bytes {
            return Err(StoreError::Damaged {
                location: shared.location.clone(),
                problem: format!(
                    "the read ends at byte {end}, but the file has {} bytes",
                    shared.pages.bytes
                ),
            });
        }
        let next = shared.next_pages(start, end);
        announce(shared, &next);
        let covering = shared.pages.covering(&(start..end));
        let missing: Vec<u64> = covering
            .filter(|page| !shared.read_page(*page, start, into))
            .collect();
        for run in runs(&missing, RUN_PAGES) {
            // If pages cannot be stored, whole pages would be fetched again for each small read: fetch only the range.
            match shared.cache.can_store() {
                true => shared.fetch(run, start, into, true)?,
                false => shared.read_remote(run, start, into)?,
            }
        }
        Ok(())
    }

    fn stamp(&self) -> Stamp {
        self.0.file.stamp()
    }

    fn version(&self) -> Result<Version, StoreError> {
        self.0.remote()?.version()
    }

    fn location(&self) -> &str {
        &self.0.location
    }
}

/// Queues pages, in ascending order, for fetching ahead, unless pages cannot be stored.
fn announce(object: &Arc<CachedFile>, pages: &[u64]) {
    if pages.is_empty() || !object.cache.can_store() {
        return;
    }
    for run in runs(&object.take_new(pages), RUN_PAGES) {
        let weak = Arc::downgrade(object);
        if !object.cache.ahead.push(weak, run.clone()) {
            object.forget(run);
        }
    }
}

impl FetchAhead for CachedFile {
    fn fetch_ahead(&self, run: Range<u64>) {
        let _ = self.fetch(run.clone(), 0, &mut [], false);
        self.forget(run);
    }
}

impl CachedFile {
    pub(super) fn new(cache: Arc<Cache>, file: &SourceFile) -> Self {
        let location = file.location();
        let mut hasher = blake3::Hasher::new_derive_key("ronde-data 1 cached file");
        hasher.update(&file.stamp().to_bytes());
        hasher.update(&file.bytes().to_le_bytes());
        hasher.update(&cache.settings.page_bytes.to_le_bytes());
        let key = cache.settings.key.as_ref();
        hasher.update(&key.map_or([0; 8], ronde_store::MasterKey::id));
        hasher.update(location.as_bytes());
        Self {
            pages: PageLayout {
                bytes: file.bytes(),
                page_bytes: cache.settings.page_bytes,
            },
            cache,
            file: file.clone(),
            location,
            identity: *hasher.finalize().as_bytes(),
            remote: OnceLock::new(),
            progress: Mutex::new(ReaderPosition {
                next: u64::MAX,
                ahead: 0,
                announced: HashSet::new(),
            }),
        }
    }

    fn key(&self, page: u64) -> PageKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.identity);
        hasher.update(&page.to_le_bytes());
        let mut key = [0; 16];
        hasher.finalize_xof().fill(&mut key);
        PageKey(key)
    }

    /// Returns the lock number of a page; the pages of one request have different locks.
    fn lock_number(&self, page: u64) -> u64 {
        let first = u64::from(u16::from_le_bytes([self.identity[0], self.identity[1]]));
        first.wrapping_add(page) % LOCKS
    }

    fn remote(&self) -> Result<&dyn StoredObject, StoreError> {
        if let Some(remote) = self.remote.get() {
            return Ok(&**remote);
        }
        let opened = self.file.store().open_listed(&ronde_store::ObjectEntry {
            name: self.file.object().clone(),
            bytes: self.file.bytes(),
            stamp: self.file.stamp(),
        })?;
        Ok(&**self.remote.get_or_init(|| opened))
    }

    /// Returns the pages to fetch ahead if this read continues the previous one.
    fn next_pages(&self, start: u64, end: u64) -> Vec<u64> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let is_next = progress.next == start;
        progress.next = end;
        if !is_next || start == end {
            return Vec::new();
        }
        let ahead = self.cache.settings.ahead_pages;
        let here = self.pages.covering(&(start..end)).end;
        // The reader has moved backwards, so reading ahead starts again.
        if progress.ahead > here + ahead {
            progress.ahead = 0;
        }
        // Pages are announced in batches of half the read-ahead distance, not one by one.
        if progress.ahead >= here + ahead.div_ceil(2) {
            return Vec::new();
        }
        let first = progress.ahead.max(here);
        progress.ahead = here + ahead;
        (first..progress.ahead.min(self.pages.count())).collect()
    }

    /// Returns the pages that were not announced yet and marks them as announced.
    pub(super) fn take_new(&self, pages: &[u64]) -> Vec<u64> {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let new = pages.iter().copied();
        new.filter(|page| progress.announced.insert(*page))
            .collect()
    }

    /// Removes pages from the announced ones.
    pub(super) fn forget(&self, pages: Range<u64>) {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        for page in pages {
            progress.announced.remove(&page);
        }
    }

    /// Returns whether a page is on disk.
    pub(super) fn has(&self, page: u64) -> bool {
        self.read_page(page, 0, &mut [])
    }

    /// Copies the overlap of a page on disk with `into`, which begins at byte `start` of the object. Returns false when the
    /// page is not on disk.
    fn read_page(&self, page: u64, start: u64, into: &mut [u8]) -> bool {
        let range = self.pages.range(page);
        let part = overlap(&range, &(start..start + into.len() as u64));
        let into = match part.is_empty() {
            true => &mut [],
            false => &mut into[(part.start - start) as usize..(part.end - start) as usize],
        };
        let within = part.start.saturating_sub(range.start);
        let key = self.key(page);
        self.cache.read(&self.location, &key, &range, within, into)
    }

    /// Fetches the pages that are not on disk and copies their overlap with `into`. Waits for pages that another process
    /// fetches if `waits` is set, and skips them otherwise.
    pub(super) fn fetch(
        &self,
        run: Range<u64>,
        start: u64,
        into: &mut [u8],
        waits: bool,
    ) -> Result<(), StoreError> {
        let mut mine = Vec::new();
        let mut busy = Vec::new();
        for page in run {
            match self.lock(page) {
                None => busy.push(page),
                // Another process may have just fetched it.
                Some(lock) => {
                    if !self.read_page(page, start, into) {
                        mine.push((page, lock));
                    }
                }
            }
        }
        while !mine.is_empty() {
            let neighbours = (1..mine.len()).find(|at| mine[*at].0 != mine[at - 1].0 + 1);
            let rest = mine.split_off(neighbours.unwrap_or(mine.len()));
            self.fetch_locked(std::mem::replace(&mut mine, rest), start, into)?;
        }
        if waits {
            for page in busy {
                self.wait_for(page, start, into)?;
            }
        }
        Ok(())
    }

    /// Locks a page. Returns `Some(None)` where locks are unavailable, and `None` when another process or thread has the lock.
    #[expect(
        clippy::option_option,
        reason = "a busy lock, an unavailable lock and a taken lock are three cases"
    )]
    fn lock(&self, page: u64) -> Option<Option<PageLock>> {
        match self.cache.folder.try_lock(self.lock_number(page)) {
            LockAttempt::Taken(lock) => Some(Some(lock)),
            LockAttempt::Busy => None,
            LockAttempt::Unavailable(error) => {
                self.cache.not_kept(&NotStored::Disk(error), 0);
                Some(None)
            }
        }
    }

    /// Fetches neighbouring pages with one request, and stores those whose locks are held.
    fn fetch_locked(
        &self,
        group: Vec<(u64, Option<PageLock>)>,
        start: u64,
        into: &mut [u8],
    ) -> Result<(), StoreError> {
        let (Some((first, _)), Some((last, _))) = (group.first(), group.last()) else {
            return Ok(());
        };
        let range = self.pages.range(*first).start..self.pages.range(*last).end;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.remote()?.read_at(range.start, &mut bytes)?;
        let stats = &self.cache.stats;
        add(&stats.remote_bytes, bytes.len() as u64);
        add(&stats.fetched, group.len() as u64);
        let part = overlap(&range, &(start..start + into.len() as u64));
        if !part.is_empty() {
            let from =
                &bytes[(part.start - range.start) as usize..(part.end - range.start) as usize];
            into[(part.start - start) as usize..(part.end - start) as usize].copy_from_slice(from);
        }
        for (page, lock) in group {
            let page_range = self.pages.range(page);
            let data = &bytes[(page_range.start - range.start) as usize
                ..(page_range.end - range.start) as usize];
            match lock {
                Some(lock) => self.cache.keep(&lock, &self.key(page), data),
                None => add(&stats.not_kept, 1),
            }
        }
        Ok(())
    }

    /// Reads the overlap of `into` with some pages from the remote file, without the cache.
    fn read_remote(&self, run: Range<u64>, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let range = self.pages.range(run.start).start..self.pages.range(run.end - 1).end;
        let part = overlap(&range, &(start..start + into.len() as u64));
        let into = &mut into[(part.start - start) as usize..(part.end - start) as usize];
        self.remote()?.read_at(part.start, into)?;
        add(&self.cache.stats.remote_bytes, into.len() as u64);
        add(&self.cache.stats.not_kept, run.end - run.start);
        Ok(())
    }

    /// Waits until another process has fetched a page; fetches it if that process fails or takes too long.
    fn wait_for(&self, page: u64, start: u64, into: &mut [u8]) -> Result<(), StoreError> {
        let watch = Stopwatch::start();
        let mut next = Duration::from_micros(100);
        let outcome = loop {
            if self.read_page(page, start, into) {
                break Ok(());
            }
            if let Some(lock) = self.lock(page) {
                break match self.read_page(page, start, into) {
                    true => Ok(()),
                    false => self.fetch_locked(vec![(page, lock)], start, into),
                };
            }
            if watch.elapsed() > self.cache.settings.wait_limit {
                self.cache.stats.report(CacheEvent::WaitedTooLong {
                    file: self.location.clone(),
                    offset: self.pages.range(page).start,
                });
                break self.fetch_locked(vec![(page, None)], start, into);
            }
            pause(next);
            next = (next * 2).min(Duration::from_millis(5));
        };
        add(
            &self.cache.stats.waited_ns,
            watch.elapsed().as_nanos() as u64,
        );
        outcome
    }
}
