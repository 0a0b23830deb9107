//! Filling a cache with whole files before they are needed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use ronde_store::StoreError;

use super::Cache;
use super::object::{RUN_PAGES, Shared};
use crate::DataError;
use crate::source::SourceFile;

/// How far filling has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FillProgress {
    /// Bytes of remote files that are on disk by now.
    pub done: u64,
    /// Bytes of all remote files.
    pub bytes: u64,
}

impl Cache {
    /// Fetches all of `files` that are remote and not here yet, in parallel. Several processes may do that at once: they
    /// share the work. `progress` is told after each run of pages, by any of the threads.
    ///
    /// What cannot be kept is no error (an event tells of it): it is fetched when it is read.
    ///
    /// # Errors
    /// [`DataError::CacheTooSmall`] when the limit leaves no room for all; [`DataError::Store`] as the places have them.
    pub fn fill(
        self: &Arc<Self>,
        files: &[SourceFile],
        progress: &(dyn Fn(FillProgress) + Sync),
    ) -> Result<(), DataError> {
        let remote: Vec<&SourceFile> = files.iter().filter(|file| file.is_remote()).collect();
        let bytes = remote.iter().map(|file| file.bytes()).sum();
        // Above a tenth below the limit pages go.
        let room = self.settings.bytes_max - self.settings.bytes_max / 10;
        if bytes > room {
            return Err(DataError::CacheTooSmall {
                bytes,
                room,
                bytes_max: self.settings.bytes_max,
            });
        }
        let shared: Vec<Shared> = remote
            .iter()
            .map(|file| Shared::new(Arc::clone(self), file))
            .collect();
        let mut work: Vec<(&Shared, Range<u64>)> = Vec::new();
        for file in &shared {
            let count = file.pages.count();
            let starts = (0..count).step_by(RUN_PAGES as usize);
            work.extend(starts.map(|first| (file, first..(first + RUN_PAGES).min(count))));
        }
        let filling = Filling {
            work,
            next: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
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

struct Filling<'a> {
    work: Vec<(&'a Shared, Range<u64>)>,
    next: AtomicUsize,
    done: AtomicU64,
    /// Set by the first error.
    is_over: AtomicBool,
    bytes: u64,
    progress: &'a (dyn Fn(FillProgress) + Sync),
}

impl Filling<'_> {
    fn work(&self) -> Result<(), StoreError> {
        while !self.is_over.load(Ordering::Relaxed) {
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
                self.is_over.store(true, Ordering::Relaxed);
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
