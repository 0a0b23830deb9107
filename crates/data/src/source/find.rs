//! Finds the files that patterns match: looks up names, lists folders, and reports missing files.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ronde_store::{
    Address, ObjectEntry, ObjectName, Opener, Stamp, Store, StoreError, UnusableCause,
    UnusableEntry,
};

use super::glob::Glob;
use super::names::{is_writer_folder, is_writer_marker};
use super::pattern::{Pattern, PatternChoice};
use super::{FolderNames, FoundFiles, LeftOut, SourceFile, SourceRoot};
use crate::error::DataError;

/// The maximum number of concurrent requests.
const REQUESTS_MAX: usize = 16;
/// The maximum number of names in a message.
const NAMES_MAX: usize = 4;

/// A root with the common folder of all its patterns.
struct SearchRoot {
    root: Arc<SourceRoot>,
    is_local: bool,
    /// The segments of the common folder, which is the store's root for local files.
    shared: Vec<String>,
    /// Which files of a folder are data.
    names: FolderNames,
    left_out: LeftOut,
}

/// The result of looking up a path.
enum PathLookup {
    File {
        bytes: u64,
        stamp: Stamp,
    },
    /// No file; possibly a folder.
    NoFile,
}

/// Returns the files of all patterns, the files of each pattern sorted by name.
pub(super) fn find(
    patterns: &[Pattern],
    opener: &Opener,
    names: FolderNames,
) -> Result<FoundFiles, DataError> {
    let found = patterns
        .iter()
        .map(|pattern| look_up(pattern, opener))
        .collect::<Result<Vec<_>, _>>()?;
    let mut shared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (pattern, found) in patterns.iter().zip(&found) {
        let folder = fixed_folder(pattern, found);
        shared
            .entry(pattern.root.to_string())
            .and_modify(|shared| {
                let common = shared
                    .iter()
                    .zip(&folder)
                    .take_while(|(a, b)| a == b)
                    .count();
                shared.truncate(common);
            })
            .or_insert(folder);
    }
    let mut roots = BTreeMap::new();
    let (mut files, mut left_out) = (Vec::new(), LeftOut::default());
    for (pattern, found) in patterns.iter().zip(found) {
        let key = pattern.root.to_string();
        let root = match roots.entry(key) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let shared = shared.remove(new.key()).unwrap_or_default();
                new.insert(SearchRoot::new(&pattern.root, shared, opener, names)?)
            }
        };
        root.left_out = std::mem::take(&mut left_out);
        files.append(&mut root.files(pattern, found)?);
        left_out = std::mem::take(&mut root.left_out);
    }
    Ok(FoundFiles { files, left_out })
}

/// Returns the folder that file names are relative to.
fn fixed_folder(pattern: &Pattern, found: &[PathLookup]) -> Vec<String> {
    let mut folder = pattern.folder.clone();
    if let ([PatternChoice::Name(name)], [PathLookup::NoFile], true) =
        (&*pattern.choices, found, pattern.is_plain)
    {
        folder.extend(name.iter().cloned());
    }
    folder
}

/// Looks up each name of a pattern; wildcards are resolved later.
fn look_up(pattern: &Pattern, opener: &Opener) -> Result<Vec<PathLookup>, DataError> {
    let choices = &pattern.choices;
    let next = AtomicUsize::new(0);
    let threads = match pattern.root.is_remote() {
        true => choices.len().min(REQUESTS_MAX),
        false => 1,
    };
    let look_up_some = || -> Result<Vec<(usize, PathLookup)>, DataError> {
        let mut found = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(choice) = choices.get(at) else {
                return Ok(found);
            };
            let entry = match choice {
                PatternChoice::Glob { .. } => PathLookup::NoFile,
                PatternChoice::Name(name) => look_up_name(pattern, name, opener)?,
            };
            found.push((at, entry));
        }
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (1..threads).map(|_| scope.spawn(look_up_some)).collect();
        let mine = look_up_some();
        let others = spawned.into_iter().map(|thread| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        others.chain([mine]).collect()
    });
    let mut found = Vec::with_capacity(choices.len());
    for answer in answers {
        found.append(&mut answer?);
    }
    found.sort_by_key(|(at, _)| *at);
    Ok(found.into_iter().map(|(_, entry)| entry).collect())
}

