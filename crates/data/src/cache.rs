//! [`Cache`]: pages of remote files in a local folder, shared by all processes of a host.
//!
//! A *page* is a part of a remote file, 4 MiB by default, stored in a separate file that is named after the remote file, its
//! stamp and the number of the page. Readers fetch and store whole pages; later readers, in this process or another one, read
//! them from disk. One process fetches a page while other processes wait for it. Pages are written atomically; a damaged page
//! is detected when it is read, and fetched again. The folder has a size limit; above it, the pages that were used longest
//! ago are evicted. The folder may be removed and a process killed at any time. If pages cannot be stored, reading is slower
//! but still correct. See `docs/cache.md`.
//!
//! ```no_run
//! use ronde_data::cache::{Cache, CacheSettings};
//! use ronde_data::source::{FolderNames, expand};
//! use ronde_store::{Opener, RemoteSettings};
//!
//! let found = expand(
//!     &["s3://bucket/imagenet/train-*".to_owned()],
//!     std::path::Path::new("."),
//!     &Opener::new(RemoteSettings::default()),
//!     FolderNames::All,
//! )?;
//! let cache = Cache::open("/scratch/ronde-cache", CacheSettings::default())?;
//! let file = cache.object(&found.files[0])?;
//! let mut start = vec![0; 1024];
//! file.read_at(0, &mut start)?;
//! file.prefetch(&[1 << 20..8 << 20]);
//! println!("{} bytes were downloaded", cache.counters().remote_bytes);
//! # Ok::<(), ronde_data::DataError>(())
//! ```

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_clock::{Stopwatch, date};
use ronde_store::{Encrypted, LocalStore, ObjectName, Store, StoredObject};

use crate::error::DataError;
use crate::source::SourceFile;

mod fill;
mod object;
mod page;
mod page_folder;
mod page_layout;
mod read_ahead;
mod settings;
mod stats;

pub use fill::FillProgress;
pub use settings::{CacheMode, CacheSettings};
pub use stats::{CacheCounters, CacheEvent};

use object::CachedObject;
use page::{PageError, PageFile, PageKey};
use page_folder::{NotStored, PageFolder, PageLock};
use read_ahead::ReadAhead;
use stats::{CacheStats, add};

/// The maximum number of open pages.
const OPEN_MAX: u64 = 128;
/// The delay before storing pages is tried again after a failure.
const RETRY_DELAY: Duration = Duration::from_secs(10);
/// The interval at which a page in use is marked as used.
const TOUCH_INTERVAL: Duration = Duration::from_secs(10);

/// Pages of remote files in a local folder.
pub struct Cache {
    folder: PageFolder,
    settings: CacheSettings,
    /// The store of sealed pages.
    sealed: Option<Encrypted>,
    open: Mutex<OpenPages>,
    stats: CacheStats,
    /// The time since the last page could not be stored; `None` after a page was stored.
    failing_since: Mutex<Option<Stopwatch>>,
    ahead: ReadAhead,
}

/// The open pages, each with the time of its last use.
#[derive(Default)]
struct OpenPages {
    pages: HashMap<PageKey, (Arc<OpenPage>, u64)>,
    uses: u64,
}

/// An open page.
struct OpenPage {
    file: PageFile,
    touched: Mutex<Stopwatch>,
}

impl Cache {
    /// Opens the cache in `folder`, which is created if missing. A folder that cannot be written to is not an error: its pages
    /// are used, no pages are added, and an event reports it.
    ///
    /// # Errors
    /// [`DataError::CacheSettings`] for invalid settings.
    pub fn open(folder: impl AsRef<Path>, settings: CacheSettings) -> Result<Arc<Self>, DataError> {
        settings.check()?;
        let (folder, prepared) = PageFolder::new(folder.as_ref(), settings.bytes_max);
        let sealed = settings.key.as_ref().map(|key| {
            let pages: Arc<dyn Store> = Arc::new(LocalStore::new(folder.pages()));
            Encrypted::new(pages, key.clone())
        });
        let cache = Arc::new(Self {
            folder,
            sealed,
            open: Mutex::default(),
            stats: CacheStats::default(),
            failing_since: Mutex::new(None),
            ahead: ReadAhead::new(settings.threads),
            settings,
        });
        if let Err(error) = prepared {
            cache.not_kept(&NotStored::Disk(error), 0);
        }
        Ok(cache)
    }

    /// Returns a file that is read through the cache if it is remote, and directly otherwise. Sends no request.
    ///
    /// # Errors
    /// As [`SourceFile::open`].
    pub fn object(self: &Arc<Self>, file: &SourceFile) -> Result<Arc<dyn StoredObject>, DataError> {
        match file.is_remote() {
            true => Ok(Arc::new(CachedObject::new(Arc::clone(self), file))),
            false => Ok(file.open()?.into()),
        }
    }

