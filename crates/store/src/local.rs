//! [`LocalStore`]: objects as files of a folder, published by rename and fsynced.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::error::StoreError;
use crate::listing::{FolderListing, UnusableCause, UnusableEntry};
use crate::listing::{object_name, shown};
use crate::lock::{self, TEMPORARY_PREFIX};
use crate::name::ObjectName;
use crate::object_entry::ObjectEntry;
use crate::regular::check;
use crate::settings::NoticeCallback;
use crate::store::{Condition, Store, StoredObject, Upload, Version};

mod object;
mod retry;
mod walk;

use object::{LocalObject, version_of};
use retry::DiskRetry;
use walk::{EntryPath, FolderWalk, FoundEntry, stamp_of};

const LOCK_FILE: &str = ".ronde.lock";
const LOCK_LIMIT: Duration = Duration::from_secs(30);

/// A folder of objects. Several processes may use it at once, also over a network file system with
/// file locks.
///
/// An object is written to a temporary file in the same folder, fsynced and renamed; then the
/// folder is fsynced. Conditional puts hold `.ronde.lock` in the root and wait for it for at most
/// 30 s. The folder is created when the first object is written; `sweep` removes empty folders in
/// it.
#[derive(Debug, Clone)]
pub struct LocalStore {
    root: PathBuf,
    lock_limit: Duration,
    follows_links: bool,
    retry: DiskRetry,
    /// The folders in which this store has removed the temporary files of ended processes.
    cleaned: Arc<Mutex<BTreeSet<PathBuf>>>,
}

impl LocalStore {
    /// Returns the store in `root` without accessing the disk.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            lock_limit: LOCK_LIMIT,
            follows_links: false,
            retry: DiskRetry::default(),
            cleaned: Arc::default(),
        }
    }

    /// Waits at most `limit` for a conditional put of another process.
    #[must_use]
    pub fn with_lock_limit(mut self, limit: Duration) -> Self {
        self.lock_limit = limit;
        self
    }

    /// Follows symbolic links in listings, as in a user's data folder.
    #[must_use]
    pub fn following_links(mut self) -> Self {
        self.follows_links = true;
        self
    }

    /// Tries to list, open and read files again for at most `limit` after errors that may pass, such
    /// as `EIO` and `ESTALE` of a network file system. `tell` gets a notice when that takes more
    /// than 2 s.
    #[must_use]
    pub fn retrying(mut self, limit: Duration, tell: Option<NoticeCallback>) -> Self {
        self.retry = DiskRetry::new(limit, tell);
        self
    }

    /// Returns whether there is a file, a folder or a link at `path` in the folder. An error of the
    /// file system is not taken for a missing file.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn contains(&self, path: &str) -> Result<bool, StoreError> {
        let path = self.root.join(path);
        match self.retry.run(&path, || path.symlink_metadata()) {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound
                | io::ErrorKind::NotADirectory
                | io::ErrorKind::InvalidFilename => Ok(false),
                _ => Err(StoreError::disk("read", &path, error)),
            },
        }
    }

    fn walk(
        &self,
        folder: Option<&ObjectName>,
        visit: &mut dyn FnMut(&EntryPath, FoundEntry<'_>) -> io::Result<bool>,
    ) -> Result<(), StoreError> {
        let (path, prefix) = folder.map_or_else(
            || (self.root.clone(), String::new()),
            |folder| (self.path(folder), format!("{folder}/")),
        );
        let mut walk = FolderWalk {
            follows_links: self.follows_links,
            retry: &self.retry,
            visit,
        };
        walk.through(&path, &prefix)
            .map_err(|error| StoreError::disk("list", &path, error))
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, name: &ObjectName) -> PathBuf {
        self.root.join(name.as_str())
    }

    fn start(&self, name: &ObjectName) -> Result<LocalUpload, StoreError> {
        let path = self.path(name);
        let folder = path.parent().unwrap_or(&self.root).to_owned();
        // Another process's retention may remove the folder while it is still empty.
        const ATTEMPTS: usize = 8;
        let mut attempt = 0;
        let file = loop {
            attempt += 1;
            make_folder(&folder).map_err(|error| StoreError::disk("create", &folder, error))?;
            match lock::temporary(&folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS => {}
                other => break other.map_err(|error| StoreError::disk("write", &path, error))?,
            }
        };
        self.clean(&folder);
        Ok(LocalUpload { file, path, folder })
    }
}

impl LocalStore {
    /// Removes temporary files of ended processes from a folder before the first write of this
    /// store to it, so that they do not accumulate where no retention sweeps, as in the folder of a
    /// job whose coordinator was killed. Errors are ignored: the files are only useless.
    fn clean(&self, folder: &Path) {
        let mut cleaned = self.cleaned.lock().unwrap_or_else(PoisonError::into_inner);
        if !cleaned.insert(folder.to_owned()) {
            return;
        }
        drop(cleaned);
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            let name = entry.file_name();
            if is_file && name.to_string_lossy().starts_with(TEMPORARY_PREFIX) {
                let _ = lock::remove_if_abandoned(&entry.path());
            }
        }
    }
}

