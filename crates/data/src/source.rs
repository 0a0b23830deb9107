//! [`expand`]: resolves the addresses of a run file to [`SourceFile`]s in a fixed order.
//!
//! A *pattern* is an address whose path may contain `*`, `?`, `[a-z]`, `[!a-z]` (within a segment), `**` (any segments),
//! `{a,b}` and `{000..127}`; or a folder, which means all files in it and below; or a file; or `@LIST`, a text file with one
//! pattern per line, relative to the folder of the list. A path that exists literally is taken literally.
//!
//! ```no_run
//! use ronde_data::source::expand;
//! use ronde_store::{Opener, RemoteSettings};
//!
//! let opener = Opener::new(RemoteSettings::default());
//! let patterns = ["s3://bucket/imagenet/train-{00000..01023}-of-01024".to_owned()];
//! for file in expand(&patterns, std::path::Path::new("."), &opener)? {
//!     println!("{} {} bytes at {}", file.name(), file.bytes(), file.location());
//! }
//! # Ok::<(), ronde_data::DataError>(())
//! ```

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ronde_store::{Address, ObjectEntry, ObjectName, Opener, Stamp, Store, StoredObject};

use crate::DataError;

mod braces;
mod find;
mod glob;
mod pattern;
#[cfg(test)]
mod tests;

/// A file with samples, with its size and stamp at the time it was found. Cheap to clone.
#[derive(Clone)]
pub struct SourceFile {
    root: Arc<SourceRoot>,
    object: ObjectName,
    /// The offset of the name in the object's name.
    name_at: usize,
    bytes: u64,
    stamp: Stamp,
}

/// The store of some files.
#[derive(Debug)]
struct SourceRoot {
    address: Address,
    store: Arc<dyn Store>,
}

impl SourceFile {
    /// Returns its path below the common folder of all patterns, which does not change when the files are copied elsewhere.
    /// Identities of samples are derived from it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.object.as_str()[self.name_at..]
    }

    /// Returns its full address, for messages. Contains no secrets.
    #[must_use]
    pub fn location(&self) -> String {
        match self.root.address.join(&self.object) {
            Ok(whole) => whole.to_string(),
            Err(_) => format!("{}/{}", self.root.address, self.object),
        }
    }

    /// Returns its length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns its stamp, which distinguishes versions of the file.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Returns whether it is on another machine, so that a local copy makes reading faster.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.root.address.is_remote()
    }

    /// Returns its store. Files of one bucket share a store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.root.store
    }

    /// Returns its name in the store.
    #[must_use]
    pub fn object(&self) -> &ObjectName {
        &self.object
    }

    /// Opens it for reading, without a cache. Sends no request to a remote store yet.
    ///
    /// # Errors
    /// As [`Store::open_listed`], for example when the file has changed.
    pub fn open(&self) -> Result<Box<dyn StoredObject>, DataError> {
        let entry = ObjectEntry {
            name: self.object.clone(),
            bytes: self.bytes,
            stamp: self.stamp,
        };
        Ok(self.root.store.open_listed(&entry)?)
    }
}

impl fmt::Debug for SourceFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "SourceFile({}, {} bytes, {})",
            self.location(),
            self.bytes,
            self.stamp
        )
    }
}

/// Returns the files that `patterns` match, each once, sorted by name (for equal names, in the order of the patterns). Relative
/// paths start from `base`.
///
/// Folders and wildcards do not match hidden files and marker files of table writers (`_SUCCESS`, `_metadata`,
/// `_committed_*` and similar).
///
/// Cost: one listing of each folder that is followed by wildcards (in a bucket, with everything below); one request for each
/// named file, 16 at a time.
///
/// # Errors
/// [`DataError::Pattern`] for invalid patterns, and for wildcards on web servers, which have no listings;
/// [`DataError::NoFiles`] when a pattern matches no file; [`DataError::MissingFiles`] when named files do not exist;
/// [`DataError::Store`] for errors of the stores.
pub fn expand(
    patterns: &[String],
    base: &Path,
    opener: &Opener,
) -> Result<Vec<SourceFile>, DataError> {
    let patterns = pattern::read_all(patterns, base, opener)?;
    let mut files = find::find(&patterns, opener)?;
    // The sort is stable: files with equal names stay in the order of the patterns.
    files.sort_by(|a, b| a.name().cmp(b.name()));
    let mut seen = std::collections::HashSet::new();
    files.retain(|file| {
        let place = Arc::as_ptr(&file.root) as usize;
        seen.insert((place, file.object.clone()))
    });
    Ok(files)
}
