//! [`expand`]: resolves the addresses of a run file to [`SourceFile`]s in a fixed order.
//!
//! A *pattern* is an address whose path may contain `*`, `?`, `[a-z]`, `[!a-z]` (within a segment), `**` (any segments),
//! `{a,b}` and `{000..127}`; or a folder, which means the data files in it and below ([`FolderNames`]); or a file; or `@LIST`, a
//! text file with one pattern per line, relative to the folder of the list. A path that exists literally is taken literally.
//!
//! ```no_run
//! use ronde_data::source::{FolderNames, expand};
//! use ronde_store::{Opener, RemoteSettings};
//!
//! let opener = Opener::new(RemoteSettings::default());
//! let patterns = ["s3://bucket/imagenet/train-{00000..01023}-of-01024".to_owned()];
//! let base = std::path::Path::new(".");
//! for file in expand(&patterns, base, &opener, FolderNames::KnownFormats)?.files {
//!     println!("{} {} bytes at {}", file.name(), file.bytes(), file.location());
//! }
//! # Ok::<(), ronde_data::DataError>(())
//! ```

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use ronde_store::{Address, ObjectEntry, ObjectName, Opener, Stamp, Store, StoredObject};

use crate::error::DataError;

mod braces;
mod find;
mod glob;
mod names;
mod pattern;
mod pattern_error;
#[cfg(test)]
mod tests;

pub use names::{FolderNames, LeftOut};

/// A file with samples, with its size and stamp at the time it was found. Cheap to clone.
#[derive(Clone)]
pub struct SourceFile {
    root: Arc<SourceRoot>,
    object: ObjectName,
    /// The offset of the name in the object's name.
    name_at: usize,
    bytes: u64,
    stamp: Stamp,
    /// Whether an address is the file's own, not that of its folder and without wildcards.
    is_named: bool,
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

    /// Returns a text that is equal for one file under several names.
    fn version_key(&self) -> String {
        match self.is_remote() {
            true => self.location(),
            false => self.stamp.to_string(),
        }
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

/// The files that patterns match.
#[derive(Debug)]
pub struct FoundFiles {
    /// The files, sorted by name. A file that several patterns match is there once for each of them.
    pub files: Vec<SourceFile>,
    /// The files of folders that are not data because of their names.
    pub left_out: LeftOut,
}

impl FoundFiles {
    /// Leaves out the files at locations that `takes` refuses; `kind` describes the accepted ones.
    ///
    /// # Errors
    /// A file that an address names itself is refused, or nothing is left.
    pub(crate) fn retain(
        &mut self,
        addresses: &[String],
        kind: &str,
        takes: impl Fn(&str) -> bool,
    ) -> Result<(), DataError> {
        let (taken, refused): (Vec<_>, Vec<_>) = self
            .files
            .drain(..)
            .partition(|file| takes(&file.location()));
        self.files = taken;
        for file in refused {
            if file.is_named {
                return Err(DataError::format(
                    file.location(),
                    format_args!("its name is not that of {kind}"),
                ));
            }
            self.left_out.add(file.location());
        }
        match self.files.is_empty() && self.left_out.count > 0 {
            true => Err(self.left_out.error(&addresses.join(", "))),
            false => Ok(()),
        }
    }

    /// Returns notices about files that are left out, used several times, or empty. `of` names the setting.
    pub(crate) fn notices(&self, of: &str) -> Vec<String> {
        let left_out = self.left_out.notice(of);
        let mut uses: HashMap<String, usize> = HashMap::new();
        for file in &self.files {
            *uses.entry(file.version_key()).or_default() += 1;
        }
        let mut repeated = self.files.iter().filter_map(|file| {
            let times = uses.remove(&file.version_key())?;
            (times > 1).then(|| (file.name(), times))
        });
        let repeated = repeated.next().map(|(first, times)| {
            let (count, s) = names::counted(1 + repeated.count());
            format!(
                "{count} file{s} of {of} {are} listed more than once, so the samples count as often, the first: {first}, \
                 {times} times",
                are = if count == 1 { "is" } else { "are" },
            )
        });
        let mut empty = self.files.iter().filter(|file| file.bytes == 0);
        let empty = empty.next().map(|first| {
            let (count, s) = names::counted(1 + empty.count());
            let first = first.name();
            format!("{count} file{s} of {of} without any bytes, the first: {first}")
        });
        [left_out, repeated, empty].into_iter().flatten().collect()
    }
}

/// Returns the files that `patterns` match, sorted by name (for equal names, in the order of the patterns). Each pattern counts: a
/// file that two of them match is returned twice. Relative paths start from `base`.
///
/// Of a folder, `names` are data; wildcards and lists take all names. Neither takes hidden files and marker files of table
/// writers (`_SUCCESS`, `_metadata`, `_committed_*` and similar).
///
/// Cost: one listing of each folder that is followed by wildcards (in a bucket, with everything below); one request for each
/// named file, 16 at a time.
///
/// # Errors
/// [`DataError::Pattern`] for invalid patterns, and for wildcards on web servers, which have no listings;
/// [`DataError::NoFiles`] when a pattern matches no file, [`DataError::LeftOut`] when a folder has only other files;
/// [`DataError::MissingFiles`] when named files do not exist; [`DataError::Store`] for errors of the stores, links that lead
/// nowhere, and data files whose names are not valid.
pub fn expand(
    patterns: &[String],
    base: &Path,
    opener: &Opener,
    names: FolderNames,
) -> Result<FoundFiles, DataError> {
    let patterns = pattern::read_all(patterns, base, opener)?;
    let mut found = find::find(&patterns, opener, names)?;
    // The sort is stable: files with equal names stay in the order of the patterns.
    found.files.sort_by(|a, b| a.name().cmp(b.name()));
    Ok(found)
}
