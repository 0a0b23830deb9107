//! [`Walk`]: every file of a folder and of those in it, and [`stamp_of`] one.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::Stamp;

/// Of a file: another one after each replacement, and after each change that takes longer than the clock of the file
/// system ticks.
pub(super) fn stamp_of(metadata: &std::fs::Metadata) -> Stamp {
    let numbers = [
        metadata.mtime() as u64,
        metadata.mtime_nsec() as u64,
        metadata.len(),
        metadata.ino(),
    ];
    Stamp::of("file", &numbers.map(u64::to_le_bytes).concat())
}

/// A way through a folder and those in it. What vanishes meanwhile is left out.
pub(super) struct Walk<'a> {
    pub(super) follows_links: bool,
    /// Whether to go into the folder of this name.
    pub(super) enters: &'a mut dyn FnMut(&str) -> bool,
    /// Is told path, name and what the system knows of each file.
    pub(super) visit: &'a mut dyn FnMut(&Path, &str, &std::fs::Metadata) -> io::Result<()>,
}

impl Walk<'_> {
    /// Goes through `root`, whose files get names that begin with `prefix`.
    pub(super) fn through(&mut self, root: &Path, prefix: &str) -> io::Result<()> {
        match std::fs::metadata(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
            Ok(found) => self.folder(root, prefix, &mut vec![place(&found)]),
        }
    }

    /// `above` are the folders that it is in, so that links in a circle end.
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
                        // A link into a circle leads nowhere; what may not be looked at is told.
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
            // Other names are no text and never an `ObjectName`.
            let Some(name) = file_name.to_str().map(|name| format!("{prefix}{name}")) else {
                continue;
            };
            if metadata.is_file() {
                (self.visit)(&path, &name, &metadata)?;
                continue;
            }
            let place = place(&metadata);
            if metadata.is_dir() && !above.contains(&place) && (self.enters)(&name) {
                above.push(place);
                self.folder(&path, &format!("{name}/"), above)?;
                above.pop();
            }
        }
        Ok(())
    }
}

fn place(folder: &std::fs::Metadata) -> (u64, u64) {
    (folder.dev(), folder.ino())
}
