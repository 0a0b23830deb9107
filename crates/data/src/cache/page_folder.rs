//! [`PageFolder`]: pages as files that all processes of a host share, with locks, a size limit and eviction.
//!
//! ```text
//! CACHEDIR.TAG          marks the folder as a cache for backup tools
//! v1/pages/3f/3f07..    a page
//! v1/locks/017          one of 1,024 locks; its holder fetches the pages that map to it
//! v1/unfinished/017     a page that the holder of that lock is writing
//! v1/used               bytes of all pages, updated with each page and recounted by each eviction
//! v1/evict.lock         held by the process that evicts
//! ```
//!
//! The kernel releases the locks of a process that ends for any reason. An unfinished file whose lock is free is overwritten by
//! the next holder or removed.

use std::fs::{File, FileTimes, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use ronde_clock::{Stopwatch, pause};

use super::page::PageKey;

/// The number of lock files. Neighbouring pages of an object map to different ones.
pub(super) const LOCKS: u64 = 1024;
/// The longest wait for another process that counts or evicts. After it, a page is not stored.
const LOCK_WAIT_LIMIT: Duration = Duration::from_secs(5);
const TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55\n# Pages of remote files. May be removed at any time.\n";

/// A folder with pages.
#[derive(Debug)]
pub(super) struct PageFolder {
    root: PathBuf,
    bytes_max: u64,
    /// Held by the thread of this process that counts; a file lock excludes other processes.
    counting: Mutex<()>,
}

/// The lock for fetching the pages that map to a number; released when dropped.
pub(super) struct PageLock {
    _file: File,
    number: u64,
}

/// The result of an attempt to take a lock.
pub(super) enum LockAttempt {
    Taken(PageLock),
    /// Another process or thread has the lock.
    Busy,
    /// Locks cannot be created in this folder.
    Unavailable(io::Error),
}

/// The reason why a page was not stored.
#[derive(Debug)]
pub(super) enum NotStored {
    /// The disk reported an error.
    Disk(io::Error),
    /// The limit leaves no room, or an eviction by another process takes too long.
    NoRoom,
}

impl From<io::Error> for NotStored {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl PageFolder {
    /// Opens the cache in `folder`: creates its folders if possible and removes the unfinished files of killed writers.
    pub(super) fn new(folder: &Path, bytes_max: u64) -> (Self, io::Result<()>) {
        let made = Self {
            root: folder.join("v1"),
            bytes_max,
            counting: Mutex::new(()),
        };
        let prepared = made.prepare(folder);
        (made, prepared)
    }

    fn prepare(&self, folder: &Path) -> io::Result<()> {
        for part in ["pages", "locks", "unfinished"] {
            std::fs::create_dir_all(self.root.join(part))?;
        }
        let tag = folder.join("CACHEDIR.TAG");
        if !tag.exists() {
            std::fs::write(tag, TAG)?;
        }
        self.unfinished_bytes().map(|_| ())
    }

    /// Returns the folder of pages, as the root of a store for sealed pages.
    pub(super) fn pages(&self) -> PathBuf {
        self.root.join("pages")
    }

    /// Returns the file name of a page below [`PageFolder::pages`].
    pub(super) fn name(key: &PageKey) -> String {
        let text = key.to_string();
        format!("{}/{text}", &text[..2])
    }

    pub(super) fn path(&self, key: &PageKey) -> PathBuf {
        self.pages().join(Self::name(key))
    }

    fn part(&self, part: &str, number: u64) -> PathBuf {
        self.root.join(part).join(format!("{number:03x}"))
    }

    /// Tries to take the lock of a number.
    pub(super) fn try_lock(&self, number: u64) -> LockAttempt {
        let file = match open_lock(&self.part("locks", number)) {
            Ok(file) => file,
            Err(error) => return LockAttempt::Unavailable(error),
        };
        match file.try_lock() {
            Ok(()) => LockAttempt::Taken(PageLock {
                _file: file,
                number,
            }),
            Err(TryLockError::WouldBlock) => LockAttempt::Busy,
            Err(TryLockError::Error(error)) => LockAttempt::Unavailable(error),
        }
    }

    /// Stores a page that consists of `parts` atomically. Returns the number of evicted pages.
    pub(super) fn keep(
        &self,
        lock: &PageLock,
        key: &PageKey,
        parts: &[&[u8]],
    ) -> Result<u64, NotStored> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let unfinished = self.part("unfinished", lock.number);
        let kept = self.write(&unfinished, &self.path(key), parts, bytes);
        if kept.is_err() {
            // The unfinished file would only use disk space.
            let _ = std::fs::remove_file(&unfinished);
        }
        kept
    }

    fn write(
        &self,
        unfinished: &Path,
        path: &Path,
        parts: &[&[u8]],
        bytes: u64,
    ) -> Result<u64, NotStored> {
        let mut file = File::create(unfinished)?;
        // The final length, so that other processes count the space that the page will use.
        file.set_len(bytes)?;
        let used = self.count(bytes as i64)?.ok_or(NotStored::NoRoom)?;
        let room = match used > self.bytes_max {
            true => self.make_room(),
            false => Ok(0),
        };
        let written = room.and_then(|evicted| {
            parts.iter().try_for_each(|part| file.write_all(part))?;
            self.publish(unfinished, path)?;
            Ok(evicted)
        });
        if written.is_err() {
            self.count(-(bytes as i64))?;
        }
        written
    }

    fn publish(&self, unfinished: &Path, path: &Path) -> io::Result<()> {
        match std::fs::rename(unfinished, path) {
            // The first page of its folder.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
                std::fs::rename(unfinished, path)
            }
            other => other,
        }
    }

    /// Removes a damaged page if it is still the file with this inode; returns false when another process has removed it.
    pub(super) fn remove(&self, key: &PageKey, inode: Option<u64>) -> bool {
        let path = self.path(key);
        let Ok(metadata) = path.metadata() else {
            return false;
        };
        let is_it = inode.is_none_or(|inode| inode == metadata.ino());
        let is_gone = is_it && std::fs::remove_file(&path).is_ok();
        if is_gone {
            // The next eviction corrects a wrong count.
            let _ = self.count(-(metadata.len() as i64));
        }
        is_gone
    }

    /// Marks a page as used now; pages that were used longest ago are evicted first.
    pub(super) fn touch(file: &File, now: SystemTime) {
        // A disk that cannot be written to has no evictions either.
        let _ = file.set_times(FileTimes::new().set_accessed(now));
    }

    /// Adds to the number of used bytes and returns it; `None` when another process holds the lock for too long.
    fn count(&self, more: i64) -> io::Result<Option<u64>> {
        let _mine = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = lock_within(&self.root.join("used"), LOCK_WAIT_LIMIT)? else {
            return Ok(None);
        };
        let used = read_count(&file)?.saturating_add_signed(more);
        file.write_all_at(&used.to_le_bytes(), 0)?;
        Ok(Some(used))
    }

    /// Evicts the pages that were used longest ago until a tenth of the limit is free; returns their number.
    fn make_room(&self) -> Result<u64, NotStored> {
        let lock = lock_within(&self.root.join("evict.lock"), LOCK_WAIT_LIMIT)?;
        let _evicting = lock.ok_or(NotStored::NoRoom)?;
        // Another process may have evicted pages in the meantime.
        if self.count(0)?.ok_or(NotStored::NoRoom)? <= self.bytes_max {
            return Ok(0);
        }
        let mut pages = self.scan()?;
        let mut used = self.unfinished_bytes()?;
        used += pages.iter().map(|page| page.bytes).sum::<u64>();
        pages.sort_unstable_by_key(|page| page.used);
        let goal = self.bytes_max - self.bytes_max / 10;
        let mut evicted = 0;
        for page in &pages {
            if used <= goal {
                break;
            }
            match std::fs::remove_file(&page.path) {
                Ok(()) => evicted += 1,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error.into()),
            }
            used -= page.bytes;
        }
        self.set_count(used)?;
        match used > self.bytes_max {
            true => Err(NotStored::NoRoom),
            false => Ok(evicted),
        }
    }

    fn set_count(&self, used: u64) -> io::Result<()> {
        let _mine = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        match lock_within(&self.root.join("used"), LOCK_WAIT_LIMIT)? {
            Some(file) => file.write_all_at(&used.to_le_bytes(), 0),
            None => Ok(()),
        }
    }

    /// Returns all pages.
    fn scan(&self) -> io::Result<Vec<PageFileInfo>> {
        let mut pages = Vec::new();
        for folder in std::fs::read_dir(self.pages())? {
            let Ok(entries) = std::fs::read_dir(folder?.path()) else {
                continue;
            };
            for entry in entries {
                let entry = entry?;
                // The page was removed in the meantime.
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
                pages.push(PageFileInfo {
                    path: entry.path(),
                    bytes: metadata.len(),
                    used: metadata.accessed()?,
                });
            }
        }
        Ok(pages)
    }

    /// Returns the bytes of unfinished pages; removes those of killed writers.
    fn unfinished_bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for entry in std::fs::read_dir(self.root.join("unfinished"))? {
            let entry = entry?;
            let name = entry.file_name();
            let number = u64::from_str_radix(&name.to_string_lossy(), 16);
            match number.map(|number| self.try_lock(number)) {
                // No process writes it, and none can start while it is locked here.
                Ok(LockAttempt::Taken(_lock)) => {
                    let _ = std::fs::remove_file(entry.path());
                }
                _ => bytes += entry.metadata().map_or(0, |metadata| metadata.len()),
            }
        }
        Ok(bytes)
    }
}

