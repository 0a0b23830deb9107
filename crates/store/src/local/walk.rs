//! [`FolderWalk`]: a recursive walk over the files of a folder, and [`stamp_of`] a file.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::retry::DiskRetry;
use crate::stamp::Stamp;

/// Returns the stamp of a file. It changes with each replacement, and with each change in place
/// that is separated from the previous one by at least a tick of the file system's clock. The
/// change time counts too, because programs can set the modification time back.
pub(super) fn stamp_of(metadata: &Metadata) -> Stamp {
    let numbers = [
        metadata.mtime() as u64,
        metadata.mtime_nsec() as u64,
        metadata.ctime() as u64,
        metadata.ctime_nsec() as u64,
        metadata.len(),
        metadata.ino(),
    ];
    Stamp::of("file", &numbers.map(u64::to_le_bytes).concat())
}

/// An entry of a folder.
pub(super) enum FoundEntry<'a> {
    File(&'a Metadata),
    /// A folder that was not entered yet.
    Folder,
    /// Neither a file nor a folder.
    Special(&'a Metadata),
    /// An entry that cannot be examined, such as a link without a target.
    Unknown(io::Error),
}

/// The name and path of an entry.
pub(super) struct EntryPath {
    pub(super) path: PathBuf,
    /// The name within the store; bytes that are not UTF-8 are replaced.
    pub(super) name: String,
    /// Whether all of the name is UTF-8.
    pub(super) is_text: bool,
}

/// A recursive walk, in the order of the names in each folder.
pub(super) struct FolderWalk<'a> {
    pub(super) follows_links: bool,
    pub(super) retry: &'a DiskRetry,
    /// Called for each entry; returns whether to enter it if it is a folder.
    pub(super) visit: &'a mut dyn FnMut(&EntryPath, FoundEntry<'_>) -> io::Result<bool>,
}

impl FolderWalk<'_> {
    /// Walks `root`; names start with `prefix`, which is empty or ends in `/`.
    pub(super) fn through(&mut self, root: &Path, prefix: &str) -> io::Result<()> {
        let listed = self.retry.run(root, || {
            let metadata = std::fs::metadata(root)?;
            Ok((identity(&metadata), names(root)?))
        });
        match listed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok((identity, names)) => {
                let root = EntryPath {
                    path: root.to_owned(),
                    name: prefix.trim_end_matches('/').to_owned(),
                    is_text: true,
                };
                self.entries(&root, names, &mut vec![identity])
            }
        }
    }

    /// Visits the entries of a folder. `above` holds the enclosing folders, so that a cycle of links ends.
    fn entries(
        &mut self,
        folder: &EntryPath,
        names_in: Vec<OsString>,
        above: &mut Vec<(u64, u64)>,
    ) -> io::Result<()> {
        for file_name in names_in {
            let entry = entry_in(folder, &file_name);
            let metadata = self.retry.run(&entry.path, || self.metadata(&entry.path));
            let metadata = match metadata {
                Err(error) => {
                    (self.visit)(&entry, FoundEntry::Unknown(error))?;
                    continue;
                }
                Ok(metadata) => metadata,
            };
            if metadata.is_file() {
                (self.visit)(&entry, FoundEntry::File(&metadata))?;
            } else if !metadata.is_dir() {
                (self.visit)(&entry, FoundEntry::Special(&metadata))?;
            } else if !above.contains(&identity(&metadata))
                && (self.visit)(&entry, FoundEntry::Folder)?
            {
                match self.retry.run(&entry.path, || names(&entry.path)) {
                    Err(error) => {
                        (self.visit)(&entry, FoundEntry::Unknown(error))?;
                    }
                    Ok(names) => {
                        above.push(identity(&metadata));
                        self.entries(&entry, names, above)?;
                        above.pop();
                    }
                }
            }
        }
        Ok(())
    }

    fn metadata(&self, path: &Path) -> io::Result<Metadata> {
        match std::fs::symlink_metadata(path) {
            Ok(link) if link.is_symlink() && self.follows_links => std::fs::metadata(path),
            other => other,
        }
    }
}

/// Returns the sorted names of the entries of a folder.
fn names(folder: &Path) -> io::Result<Vec<OsString>> {
    let mut names = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name()))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort_unstable();
    Ok(names)
}

fn entry_in(folder: &EntryPath, file_name: &OsStr) -> EntryPath {
    let name = file_name.to_string_lossy();
    EntryPath {
        path: folder.path.join(file_name),
        is_text: folder.is_text && file_name.to_str().is_some(),
        name: match folder.name.is_empty() {
            true => name.into_owned(),
            false => format!("{}/{name}", folder.name),
        },
    }
}

fn identity(folder: &Metadata) -> (u64, u64) {
    (folder.dev(), folder.ino())
}
