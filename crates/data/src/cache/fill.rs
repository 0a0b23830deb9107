//! Downloads whole files to the cache before they are read.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ronde_store::StoreError;

use super::Cache;
use super::object::{CachedFile, RUN_PAGES};
use crate::error::DataError;
use crate::source::SourceFile;

/// The progress of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillProgress {
    /// The bytes of remote files on disk.
    pub done: u64,
    /// The bytes of all remote files.
    pub bytes: u64,
}

impl Cache {
    /// Downloads all remote `files` that are not in the cache yet, in parallel. Several processes may call it at the same time
    /// and share the work. Any of the threads calls `progress` after each range of pages.
    ///
    /// A page that cannot be stored is not an error: an event reports it, and the page is fetched when it is read.
    ///
    /// # Errors
    /// [`DataError::CacheTooSmall`] when the files exceed the limit; [`DataError::Store`] for errors of the remote store.
    pub fn fill(
        self: &Arc<Self>,
        files: &[SourceFile],
        progress: &(dyn Fn(FillProgress) + Sync),
    ) -> Result<(), DataError> {
        let remote: Vec<&SourceFile> = files.iter().filter(|file| file.is_remote()).collect();
        let bytes = remote.iter().map(|file| file.bytes()).sum();
        // An eviction frees a tenth of the limit.
        let room = self.settings.bytes_max - self.settings.bytes_max / 10;
        if bytes > room {
            return Err(DataError::CacheTooSmall {
                bytes,
                room,
                bytes_max: self.settings.bytes_max,
            });
        }
        let shared: Vec<CachedFile> = remote
            .iter()
            .map(|file| CachedFile::new(Arc::clone(self), file))
            .collect();
        let mut work: Vec<(&CachedFile, Range<u64>)> = Vec::new();
        for file in &shared {
            let count = file.pages.count();
            let starts = (0..count).step_by(RUN_PAGES as usize);
            work.extend(starts.map(|first| (file, first..(first + RUN_PAGES).min(count))));
        }
        let filling = CacheFill {
            work,
            next: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            bytes,
            progress,
        };
        let outcomes: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.settings.threads)
                .map(|_| scope.spawn(|| filling.work()))
                .collect();
            let joined = threads.into_iter().map(|thread| {
                thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            joined.collect()
        });
        outcomes.into_iter().collect::<Result<(), StoreError>>()?;
        Ok(())
    }
}

struct CacheFill<'a> {
    work: Vec<(&'a CachedFile, Range<u64>)>,
    next: AtomicUsize,
    done: AtomicU64,
    /// Set after the first error.
    has_failed: AtomicBool,
    bytes: u64,
    progress: &'a (dyn Fn(FillProgress) + Sync),
}

impl CacheFill<'_> {
    fn work(&self) -> Result<(), StoreError> {
        while !self.has_failed.load(Ordering::Relaxed) {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let Some((file, run)) = self.work.get(at) else {
                return Ok(());
            };
            let missing = run.clone().filter(|page| !file.has(*page));
            let fetched = missing
                .map(|page| page..page + 1)
                .reduce(|a, b| a.start..b.end);
            if let Some(missing) = fetched
                && let Err(error) = file.fetch(missing, 0, &mut [], true)
            {
                self.has_failed.store(true, Ordering::Relaxed);
                return Err(error);
            }
            let bytes: u64 = run
                .clone()
                .map(|page| {
                    let range = file.pages.range(page);
                    range.end - range.start
                })
                .sum();
            let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            (self.progress)(FillProgress {
                done,
                bytes: self.bytes,
            });
        }
        Ok(())
    }
}