struct PageFileInfo {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

/// Opens and locks a file; `None` when another process holds the lock for longer than `limit`.
fn lock_within(path: &Path, limit: Duration) -> io::Result<Option<File>> {
    let file = open_lock(path)?;
    let watch = Stopwatch::start();
    let mut next = Duration::from_micros(50);
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if watch.elapsed() > limit => return Ok(None),
            Err(TryLockError::WouldBlock) => pause(next),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        next = (next * 2).min(Duration::from_millis(5));
    }
}

fn read_count(file: &File) -> io::Result<u64> {
    let mut bytes = [0; 8];
    match file.read_exact_at(&mut bytes, 0) {
        // No process has counted yet.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
        other => other.map(|()| u64::from_le_bytes(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> PageKey {
        PageKey([number; 16])
    }

    fn lock(folder: &PageFolder, number: u64) -> PageLock {
        match folder.try_lock(number) {
            LockAttempt::Taken(lock) => lock,
            LockAttempt::Busy => panic!("{number} is locked"),
            LockAttempt::Unavailable(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_pages_that_were_used_longest_ago_are_evicted() {
        let temporary = tempfile::tempdir().unwrap();
        let (folder, prepared) = PageFolder::new(temporary.path(), 1000);
        prepared.unwrap();
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        for number in 0..10 {
            let kept = folder.keep(&lock(&folder, 1), &key(number), &[&[number; 40], &[0; 60]]);
            assert_eq!(kept.unwrap(), 0);
            let file = File::open(folder.path(&key(number))).unwrap();
            PageFolder::touch(&file, start + Duration::from_secs(u64::from(number)));
        }
        let used_again = File::open(folder.path(&key(0))).unwrap();
        PageFolder::touch(&used_again, start + Duration::from_secs(100));
        // The cache is full: the next page evicts a tenth.
        let evicted = folder
            .keep(&lock(&folder, 1), &key(10), &[&[0; 100]])
            .unwrap();
        assert_eq!(evicted, 2);
        let exists = |number: u8| folder.path(&key(number)).exists();
        assert!(exists(0) && !exists(1) && !exists(2) && exists(3) && exists(10));
        assert_eq!(folder.count(0).unwrap(), Some(900));
        let too_large = folder.keep(&lock(&folder, 1), &key(11), &[&[0; 1001]]);
        assert!(matches!(too_large, Err(NotStored::NoRoom)));
        assert_eq!(folder.count(0).unwrap(), Some(0));
        folder
            .keep(&lock(&folder, 1), &key(12), &[&[0; 100]])
            .unwrap();
        assert!(!folder.remove(&key(12), Some(0)));
        assert!(folder.remove(&key(12), None));
        assert!(!folder.remove(&key(12), None));
        assert!(!exists(12));
    }

    #[test]
    fn unfinished_files_of_killed_writers_are_removed_and_others_stay() {
        let temporary = tempfile::tempdir().unwrap();
        let (folder, _) = PageFolder::new(temporary.path(), 1000);
        let unfinished = |number| folder.part("unfinished", number);
        for number in [3, 0x3ff] {
            std::fs::write(unfinished(number), [0; 10]).unwrap();
        }
        let held = lock(&folder, 3);
        assert!(matches!(folder.try_lock(3), LockAttempt::Busy));
        let (again, prepared) = PageFolder::new(temporary.path(), 1000);
        prepared.unwrap();
        assert!(unfinished(3).exists() && !unfinished(0x3ff).exists());
        drop(held);
        assert_eq!(again.unfinished_bytes().unwrap(), 0);
        assert!(!unfinished(3).exists());
    }
}