fn look_up_name(
    pattern: &Pattern,
    name: &[String],
    opener: &Opener,
) -> Result<PathLookup, DataError> {
    let path = [&pattern.folder, name].concat().join("/");
    let opened = match &pattern.root {
        Address::Folder(root) => {
            let whole = root.join(&path);
            if name.is_empty() || whole.is_dir() {
                return Ok(PathLookup::NoFile);
            }
            let (folder, last) = (whole.parent().unwrap_or(root), &name[name.len() - 1]);
            opener.local(folder).open(&ObjectName::new(last)?)
        }
        _ if path.is_empty() => return Ok(PathLookup::NoFile),
        remote => opener.open(remote)?.open(&ObjectName::new(path)?),
    };
    match opened {
        Err(StoreError::NotFound { .. }) => Ok(PathLookup::NoFile),
        Err(StoreError::Disk { source, .. }) if source.kind() == ErrorKind::IsADirectory => {
            Ok(PathLookup::NoFile)
        }
        Err(error) => Err(error.into()),
        Ok(object) => Ok(PathLookup::File {
            bytes: object.bytes(),
            stamp: object.stamp(),
        }),
    }
}

impl SearchRoot {
    fn new(
        root: &Address,
        shared: Vec<String>,
        opener: &Opener,
        names: FolderNames,
    ) -> Result<Self, DataError> {
        let (address, is_local) = match root {
            Address::Folder(folder) => (Address::Folder(folder.join(shared.join("/"))), true),
            remote => (remote.clone(), false),
        };
        let store = opener.open(&address)?;
        let root = Arc::new(SourceRoot { address, store });
        Ok(Self {
            root,
            is_local,
            shared,
            names,
            left_out: LeftOut::default(),
        })
    }

    /// Returns the object name of a path below the root; `None` for the store's root.
    fn object(&self, segments: &[String]) -> Result<Option<ObjectName>, DataError> {
        let known = match self.is_local {
            true => self.shared.len(),
            false => 0,
        };
        let rest = segments.get(known..).unwrap_or_default();
        match rest.is_empty() {
            true => Ok(None),
            false => Ok(Some(ObjectName::new(rest.join("/"))?)),
        }
    }

    fn file(&self, entry: ObjectEntry, is_named: bool) -> SourceFile {
        let name_at = match (self.is_local, self.shared.is_empty()) {
            (false, false) => self.shared.join("/").len() + 1,
            _ => 0,
        };
        SourceFile {
            root: Arc::clone(&self.root),
            object: entry.name,
            name_at,
            bytes: entry.bytes,
            stamp: entry.stamp,
            is_named,
        }
    }

