//! Finds the files that patterns match: looks up names, lists folders, and reports missing files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ronde_store::{Address, LocalStore, ObjectEntry, ObjectName, Opener, Stamp, Store, StoreError};

use super::glob::Glob;
use super::pattern::{Pattern, PatternChoice};
use super::{SourceFile, SourceRoot};
use crate::DataError;

/// The maximum number of concurrent requests.
const REQUESTS_MAX: usize = 16;
/// The maximum number of names in a message.
const NAMES_MAX: usize = 4;

/// A root with the common folder of all its patterns.
struct SearchRoot {
    root: Arc<SourceRoot>,
    /// The local store, for listings that skip folders.
    local: Option<LocalStore>,
    /// The segments of the common folder, which is the store's root for local files.
    shared: Vec<String>,
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
pub(super) fn find(patterns: &[Pattern], opener: &Opener) -> Result<Vec<SourceFile>, DataError> {
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
    let mut files = Vec::new();
    for (pattern, found) in patterns.iter().zip(found) {
        let key = pattern.root.to_string();
        let root = match roots.entry(key) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let shared = shared.remove(new.key()).unwrap_or_default();
                new.insert(SearchRoot::new(&pattern.root, shared, opener)?)
            }
        };
        files.append(&mut root.files(pattern, found)?);
    }
    Ok(files)
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
            LocalStore::new(folder).open(&ObjectName::new(last)?)
        }
        _ if path.is_empty() => return Ok(PathLookup::NoFile),
        remote => opener.open(remote)?.open(&ObjectName::new(path)?),
    };
    match opened {
        Err(StoreError::NotFound { .. }) => Ok(PathLookup::NoFile),
        Err(error) => Err(error.into()),
        Ok(object) => Ok(PathLookup::File {
            bytes: object.bytes(),
            stamp: object.stamp(),
        }),
    }
}

impl SearchRoot {
    fn new(root: &Address, shared: Vec<String>, opener: &Opener) -> Result<Self, DataError> {
        let (address, local) = match root {
            Address::Folder(folder) => {
                let folder = folder.join(shared.join("/"));
                let local = LocalStore::new(&folder).following_links();
                (Address::Folder(folder), Some(local))
            }
            remote => (remote.clone(), None),
        };
        let store = opener.open(&address)?;
        let root = Arc::new(SourceRoot { address, store });
        Ok(Self {
            root,
            local,
            shared,
        })
    }

    /// Returns the object name of a path below the root; `None` for the store's root.
    fn object(&self, segments: &[String]) -> Result<Option<ObjectName>, DataError> {
        let known = match self.local {
            Some(_) => self.shared.len(),
            None => 0,
        };
        let rest = segments.get(known..).unwrap_or_default();
        match rest.is_empty() {
            true => Ok(None),
            false => Ok(Some(ObjectName::new(rest.join("/"))?)),
        }
    }

    fn file(&self, entry: ObjectEntry) -> SourceFile {
        let name_at = match (&self.local, self.shared.is_empty()) {
            (None, false) => self.shared.join("/").len() + 1,
            _ => 0,
        };
        SourceFile {
            root: Arc::clone(&self.root),
            object: entry.name,
            name_at,
            bytes: entry.bytes,
            stamp: entry.stamp,
        }
    }

    fn files(
        &self,
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
                    let below = match bytes == 0 && self.root.address.is_remote() {
                        true => self.in_folder(&path, None)?,
                        false => Vec::new(),
                    };
                    match below.is_empty() {
                        true => vec![ObjectEntry { name, bytes, stamp }],
                        false => below,
                    }
                }
                _ if matches!(self.root.address, Address::Web { .. }) => Vec::new(),
                _ => self.in_folder(&path, None)?,
            };
            if found.is_empty() {
                missing.push(name.join("/"));
            }
            files.extend(found.into_iter().map(|entry| self.file(entry)));
        }
        if pattern.choices.len() > 1 && !missing.is_empty() {
            return Err(DataError::MissingFiles {
                pattern: pattern.shown.clone(),
                count: missing.len(),
                names: first_names(missing.iter().map(String::as_str)),
            });
        }
        for (folder, globs) in globs {
            let found = self.in_folder(&folder, Some(&globs))?;
            files.extend(found.into_iter().map(|entry| self.file(entry)));
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

    /// Returns the files below a folder; only those that match one of `globs` if given.
    fn in_folder(
        &self,
        folder: &[String],
        globs: Option<&[&Glob]>,
    ) -> Result<Vec<ObjectEntry>, DataError> {
        let name = self.object(folder)?;
        let start = name.as_ref().map_or(0, |name| name.as_str().len() + 1);
        let mut entries = match &self.local {
            Some(local) => local.list_where(name.as_ref(), &mut |inner| {
                let inner = inner.get(start..).unwrap_or_default();
                globs.is_none_or(|globs| globs.iter().any(|glob| glob.may_match_in(inner)))
            })?,
            None => without_folders(self.root.store.list(name.as_ref())?),
        };
        entries.retain(|entry| {
            let path = entry.name.as_str().get(start..).unwrap_or_default();
            match globs {
                None => !is_writer_marker(entry.name.last()),
                Some(globs) => {
                    !is_writer_marker(entry.name.last())
                        && globs.iter().any(|glob| glob.matches(path))
                }
            }
        });
        Ok(entries)
    }

    /// Describes the contents of a folder without matching files, for a message.
    fn describe(&self, folder: &[String]) -> Result<String, DataError> {
        let name = self.object(folder)?;
        let address = match &name {
            Some(name) => self.root.address.join(name)?,
            None => self.root.address.clone(),
        };
        let entries = match (&self.local, &address) {
            (Some(_), Address::Folder(path)) if !path.is_dir() => return Ok(no_folder(path)),
            (Some(local), _) => {
                // A few folders are enough for a message.
                let mut folders = 0;
                local.list_where(name.as_ref(), &mut |_| {
                    folders += 1;
                    folders <= NAMES_MAX
                })?
            }
            (None, Address::Web { .. }) => return Ok("the server has no such file".to_owned()),
            (None, _) => self.root.store.list(name.as_ref())?,
        };
        if entries.is_empty() {
            return Ok(format!("{address} is empty or does not exist"));
        }
        let start = name.map_or(0, |name| name.as_str().len() + 1);
        let names = entries
            .iter()
            .filter_map(|entry| entry.name.as_str().get(start..));
        Ok(format!("{address} contains {}", first_names(names)))
    }
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

/// Returns whether a file is a marker that Spark, Hive and similar tools write beside tables.
fn is_writer_marker(name: &str) -> bool {
    ["_SUCCESS", "_metadata", "_common_metadata"].contains(&name)
        || name.starts_with("_committed_")
        || name.starts_with("_started_")
}