impl Store for LocalStore {
    fn create(&self, name: &ObjectName) -> Result<Box<dyn Upload>, StoreError> {
        Ok(Box::new(self.start(name)?))
    }

    fn put_if(
        &self,
        name: &ObjectName,
        bytes: &[u8],
        condition: &Condition,
    ) -> Result<Version, StoreError> {
        make_folder(&self.root).map_err(|error| StoreError::disk("create", &self.root, error))?;
        let _held = lock::lock(&self.root.join(LOCK_FILE), self.lock_limit)?;
        let path = self.path(name);
        let there = match File::open(&path) {
            Ok(file) => {
                Some(version_of(&file).map_err(|error| StoreError::disk("read", &path, error))?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(StoreError::disk("read", &path, error)),
        };
        let conflict = |found| StoreError::Conflict {
            location: path.display().to_string(),
            found,
        };
        match (condition, there) {
            (Condition::Absent, Some(_)) => return Err(conflict("it already exists")),
            (Condition::Unchanged(_), None) => return Err(conflict("it no longer exists")),
            (Condition::Unchanged(mine), Some(theirs)) if *mine != theirs => {
                return Err(conflict("it was changed by another process"));
            }
            _ => {}
        }
        let mut upload = self.start(name)?;
        upload.write(bytes)?;
        Box::new(upload).publish()?;
        Ok(Version(blake3::hash(bytes).to_hex().to_string()))
    }

    fn open(&self, name: &ObjectName) -> Result<Box<dyn StoredObject>, StoreError> {
        let path = self.path(name);
        match LocalObject::open(&path, &self.retry) {
            Err(error) if self.follows_links && error.is_not_found() && path.is_symlink() => {
                Err(unreadable(&path, without_target(&path)))
            }
            other => Ok(Box::new(other?)),
        }
    }

    fn list(&self, folder: Option<&ObjectName>) -> Result<Vec<ObjectEntry>, StoreError> {
        let mut entries = Vec::new();
        self.walk(folder, &mut |entry, found| {
            let metadata = match found {
                FoundEntry::Folder => return Ok(!is_hidden(&entry.name)),
                FoundEntry::File(metadata) if entry.is_text => metadata,
                FoundEntry::Unknown(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error);
                }
                // An entry that was removed during the walk is left out.
                FoundEntry::File(_) | FoundEntry::Special(_) | FoundEntry::Unknown(_) => {
                    return Ok(false);
                }
            };
            if let Ok(name) = ObjectName::new(&*entry.name) {
                entries.push(object_entry(name, metadata));
            }
            Ok(false)
        })?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn list_files(
        &self,
        folder: Option<&ObjectName>,
        enters: &mut dyn FnMut(&str) -> bool,
    ) -> Result<FolderListing, StoreError> {
        let start = folder.map_or(0, |folder| folder.as_str().len() + 1);
        let mut listing = FolderListing::default();
        self.walk(folder, &mut |entry, found| {
            let is_folder = matches!(found, FoundEntry::Folder);
            let shown_name = match is_folder {
                true => format!("{}/", entry.name),
                false => entry.name.clone(),
            };
            if listing.add_hidden(&shown_name, start) {
                return Ok(false);
            }
            let cause = match found {
                FoundEntry::Folder => return Ok(enters(&entry.name)),
                FoundEntry::File(metadata) => match readable_name(entry) {
                    Ok(name) => {
                        listing.entries.push(object_entry(name, metadata));
                        return Ok(false);
                    }
                    Err(error) => UnusableCause::File(error),
                },
                FoundEntry::Special(metadata) => match check(metadata) {
                    Ok(()) => return Ok(false),
                    Err(error) => UnusableCause::File(unreadable(&entry.path, error)),
                },
                FoundEntry::Unknown(error) => {
                    let error = match error.kind() {
                        io::ErrorKind::NotFound => without_target(&entry.path),
                        _ => error,
                    };
                    UnusableCause::Unknown(unreadable(&entry.path, error))
                }
            };
            let name = shown_name;
            listing.unusable.push(UnusableEntry { name, cause });
            Ok(false)
        })?;
        listing.sort();
        Ok(listing)
    }

    fn delete(&self, name: &ObjectName) -> Result<(), StoreError> {
        let path = self.path(name);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(|error| StoreError::disk("delete", &path, error))?,
        }
        // Empty parent folders are removed too, up to the root; removing a folder that is not empty
        // fails, which ends the loop.
        let mut folder = path.parent();
        while let Some(at) = folder.filter(|at| *at != self.root && at.starts_with(&self.root)) {
            match std::fs::remove_dir(at) {
                Ok(()) => folder = at.parent(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => folder = at.parent(),
                Err(_) => break,
            }
        }
        let synced = folder.unwrap_or(&self.root);
        match sync_folder(synced) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.map_err(|error| StoreError::disk("sync", synced, error)),
        }
    }

    fn sweep(&self) -> Result<u64, StoreError> {
        let mut swept = 0;
        let mut walk = FolderWalk {
            follows_links: false,
            retry: &self.retry,
            visit: &mut |entry, found| {
                match found {
                    FoundEntry::Folder => return Ok(true),
                    FoundEntry::Unknown(error) if error.kind() != io::ErrorKind::NotFound => {
                        return Err(error);
                    }
                    FoundEntry::File(_) => {}
                    FoundEntry::Special(_) | FoundEntry::Unknown(_) => return Ok(false),
                }
                let last = entry.name.rsplit('/').next().unwrap_or_default();
                // A file of another user cannot be opened; it is only useless.
                if last.starts_with(TEMPORARY_PREFIX)
                    && matches!(lock::remove_if_abandoned(&entry.path), Ok(true))
                {
                    swept += 1;
                }
                Ok(false)
            },
        };
        walk.through(&self.root, "")
            .and_then(|()| remove_empty(&self.root, false).map(|_| ()))
            .map_err(|error| StoreError::disk("sweep", &self.root, error))?;
        Ok(swept)
    }
}

struct LocalUpload {
    file: NamedTempFile,
    path: PathBuf,
    folder: PathBuf,
}

impl Upload for LocalUpload {
    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file
            .as_file_mut()
            .write_all(bytes)
            .map_err(|error| StoreError::disk("write", &self.path, error))
    }

