//! [`Cache`]: pages of remote files in a local folder, shared by all processes of a host.
//!
//! A *page* is a part of a remote file, 4 MiB as a rule, in a file of its own, named after the remote file, its stamp and the
//! number of the page. What a reader needs is fetched by whole pages and kept; whoever needs it next, in this process or
//! another one, reads it from disk. One process fetches a page while the others wait for it. A page is there whole or not at
//! all; what was changed of it is found when it is read, and fetched again. The folder has a limit, above which the pages
//! that were used longest ago go. Nothing in it needs to outlive anything: it may be removed at any time, and a process may
//! be killed at any time. A disk that keeps nothing makes reading slower, never wrong. See `docs/cache.md`.
//!
//! ```no_run
//! use ronde_data::cache::{Cache, CacheSettings};
//! use ronde_data::source::expand;
//! use ronde_store::{Opener, RemoteSettings};
//!
//! let files = expand(
//!     &["s3://bucket/imagenet/train-*".to_owned()],
//!     std::path::Path::new("."),
//!     &Opener::new(RemoteSettings::default()),
//! )?;
//! let cache = Cache::open("/scratch/ronde-cache", CacheSettings::default())?;
//! let file = cache.object(&files[0])?;
//! let mut start = vec![0; 1024];
//! file.read_at(0, &mut start)?;
//! file.prefetch(&[1 << 20..8 << 20]);
//! println!("{} bytes came over the network", cache.counters().remote_bytes);
//! # Ok::<(), ronde_data::DataError>(())
//! ```

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ronde_store::{Encrypted, LocalStore, ObjectName, Store, StoredObject};

use crate::DataError;
use crate::clock::{Stopwatch, now};
use crate::source::SourceFile;

mod ahead;
mod fill;
mod folder;
mod object;
mod page;
mod settings;
mod span;
mod tally;

pub use fill::FillProgress;
pub use settings::{CacheMode, CacheSettings};
pub use tally::{CacheCounters, CacheEvent};

use ahead::Ahead;
use folder::{Folder, NotKept, PageLock};
use object::CachedObject;
use page::{PageFile, PageKey, Problem};
use tally::{Tally, add};

/// Pages that are kept open at most.
const OPEN_MAX: u64 = 128;
/// When nothing could be kept, it is tried again so often.
const TRIED_EVERY: Duration = Duration::from_secs(10);
/// A page that is read on and on is said to be of use so often.
const TOUCHED_EVERY: Duration = Duration::from_secs(10);

/// Pages of remote files in a local folder.
pub struct Cache {
    folder: Folder,
    settings: CacheSettings,
    /// Where sealed pages are read from.
    sealed: Option<Encrypted>,
    open: Mutex<OpenPages>,
    tally: Tally,
    /// Since the last page that could not be kept; none after one that could.
    keeps_nothing: Mutex<Option<Stopwatch>>,
    ahead: Ahead,
}

/// Pages that are open, and when each was used last.
#[derive(Default)]
struct OpenPages {
    pages: HashMap<PageKey, (Arc<OpenPage>, u64)>,
    uses: u64,
}

/// A page that is open.
struct OpenPage {
    file: PageFile,
    touched: Mutex<Stopwatch>,
}

impl Cache {
    /// The cache in `folder`, which is made where it is not there. A folder that cannot be written to is no error: what is in
    /// it is used, nothing is added, and an event says so.
    ///
    /// # Errors
    /// [`DataError::CacheSettings`] for settings that make no sense.
    pub fn open(folder: impl AsRef<Path>, settings: CacheSettings) -> Result<Arc<Self>, DataError> {
        settings.check()?;
        let (folder, prepared) = Folder::new(folder.as_ref(), settings.bytes_max);
        let sealed = settings.key.as_ref().map(|key| {
            let pages: Arc<dyn Store> = Arc::new(LocalStore::new(folder.pages()));
            Encrypted::new(pages, key.clone())
        });
        let cache = Arc::new(Self {
            folder,
            sealed,
            open: Mutex::default(),
            tally: Tally::default(),
            keeps_nothing: Mutex::new(None),
            ahead: Ahead::new(settings.threads),
            settings,
        });
        if let Err(error) = prepared {
            cache.not_kept(&NotKept::Disk(error), 0);
        }
        Ok(cache)
    }

