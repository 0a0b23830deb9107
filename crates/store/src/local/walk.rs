//! [`FolderWalk`]: a recursive walk over the files of a folder, and [`stamp_of`] a file.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::Stamp;

/// Returns the stamp of a file. It changes with each replacement, and with each change in place
/// that is separated from the previous one by at least a tick of the file system's clock. The
/// change time counts too, because programs can set the modification time back.
pub(super) fn stamp_of(metadata: &std::fs::Metadata) -> Stamp {
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

/// A recursive walk. Files that are removed during it are left out.
pub(super) struct FolderWalk<'a> {
    pub(super) follows_links: bool,
    /// Returns whether to enter the folder of this name.
    pub(super) enters: &'a mut dyn FnMut(&str) -> bool,
    /// Called with the path, name and metadata of each file.
    pub(super) visit: &'a mut dyn FnMut(&Path, &str, &std::fs::Metadata) -> io::Result<()>,
}

impl FolderWalk<'_> {
    /// Walks `root`; file names are prefixed with `prefix`.
    pub(super) fn through(&mut self, root: &Path, prefix: &str) -> io::Result<()> {
        match std::fs::metadata(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(found) => self.folder(root, prefix, &mut vec![identity(&found)]),
        }
    }

    /// `above` holds the enclosing folders, so that a cycle of links ends.
    fn folder(
        &mut self,
        folder: &Path,
        prefix: &str,
        above: &mut Vec<(u64, u64)>,
    ) -> io::Result<()> {
        let entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            let path = entry.path();
            let metadata = match entry.metadata() {
                Ok(link) if link.is_symlink() && self.follows_links => {
                    match std::fs::metadata(&path) {
                        // A link that leads into a cycle is ignored; a folder that cannot be read
                        // is an error.
                        Err(error) if error.kind() != io::ErrorKind::PermissionDenied => continue,
                        other => other,
                    }
                }
                other => other,
            };
            let metadata = match metadata {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let file_name = entry.file_name();
            // Other names are not valid text and cannot be an `ObjectName`.
            let Some(name) = file_name.to_str().map(|name| format!("{prefix}{name}")) else {
                continue;
            };
            if metadata.is_file() {
                (self.visit)(&path, &name, &metadata)?;
                continue;
            }
            let folder = identity(&metadata);
            if metadata.is_dir() && !above.contains(&folder) && (self.enters)(&name) {
                above.push(folder);
                self.folder(&path, &format!("{name}/"), above)?;
                above.pop();
            }
        }
        Ok(())
    }
}

fn identity(folder: &std::fs::Metadata) -> (u64, u64) {
    (folder.dev(), folder.ino())
}