    fn publish(self: Box<Self>) -> Result<(), StoreError> {
        let failed = |operation| {
            let path = self.path.clone();
            move |error| StoreError::disk(operation, &path, error)
        };
        self.file.as_file().sync_all().map_err(failed("sync"))?;
        let renaming = failed("rename");
        let syncing = failed("sync the folder of");
        // The file stays open until the end: its lock protects it from sweeps while it has its
        // temporary name.
        let _file = self
            .file
            .persist(&self.path)
            .map_err(|error| renaming(error.error))?;
        sync_folder(&self.folder).map_err(syncing)
    }
}

fn object_entry(name: ObjectName, metadata: &std::fs::Metadata) -> ObjectEntry {
    ObjectEntry {
        name,
        bytes: metadata.len(),
        stamp: stamp_of(metadata),
    }
}

fn is_hidden(name: &str) -> bool {
    let last = name.rsplit('/').next();
    last.is_some_and(|last| last.starts_with('.'))
}

/// Returns the object name of a user's file.
fn readable_name(entry: &EntryPath) -> Result<ObjectName, StoreError> {
    let location = shown(&entry.path);
    match entry.is_text {
        true => object_name(&entry.name, &location),
        false => Err(StoreError::Unnameable {
            location,
            problem: "its name is not valid UTF-8",
        }),
    }
}

/// Returns the error of a user's file or link that exists, so never [`StoreError::NotFound`].
fn unreadable(path: &Path, source: io::Error) -> StoreError {
    StoreError::Disk {
        operation: "read",
        location: shown(path),
        source,
    }
}

/// Returns the error of an entry that was listed, but does not exist: a link that leads nowhere.
fn without_target(path: &Path) -> io::Error {
    let problem = match std::fs::read_link(path) {
        Ok(target) => format!("the link leads to {}, which does not exist", shown(&target)),
        Err(_) => "it disappeared while its folder was listed".to_owned(),
    };
    io::Error::new(io::ErrorKind::NotFound, problem)
}

/// Creates a folder and its parents, and makes their names durable.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder.parent().filter(|above| *above != Path::new(""));
    if let Some(above) = above {
        make_folder(above)?;
    }
    match std::fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
        other => other?,
    }
    sync_folder(above.unwrap_or(Path::new(".")))
}

fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Removes empty folders below `folder`, and the folder itself if `is_inner`; returns whether it
/// was removed. A writer whose new folder is removed creates it again.
fn remove_empty(folder: &Path, is_inner: bool) -> io::Result<bool> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        other => other?,
    };
    let mut is_empty = true;
    for entry in entries {
        let entry = entry?;
        let is_gone = entry.file_type()?.is_dir() && remove_empty(&entry.path(), true)?;
        is_empty &= is_gone;
    }
    if !(is_empty && is_inner) {
        return Ok(false);
    }
    match std::fs::remove_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        other => other.map(|()| true),
    }
}
