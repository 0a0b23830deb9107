//! [`Folder`]: pages as files that all processes of a host share: locks, room, eviction.
//!
//! ```text
//! CACHEDIR.TAG          tells tools for backups that nothing here is worth keeping
//! v1/pages/3f/3f07..    a page
//! v1/locks/017          whoever holds it fetches pages of this number; 1,024 of them
//! v1/unfinished/017     a page that is being written by the holder of that lock
//! v1/used               bytes of all pages, kept up to date with each of them; counted anew by each eviction
//! v1/evict.lock         held by the one who evicts
//! ```
//!
//! The kernel lets go of locks when their holder dies, however it dies. An unfinished file without a holder is overwritten by
//! the next one or removed.

use std::fs::{File, FileTimes, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use super::page::PageKey;
use crate::clock::{Stopwatch, pause};

/// Count of lock files. Neighbouring pages of an object have different ones.
pub(super) const LOCKS: u64 = 1024;
/// Longest wait for somebody who counts or evicts. After it a page is not kept.
const PATIENCE: Duration = Duration::from_secs(5);
const TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55\n# Pages of remote files. May be removed at any time.\n";

/// A folder of pages.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    bytes_max: u64,
    /// One thread of this process counts at a time; the file's lock keeps other processes away.
    counting: Mutex<()>,
}

/// The right to fetch pages of a number, until dropped.
pub(super) struct PageLock {
    _file: File,
    number: u64,
}

/// What came of trying to lock.
pub(super) enum Locked {
    Mine(PageLock),
    /// Somebody else fetches.
    Busy,
    /// There are no locks here.
    Never(io::Error),
}

/// Why a page was not kept.
#[derive(Debug)]
pub(super) enum NotKept {
    /// The disk would not.
    Disk(io::Error),
    /// The limit leaves no room, or somebody else makes room for too long.
    NoRoom,
}

impl From<io::Error> for NotKept {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

impl Folder {
    /// The cache in `folder`; makes its folders where that can be done and removes what killed writers left.
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

    /// Where pages are, for those that are objects of a store.
    pub(super) fn pages(&self) -> PathBuf {
        self.root.join("pages")
    }

    /// The file of a page below [`Folder::pages`].
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
    pub(super) fn try_lock(&self, number: u64) -> Locked {
        let file = match open_lock(&self.part("locks", number)) {
            Ok(file) => file,
            Err(error) => return Locked::Never(error),
        };
        match file.try_lock() {
            Ok(()) => Locked::Mine(PageLock {
                _file: file,
                number,
            }),
            Err(TryLockError::WouldBlock) => Locked::Busy,
            Err(TryLockError::Error(error)) => Locked::Never(error),
        }
    }

    /// Keeps a page that consists of `parts`: there whole or not at all. Tells how many others had to go.
    pub(super) fn keep(
        &self,
        lock: &PageLock,
        key: &PageKey,
        parts: &[&[u8]],
    ) -> Result<u64, NotKept> {
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        let unfinished = self.part("unfinished", lock.number);
        let kept = self.write(&unfinished, &self.path(key), parts, bytes);
        if kept.is_err() {
            // It would only take room.
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
    ) -> Result<u64, NotKept> {
        let mut file = File::create(unfinished)?;
        // So that whoever counts sees what it will take.
        file.set_len(bytes)?;
        let used = self.count(bytes as i64)?.ok_or(NotKept::NoRoom)?;
        let evicted = match used > self.bytes_max {
            true => self.make_room()?,
            false => 0,
        };
        let written = parts
            .iter()
            .try_for_each(|part| file.write_all(part))
            .and_then(|()| match std::fs::rename(unfinished, path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    std::fs::create_dir_all(path.parent().unwrap_or(&self.root))?;
                    std::fs::rename(unfinished, path)
                }
                other => other,
            });
        match written {
            Ok(()) => Ok(evicted),
            Err(error) => {
                self.count(-(bytes as i64))?;
                Err(error.into())
            }
        }
    }

    /// Removes a page that is of no use, if it is still the file of this inode; false when somebody else has done so.
    pub(super) fn remove(&self, key: &PageKey, inode: Option<u64>) -> bool {
        let path = self.path(key);
        let Ok(metadata) = path.metadata() else {
            return false;
        };
        let is_it = inode.is_none_or(|inode| inode == metadata.ino());
        let is_gone = is_it && std::fs::remove_file(&path).is_ok();
        if is_gone {
            // A wrong count is put right by the next eviction.
            let _ = self.count(-(metadata.len() as i64));
        }
        is_gone
    }

    /// Says that a page is of use: it is evicted after those of which that was said before.
    pub(super) fn touch(file: &File, now: SystemTime) {
        // On a disk that cannot be written to nothing is evicted either.
        let _ = file.set_times(FileTimes::new().set_modified(now));
    }

    /// Adds to the count of bytes and tells it; `None` when somebody else holds it for too long.
    fn count(&self, more: i64) -> io::Result<Option<u64>> {
        let _mine = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(file) = lock_within(&self.root.join("used"), PATIENCE)? else {
            return Ok(None);
        };
        let used = read_count(&file)?.saturating_add_signed(more);
        file.write_all_at(&used.to_le_bytes(), 0)?;
        Ok(Some(used))
    }