    /// Returns the counters of this process so far.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        self.stats.counters()
    }

    /// Returns the events since the last call, to be shown to the user.
    #[must_use]
    pub fn take_events(&self) -> Vec<CacheEvent> {
        self.stats.take()
    }

    /// Opens a page on disk.
    fn page(&self, key: &PageKey, bytes: u64) -> Result<Arc<OpenPage>, PageError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.uses += 1;
        let uses = open.uses;
        if let Some((page, used)) = open.pages.get_mut(key) {
            *used = uses;
            return Ok(Arc::clone(page));
        }
        drop(open);
        let file = match &self.sealed {
            None => PageFile::open(&self.folder.path(key), *key, bytes)?,
            Some(sealed) => {
                let opened = page_name(key).and_then(|name| sealed.open(&name));
                PageFile::sealed(opened, bytes)?
            }
        };
        let page = Arc::new(OpenPage {
            file,
            touched: Mutex::new(Stopwatch::start()),
        });
        self.touch(key, &page.file);
        let most = (self.settings.bytes_max / self.settings.page_bytes / 8).clamp(2, OPEN_MAX);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while open.pages.len() as u64 >= most {
            let oldest = open.pages.iter().min_by_key(|(_, (_, used))| *used);
            let Some(oldest) = oldest.map(|(key, _)| *key) else {
                break;
            };
            open.pages.remove(&oldest);
        }
        open.pages.insert(*key, (Arc::clone(&page), uses));
        Ok(page)
    }

    fn touch(&self, key: &PageKey, file: &PageFile) {
        match file {
            PageFile::Plain(plain) => PageFolder::touch(&plain.file, date()),
            PageFile::Sealed(_) => {
                if let Ok(file) = std::fs::File::open(self.folder.path(key)) {
                    PageFolder::touch(&file, date());
                }
            }
        }
    }

    /// Reads from a page on disk; returns false when it is missing, or was damaged and therefore removed.
    fn read(
        &self,
        file: &str,
        key: &PageKey,
        range: &std::ops::Range<u64>,
        start: u64,
        into: &mut [u8],
    ) -> bool {
        let read = self.page(key, range.end - range.start).and_then(|page| {
            page.file.read(start, into)?;
            let mut touched = page.touched.lock().unwrap_or_else(PoisonError::into_inner);
            if touched.elapsed() > TOUCH_INTERVAL {
                *touched = Stopwatch::start();
                self.touch(key, &page.file);
            }
            Ok(())
        });
        match read {
            Ok(()) => {
                if !into.is_empty() {
                    add(&self.stats.hits, 1);
                    add(&self.stats.cached_bytes, into.len() as u64);
                }
                true
            }
            Err(PageError::Absent) => false,
            Err(PageError::Disk(error)) => {
                self.not_kept(&NotStored::Disk(error), 0);
                false
            }
            Err(PageError::Damaged { problem, inode }) => {
                self.close(key);
                // Only the process that removes the page counts it.
                if self.folder.remove(key, inode) {
                    add(&self.stats.damaged, 1);
                    self.stats.report(CacheEvent::Damaged {
                        file: file.to_owned(),
                        offset: range.start,
                        problem,
                    });
                }
                false
            }
        }
    }

    fn close(&self, key: &PageKey) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.pages.remove(key);
    }

    /// Stores a fetched page; an event reports a failure.
    fn keep(&self, lock: &PageLock, key: &PageKey, data: &[u8]) {
        let kept = match &self.settings.key {
            None => self
                .folder
                .keep(lock, key, &[&page::header(key, data), data]),
            Some(master) => page_name(key)
                .and_then(|name| master.seal(&name, data))
                .map_err(|error| NotStored::Disk(std::io::Error::other(error)))
                .and_then(|sealed| self.folder.keep(lock, key, &[&sealed])),
        };
        match kept {
            Ok(evicted) => {
                add(&self.stats.evicted, evicted);
                *self.failing_since() = None;
            }
            Err(problem) => self.not_kept(&problem, 1),
        }
    }

    fn failing_since(&self) -> MutexGuard<'_, Option<Stopwatch>> {
        self.failing_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether pages can probably be stored. After a failure, another attempt is made from time to time.
    fn can_store(&self) -> bool {
        self.failing_since()
            .as_ref()
            .is_none_or(|since| since.elapsed() > RETRY_DELAY)
    }

    fn not_kept(&self, problem: &NotStored, pages: u64) {
        add(&self.stats.not_kept, pages);
        // An eviction by another process is temporary.
        let NotStored::Disk(error) = problem else {
            return;
        };
        if self.failing_since().replace(Stopwatch::start()).is_none() {
            let problem = match error.kind() {
                std::io::ErrorKind::StorageFull => {
                    format!("{error}; free some space, or choose another folder or a lower limit")
                }
                _ => error.to_string(),
            };
            self.stats.report(CacheEvent::NotKept { problem });
        }
    }
}

/// Returns the object name of a sealed page, which is authenticated with its contents.
fn page_name(key: &PageKey) -> Result<ObjectName, ronde_store::StoreError> {
    ObjectName::new(PageFolder::name(key))
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("folder", &self.folder)
            .field("settings", &self.settings)
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}