    /// A file, read through the cache where it is remote, and straight where it is not. Costs no request.
    ///
    /// # Errors
    /// As [`SourceFile::open`].
    pub fn object(self: &Arc<Self>, file: &SourceFile) -> Result<Arc<dyn StoredObject>, DataError> {
        match file.is_remote() {
            true => Ok(Arc::new(CachedObject::new(Arc::clone(self), file))),
            false => Ok(file.open()?.into()),
        }
    }

    /// What it has done in this process so far.
    #[must_use]
    pub fn counters(&self) -> CacheCounters {
        self.tally.counters()
    }

    /// What a user should be told since this was asked last.
    #[must_use]
    pub fn take_events(&self) -> Vec<CacheEvent> {
        self.tally.take()
    }

    /// A page that is on disk.
    fn page(&self, key: &PageKey, bytes: u64) -> Result<Arc<OpenPage>, Problem> {
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
            PageFile::Plain(plain) => Folder::touch(&plain.file, now()),
            PageFile::Sealed(_) => {
                if let Ok(file) = std::fs::File::open(self.folder.path(key)) {
                    Folder::touch(&file, now());
                }
            }
        }
    }

    /// Reads from a page that is on disk; false when it is not, or no more as it was damaged.
    fn read(
        &self,
        file: &str,
        key: &PageKey,
        place: &std::ops::Range<u64>,
        start: u64,
        into: &mut [u8],
    ) -> bool {
        let read = self.page(key, place.end - place.start).and_then(|page| {
            page.file.read(start, into)?;
            let mut touched = page.touched.lock().unwrap_or_else(PoisonError::into_inner);
            if touched.elapsed() > TOUCHED_EVERY {
                *touched = Stopwatch::start();
                self.touch(key, &page.file);
            }
            Ok(())
        });
        match read {
            Ok(()) => {
                if !into.is_empty() {
                    add(&self.tally.hits, 1);
                    add(&self.tally.cached_bytes, into.len() as u64);
                }
                true
            }
            Err(Problem::Absent) => false,
            Err(Problem::Disk(error)) => {
                self.not_kept(&NotKept::Disk(error), 0);
                false
            }
            Err(Problem::Damaged { problem, inode }) => {
                self.close(key);
                // Of those who find it one counts it.
                if self.folder.remove(key, inode) {
                    add(&self.tally.damaged, 1);
                    self.tally.tell(CacheEvent::Damaged {
                        file: file.to_owned(),
                        offset: place.start,
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

    /// Keeps a page that was fetched; where that cannot be, an event says why.
    fn keep(&self, lock: &PageLock, key: &PageKey, data: &[u8]) {
        let kept = match &self.settings.key {
            None => self.folder.keep(lock, key, &[&page::head(key, data), data]),
            Some(master) => page_name(key)
                .and_then(|name| master.seal(&name, data))
                .map_err(|error| NotKept::Disk(std::io::Error::other(error)))
                .and_then(|sealed| self.folder.keep(lock, key, &[&sealed])),
        };
        match kept {
            Ok(evicted) => {
                add(&self.tally.evicted, evicted);
                *self.keeps_nothing() = None;
            }
            Err(problem) => self.not_kept(&problem, 1),
        }
    }

    fn keeps_nothing(&self) -> MutexGuard<'_, Option<Stopwatch>> {
        self.keeps_nothing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether pages can be kept, as far as is known. After a failure that is tried again from time to time.
    fn keeps(&self) -> bool {
        self.keeps_nothing()
            .as_ref()
            .is_none_or(|since| since.elapsed() > TRIED_EVERY)
    }

    fn not_kept(&self, problem: &NotKept, pages: u64) {
        add(&self.tally.not_kept, pages);
        // Somebody else makes room: that passes.
        let NotKept::Disk(error) = problem else {
            return;
        };
        if self.keeps_nothing().replace(Stopwatch::start()).is_none() {
            let problem = match error.kind() {
                std::io::ErrorKind::StorageFull => format!(
                    "{error}; free some space, or give it another folder or a limit that fits"
                ),
                _ => error.to_string(),
            };
            self.tally.tell(CacheEvent::NotKept { problem });
        }
    }
}

/// The name by which a sealed page is bound to its place.
fn page_name(key: &PageKey) -> Result<ObjectName, ronde_store::StoreError> {
    ObjectName::new(Folder::name(key))
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
