//! [`FolderListing`]: the files of a user's folder, and the entries that cannot be read.

use std::path::Path;

use crate::error::StoreError;
use crate::name::ObjectName;
use crate::object_entry::ObjectEntry;

/// The files of a folder and of the folders in it. Nothing is missing: an entry that cannot be read
/// has its cause.
#[derive(Debug, Default)]
pub struct FolderListing {
    /// The files, sorted by name.
    pub entries: Vec<ObjectEntry>,
    /// The other entries, sorted by name.
    pub unusable: Vec<UnusableEntry>,
}

/// An entry of a folder that has no [`ObjectName`], or that is not a readable file.
#[derive(Debug)]
pub struct UnusableEntry {
    /// The name within the store, for comparison with a pattern; bytes that are not UTF-8 are
    /// replaced. The name of a folder ends in `/`.
    pub name: String,
    /// The cause.
    pub cause: UnusableCause,
}

/// Why an entry of a folder cannot be read.
#[derive(Debug)]
pub enum UnusableCause {
    /// A file or folder whose name starts with a dot. The contents of the folder are not listed.
    Hidden,
    /// A file with this error.
    File(StoreError),
    /// A file or a folder, which of them is unknown, with this error; for example a link whose
    /// target does not exist.
    Unknown(StoreError),
}

impl FolderListing {
    /// Sorts both lists.
    pub(crate) fn sort(&mut self) {
        self.entries.sort_by(|a, b| a.name.cmp(&b.name));
        self.unusable.sort_by(|a, b| a.name.cmp(&b.name));
        self.unusable.dedup_by(|a, b| {
            matches!(
                (&a.cause, &b.cause),
                (UnusableCause::Hidden, UnusableCause::Hidden)
            ) && a.name == b.name
        });
    }

    /// Adds a hidden file, or the hidden folder that contains it; `start` is the length of the name
    /// of the listed folder. Returns whether `name` is hidden.
    pub(crate) fn add_hidden(&mut self, name: &str, start: usize) -> bool {
        let inner = name.get(start..).unwrap_or_default();
        let mut at = start;
        for segment in inner.split_inclusive('/') {
            at += segment.len();
            if segment.starts_with('.') {
                self.unusable.push(UnusableEntry {
                    name: name[..at].to_owned(),
                    cause: UnusableCause::Hidden,
                });
                return true;
            }
        }
        false
    }
}

/// Returns the object name of a file in a user's folder; the error has its location.
pub(crate) fn object_name(name: &str, location: &str) -> Result<ObjectName, StoreError> {
    ObjectName::new(name).map_err(|error| match error {
        StoreError::Name { problem, .. } => StoreError::Unnameable {
            location: location.to_owned(),
            problem,
        },
        other => other,
    })
}

/// Returns a path for messages, with `\xE9` for a byte that is not UTF-8.
pub(crate) fn shown(path: &Path) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02X}");
        }
    }
    text
}