    fn files(
        &mut self,
        pattern: &Pattern,
        entries: Vec<PathLookup>,
    ) -> Result<Vec<SourceFile>, DataError> {
        let mut files = Vec::new();
        let mut missing = Vec::new();
        let mut globs: BTreeMap<Vec<String>, Vec<&Glob>> = BTreeMap::new();
        for (choice, entry) in pattern.choices.iter().zip(entries) {
            let name = match choice {
                PatternChoice::Name(name) => name,
                PatternChoice::Glob { folder, glob } => {
                    let folder = [&*pattern.folder, folder].concat();
                    globs.entry(folder).or_default().push(glob);
                    continue;
                }
            };
            let path = [&*pattern.folder, name].concat();
            let found = match (entry, self.object(&path)?) {
                (PathLookup::File { bytes, stamp }, Some(name)) => {
                    // Some services represent a folder as an empty object.
                    let below = match bytes == 0 && !self.is_local {
                        true => self.in_folder(pattern, &path, None)?,
                        false => Vec::new(),
                    };
                    if below.is_empty() {
                        files.push(self.file(ObjectEntry { name, bytes, stamp }, true));
                        continue;
                    }
                    below
                }
                _ if matches!(self.root.address, Address::Web { .. }) => Vec::new(),
                _ => self.in_folder(pattern, &path, None)?,
            };
            if found.is_empty() {
                missing.push(name.join("/"));
            }
            files.extend(found.into_iter().map(|entry| self.file(entry, false)));
        }
        if pattern.choices.len() > 1 && !missing.is_empty() {
            return Err(DataError::MissingFiles {
                pattern: pattern.shown.clone(),
                count: missing.len(),
                names: first_names(missing.iter().map(String::as_str)),
            });
        }
        for (folder, globs) in globs {
            let found = self.in_folder(pattern, &folder, Some(&globs))?;
            files.extend(found.into_iter().map(|entry| self.file(entry, false)));
        }
        if files.is_empty() {
            return Err(DataError::NoFiles {
                pattern: pattern.shown.clone(),
                contents: self.describe(&pattern.folder)?,
            });
        }
        files.sort_by(|a, b| a.object.cmp(&b.object));
        Ok(files)
    }

    /// Returns the data files below a folder; with `globs`, those that match one of them.
    fn in_folder(
        &mut self,
        pattern: &Pattern,
        folder: &[String],
        globs: Option<&[&Glob]>,
    ) -> Result<Vec<ObjectEntry>, DataError> {
        let name = self.object(folder)?;
        let start = name.as_ref().map_or(0, |name| name.as_str().len() + 1);
        let selection = FolderSelection {
            globs,
            names: self.names,
        };
        let mut skipped = Vec::new();
        let listing = self.root.store.list_files(name.as_ref(), &mut |inner| {
            let inner = inner.get(start..).unwrap_or_default();
            let enters = selection.may_be_in(inner);
            let is_writer = is_writer_folder(last(inner));
            if enters && is_writer {
                skipped.push(format!("{inner}/"));
            }
            enters && !is_writer
        })?;
        for entry in listing.unusable {
            let path = entry.name.get(start..).unwrap_or_default().to_owned();
            if selection.is_left_out(&path, entry)? {
                skipped.push(path);
            }
        }
        let mut entries = without_folders(listing.entries);
        entries.retain(|entry| {
            let path = entry.name.as_str().get(start..).unwrap_or_default();
            let choice = selection.choose(path);
            if choice == EntryChoice::LeftOut {
                skipped.push(path.to_owned());
            }
            choice == EntryChoice::Data
        });
        skipped.sort_unstable();
        let mut left_out = LeftOut::default();
        let shown = match pattern.is_plain {
            true => pattern.shown.trim_end_matches('/').to_owned(),
            false => folder.join("/"),
        };
        for path in skipped {
            left_out.add(match shown.is_empty() {
                true => path,
                false => format!("{shown}/{path}"),
            });
        }
        if globs.is_none() && entries.is_empty() && left_out.count > 0 {
            return Err(left_out.error(&pattern.shown));
        }
        self.left_out.append(left_out);
        Ok(entries)
    }

    /// Describes the contents of a folder without matching files, for a message.
    fn describe(&self, folder: &[String]) -> Result<String, DataError> {
        let name = self.object(folder)?;
        let address = match &name {
            Some(name) => self.root.address.join(name)?,
            None => self.root.address.clone(),
        };
        match &address {
            Address::Folder(path) if !path.is_dir() => return Ok(no_folder(path)),
            Address::Web { .. } => return Ok("the server has no such file".to_owned()),
            _ => {}
        }
        // A few folders are enough for a message.
        let mut folders = 0;
        let listing = self.root.store.list_files(name.as_ref(), &mut |_| {
            folders += 1;
            folders <= NAMES_MAX
        })?;
        let entries = listing.entries.iter().map(|entry| entry.name.as_str());
        let unusable = listing.unusable.iter().map(|entry| entry.name.as_str());
        let start = name.map_or(0, |name| name.as_str().len() + 1);
        let names: Vec<&str> = entries
            .chain(unusable)
            .filter_map(|name| name.get(start..))
            .collect();
        if names.is_empty() {
            return Ok(format!("{address} is empty or does not exist"));
        }
        let names = first_names(names.into_iter());
        Ok(format!("{address} contains {names}"))
    }
}