    /// Evicts the pages that were used longest ago until a tenth of the limit is free; tells how many.
    fn make_room(&self) -> Result<u64, NotKept> {
        let lock = lock_within(&self.root.join("evict.lock"), PATIENCE)?;
        let _evicting = lock.ok_or(NotKept::NoRoom)?;
        // Somebody else may have done it meanwhile.
        if self.count(0)?.ok_or(NotKept::NoRoom)? <= self.bytes_max {
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
            true => Err(NotKept::NoRoom),
            false => Ok(evicted),
        }
    }

    fn set_count(&self, used: u64) -> io::Result<()> {
        let _mine = self.counting.lock().unwrap_or_else(PoisonError::into_inner);
        match lock_within(&self.root.join("used"), PATIENCE)? {
            Some(file) => file.write_all_at(&used.to_le_bytes(), 0),
            None => Ok(()),
        }
    }

    /// All pages.
    fn scan(&self) -> io::Result<Vec<Scanned>> {
        let mut pages = Vec::new();
        for folder in std::fs::read_dir(self.pages())? {
            let Ok(entries) = std::fs::read_dir(folder?.path()) else {
                continue;
            };
            for entry in entries {
                let entry = entry?;
                // What was evicted or damaged meanwhile is gone.
                let Ok(metadata) = entry.metadata() else {
                    continue;
                };
                pages.push(Scanned {
                    path: entry.path(),
                    bytes: metadata.len(),
                    used: metadata.modified()?,
                });
            }
        }
        Ok(pages)
    }

    /// Bytes that pages under way will take; removes what killed writers left.
    fn unfinished_bytes(&self) -> io::Result<u64> {
        let mut bytes = 0;
        for entry in std::fs::read_dir(self.root.join("unfinished"))? {
            let entry = entry?;
            let name = entry.file_name();
            let number = u64::from_str_radix(&name.to_string_lossy(), 16);
            match number.map(|number| self.try_lock(number)) {
                // Nobody writes it, and nobody can begin to while it is locked here.
                Ok(Locked::Mine(_lock)) => {
                    let _ = std::fs::remove_file(entry.path());
                }
                _ => bytes += entry.metadata().map_or(0, |metadata| metadata.len()),
            }
        }
        Ok(bytes)
    }
}

struct Scanned {
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

/// Opens a file and locks it; `None` when somebody else has it for so long.
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
        // Nobody has counted yet.
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

    fn lock(folder: &Folder, number: u64) -> PageLock {
        match folder.try_lock(number) {
            Locked::Mine(lock) => lock,
            Locked::Busy => panic!("{number} is locked"),
            Locked::Never(error) => panic!("{error}"),
        }
    }

    #[test]
    fn the_pages_that_were_used_longest_ago_are_evicted() {
        let place = tempfile::tempdir().unwrap();
        let (folder, prepared) = Folder::new(place.path(), 1000);
        prepared.unwrap();
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        for number in 0..10 {
            let kept = folder.keep(&lock(&folder, 1), &key(number), &[&[number; 40], &[0; 60]]);
            assert_eq!(kept.unwrap(), 0);
            let file = File::open(folder.path(&key(number))).unwrap();
            Folder::touch(&file, start + Duration::from_secs(u64::from(number)));
        }
        let used_again = File::open(folder.path(&key(0))).unwrap();
        Folder::touch(&used_again, start + Duration::from_secs(100));
        // Full: the next one makes room for a tenth.
        let evicted = folder
            .keep(&lock(&folder, 1), &key(10), &[&[0; 100]])
            .unwrap();
        assert_eq!(evicted, 2);
        let there = |number: u8| folder.path(&key(number)).exists();
        assert!(there(0) && !there(1) && !there(2) && there(3) && there(10));
        assert_eq!(folder.count(0).unwrap(), Some(900));
        let too_large = folder.keep(&lock(&folder, 1), &key(11), &[&[0; 1001]]);
        assert!(matches!(too_large, Err(NotKept::NoRoom)));
        folder
            .keep(&lock(&folder, 1), &key(12), &[&[0; 100]])
            .unwrap();
        assert!(!folder.remove(&key(12), Some(0)));
        assert!(folder.remove(&key(12), None));
        assert!(!folder.remove(&key(12), None));
        assert!(!there(12));
    }

    #[test]
    fn what_killed_writers_left_goes_and_what_is_written_stays() {
        let place = tempfile::tempdir().unwrap();
        let (folder, _) = Folder::new(place.path(), 1000);
        let unfinished = |number| folder.part("unfinished", number);
        for number in [3, 0x3ff] {
            std::fs::write(unfinished(number), [0; 10]).unwrap();
        }
        let held = lock(&folder, 3);
        assert!(matches!(folder.try_lock(3), Locked::Busy));
        let (again, prepared) = Folder::new(place.path(), 1000);
        prepared.unwrap();
        assert!(unfinished(3).exists() && !unfinished(0x3ff).exists());
        drop(held);
        assert_eq!(again.unfinished_bytes().unwrap(), 0);
        assert!(!unfinished(3).exists());
    }
}
