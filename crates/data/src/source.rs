//! [`expand`]: from the addresses of a run file to [`SourceFile`]s in a fixed order.
//!
//! A *pattern* is an address whose path may have `*`, `?`, `[a-z]`, `[!a-z]` (within a segment), `**` (any segments), `{a,b}`
//! and `{000..127}` in it; or a folder, which stands for all files in it and below; or a file; or `@LIST`, a text file with
//! one pattern in each line, relative to where the list lies. What exists literally is taken literally.
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

use ronde_store::{Address, Entry, ObjectName, Opener, Stamp, Store, StoredObject};

use crate::DataError;

mod braces;
mod find;
mod glob;
mod pattern;
#[cfg(test)]
mod tests;

/// A file that samples come from, as it was when it was looked for. Cheap to clone.
#[derive(Clone)]
pub struct SourceFile {
    place: Arc<Place>,
    object: ObjectName,
    /// Where the name begins in the object's.
    name_at: usize,
    bytes: u64,
    stamp: Stamp,
}

/// Where some files lie.
#[derive(Debug)]
struct Place {
    address: Address,
    store: Arc<dyn Store>,
}

impl SourceFile {
    /// Its path below the folder that all patterns share: the same wherever the files were copied to. Identities of samples
    /// are made of it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.object.as_str()[self.name_at..]
    }

    /// Its whole address, for messages. Has no secrets in it.
    #[must_use]
    pub fn location(&self) -> String {
        match self.place.address.join(&self.object) {
            Ok(whole) => whole.to_string(),
            Err(_) => format!("{}/{}", self.place.address, self.object),
        }
    }

    /// Its length.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Tells it from what stood there before or will stand there later.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Whether it is on another machine, so that a copy here makes it faster.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.place.address.is_remote()
    }

    /// The store that it is in. Files of one bucket have the same one.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.place.store
    }

    /// Its name in the store.
    #[must_use]
    pub fn object(&self) -> &ObjectName {
        &self.object
    }

    /// Opens it for reading, straight from where it is. A remote store is asked for nothing yet.
    ///
    /// # Errors
    /// As [`Store::open_listed`]: also when it is another file by now.
    pub fn open(&self) -> Result<Box<dyn StoredObject>, DataError> {
        let entry = Entry {
            name: self.object.clone(),
            bytes: self.bytes,
            stamp: self.stamp,
        };
        Ok(self.place.store.open_listed(&entry)?)
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

/// The files that `patterns` stand for, each once, sorted by name (of equal names the one of the earlier pattern first).
/// Relative paths start from `base`.
///
/// Hidden files and what writers of tables leave beside them (`_SUCCESS`, `_metadata`, `_committed_*` and such) are no
/// files of a folder or wildcard.
///
/// Cost: one listing of each folder that has wildcards after it, in a bucket with everything below; one request for each
/// file that is named, 16 at a time.
///
/// # Errors
/// [`DataError::Pattern`] for what is no pattern, or cannot be one on a web server, which has no listings;
/// [`DataError::NoFiles`] when a pattern stands for none, [`DataError::MissingFiles`] when files that are named are not
/// there; [`DataError::Store`] as the places have them.
pub fn expand(
    patterns: &[String],
    base: &Path,
    opener: &Opener,
) -> Result<Vec<SourceFile>, DataError> {
    let patterns = pattern::read_all(patterns, base, opener)?;
    let mut files = find::find(&patterns, opener)?;
    // Stable: of equal names the earlier pattern's comes first.
    files.sort_by(|a, b| a.name().cmp(b.name()));
    let mut seen = std::collections::HashSet::new();
    files.retain(|file| {
        let place = Arc::as_ptr(&file.place) as usize;
        seen.insert((place, file.object.clone()))
    });
    Ok(files)
}