/// Which entries of a folder are data.
#[derive(Clone, Copy)]
struct FolderSelection<'a> {
    /// The wildcards, which take names as they are; `None` for a folder without wildcards.
    globs: Option<&'a [&'a Glob]>,
    names: FolderNames,
}

/// The kind of a file in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryChoice {
    Data,
    /// Not data because of its name.
    LeftOut,
    /// Not meant by the wildcards.
    Other,
}

impl FolderSelection<'_> {
    /// Returns whether a folder may contain data.
    fn may_be_in(&self, path: &str) -> bool {
        self.globs
            .is_none_or(|globs| globs.iter().any(|glob| glob.may_match_in(path)))
    }

    fn choose(&self, path: &str) -> EntryChoice {
        let is_meant = match self.globs {
            Some(globs) if !globs.iter().any(|glob| glob.matches(path)) => {
                return EntryChoice::Other;
            }
            Some(_) => true,
            None => self.names.takes(last(path)),
        };
        match is_meant && !is_writer_marker(last(path)) {
            true => EntryChoice::Data,
            false => EntryChoice::LeftOut,
        }
    }

    /// Returns whether an entry that cannot be read is left out because of its name.
    ///
    /// # Errors
    /// The entry is data, or may be a folder with data.
    fn is_left_out(&self, path: &str, entry: UnusableEntry) -> Result<bool, DataError> {
        match entry.cause {
            // Wildcards do not mean hidden files, as in a shell.
            UnusableCause::Hidden => Ok(self.globs.is_none()),
            UnusableCause::File(error) => match self.choose(path) {
                EntryChoice::Data => Err(error.into()),
                choice => Ok(choice == EntryChoice::LeftOut),
            },
            UnusableCause::Unknown(error) => {
                let is_meant = self.choose(path) == EntryChoice::Data || self.may_be_in(path);
                if is_meant {
                    Err(error.into())
                } else {
                    Ok(false)
                }
            }
        }
    }
}

/// Returns the last segment of a path.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Describes a missing folder by the contents of its nearest existing parent.
fn no_folder(path: &Path) -> String {
    let text = format!("{} does not exist", path.display());
    let Some(above) = path.ancestors().skip(1).find(|above| above.is_dir()) else {
        return text;
    };
    let found = std::fs::read_dir(above).into_iter().flatten().flatten();
    let mut names: Vec<String> = found
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    let names = first_names(names.iter().map(String::as_str));
    format!("{text}; {} contains {names}", above.display())
}

/// Returns the first few names.
fn first_names<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    let mut text = names
        .by_ref()
        .take(NAMES_MAX)
        .collect::<Vec<_>>()
        .join(", ");
    if names.next().is_some() {
        text.push_str(", ..");
    }
    text
}

/// Removes the empty objects with which some tools mark the folders of a bucket.
fn without_folders(entries: Vec<ObjectEntry>) -> Vec<ObjectEntry> {
    if entries.iter().all(|entry| entry.bytes > 0) {
        return entries;
    }
    let mut folders = std::collections::HashSet::new();
    for entry in &entries {
        let name = entry.name.as_str();
        folders.extend(name.match_indices('/').map(|(at, _)| name[..at].to_owned()));
    }
    let mut files = entries;
    files.retain(|entry| entry.bytes > 0 || !folders.contains(entry.name.as_str()));
    files
}
