//! Looking for what patterns stand for: asking for names, listing folders, telling what is missing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ronde_store::{Address, Entry, LocalStore, ObjectName, Opener, Stamp, Store, StoreError};

use super::glob::Glob;
use super::pattern::{Choice, Pattern};
use super::{Place, SourceFile};
use crate::DataError;

/// Files that are asked for at a time.
const ASKED_AT_A_TIME: usize = 16;
/// Names that a message tells.
const TOLD: usize = 4;

/// A root with the folder that all its patterns share.
struct Ground {
    place: Arc<Place>,
    /// For listings that do not go everywhere.
    local: Option<LocalStore>,
    /// Segments of the shared folder; of a local one it is the store's root.
    shared: Vec<String>,
}

/// What stands at a path.
enum There {
    File {
        bytes: u64,
        stamp: Stamp,
    },
    /// No file; perhaps a folder.
    NoFile,
}

/// The files of all patterns, those of each sorted by name.
pub(super) fn find(patterns: &[Pattern], opener: &Opener) -> Result<Vec<SourceFile>, DataError> {
    let there = patterns
        .iter()
        .map(|pattern| look(pattern, opener))
        .collect::<Result<Vec<_>, _>>()?;
    let mut shared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (pattern, there) in patterns.iter().zip(&there) {
        let folder = fixed_folder(pattern, there);
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
    let mut grounds = BTreeMap::new();
    let mut files = Vec::new();
    for (pattern, there) in patterns.iter().zip(there) {
        let key = pattern.root.to_string();
        let ground = match grounds.entry(key) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                let shared = shared.remove(new.key()).unwrap_or_default();
                new.insert(Ground::new(&pattern.root, shared, opener)?)
            }
        };
        files.append(&mut ground.files(pattern, there)?);
    }
    Ok(files)
}

/// The folder that names of files are told below.
fn fixed_folder(pattern: &Pattern, there: &[There]) -> Vec<String> {
    let mut folder = pattern.folder.clone();
    if let ([Choice::Name(name)], [There::NoFile], true) =
        (&*pattern.choices, there, pattern.is_plain)
    {
        folder.extend(name.iter().cloned());
    }
    folder
}

/// Asks for each name of a pattern; what has wildcards is no file.
fn look(pattern: &Pattern, opener: &Opener) -> Result<Vec<There>, DataError> {
    let choices = &pattern.choices;
    let next = AtomicUsize::new(0);
    let threads = match pattern.root.is_remote() {
        true => choices.len().min(ASKED_AT_A_TIME),
        false => 1,
    };
    let ask = || -> Result<Vec<(usize, There)>, DataError> {
        let mut found = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(choice) = choices.get(at) else {
                return Ok(found);
            };
            let there = match choice {
                Choice::Glob { .. } => There::NoFile,
                Choice::Name(name) => look_at(pattern, name, opener)?,
            };
            found.push((at, there));
        }
    };
    let answers: Vec<_> = std::thread::scope(|scope| {
        let askers: Vec<_> = (1..threads).map(|_| scope.spawn(ask)).collect();
        let mine = ask();
        let others = askers.into_iter().map(|asker| {
            asker
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
    Ok(found.into_iter().map(|(_, there)| there).collect())
}

fn look_at(pattern: &Pattern, name: &[String], opener: &Opener) -> Result<There, DataError> {
    let path = [&pattern.folder, name].concat().join("/");
    let opened = match &pattern.root {
        Address::Folder(root) => {
            let whole = root.join(&path);
            if name.is_empty() || whole.is_dir() {
                return Ok(There::NoFile);
            }
            let (folder, last) = (whole.parent().unwrap_or(root), &name[name.len() - 1]);
            LocalStore::new(folder).open(&ObjectName::new(last)?)
        }
        _ if path.is_empty() => return Ok(There::NoFile),
        remote => opener.open(remote)?.open(&ObjectName::new(path)?),
    };
    match opened {
        Err(StoreError::NotFound { .. }) => Ok(There::NoFile),
        Err(error) => Err(error.into()),
        Ok(object) => Ok(There::File {
            bytes: object.bytes(),
            stamp: object.stamp(),
        }),
    }
}

impl Ground {
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
        let place = Arc::new(Place { address, store });
        Ok(Self {
            place,
            local,
            shared,
        })
    }

    /// The store's name of what lies at these segments below the root; `None` for the store itself.
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

    fn file(&self, entry: Entry) -> SourceFile {
        let name_at = match (&self.local, self.shared.is_empty()) {
            (None, false) => self.shared.join("/").len() + 1,
            _ => 0,
        };
        SourceFile {
            place: Arc::clone(&self.place),
            object: entry.name,
            name_at,
            bytes: entry.bytes,
            stamp: entry.stamp,
        }
    }

    fn files(&self, pattern: &Pattern, there: Vec<There>) -> Result<Vec<SourceFile>, DataError> {
        let mut files = Vec::new();
        let mut missing = Vec::new();
        let mut globs: BTreeMap<Vec<String>, Vec<&Glob>> = BTreeMap::new();
        for (choice, there) in pattern.choices.iter().zip(there) {
            let name = match choice {
                Choice::Name(name) => name,
                Choice::Glob { folder, glob } => {
                    let folder = [&*pattern.folder, folder].concat();
                    globs.entry(folder).or_default().push(glob);
                    continue;
                }
            };
            let path = [&*pattern.folder, name].concat();
            let found = match (there, self.object(&path)?) {
                (There::File { bytes, stamp }, Some(name)) => {
                    // A folder of some services is an empty file as well.
                    let below = match bytes == 0 && self.place.address.is_remote() {
                        true => self.in_folder(&path, None)?,
                        false => Vec::new(),
                    };
                    match below.is_empty() {
                        true => vec![Entry { name, bytes, stamp }],
                        false => below,
                    }
                }
                _ if matches!(self.place.address, Address::Web { .. }) => Vec::new(),
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
                names: told(missing.iter().map(String::as_str)),
            });
        }
        for (folder, globs) in globs {
            let found = self.in_folder(&folder, Some(&globs))?;
            files.extend(found.into_iter().map(|entry| self.file(entry)));
        }
        if files.is_empty() {
            return Err(DataError::NoFiles {
                pattern: pattern.shown.clone(),
                there: self.told(&pattern.folder)?,
            });
        }
        files.sort_by(|a, b| a.object.cmp(&b.object));
        Ok(files)
    }

    /// The files below a folder, those that match one of `globs` where there are some.
    fn in_folder(
        &self,
        folder: &[String],
        globs: Option<&[&Glob]>,
    ) -> Result<Vec<Entry>, DataError> {
        let name = self.object(folder)?;
        let start = name.as_ref().map_or(0, |name| name.as_str().len() + 1);
        let mut entries = match &self.local {
            Some(local) => local.list_where(name.as_ref(), &mut |inner| {
                let inner = inner.get(start..).unwrap_or_default();
                globs.is_none_or(|globs| globs.iter().any(|glob| glob.may_match_in(inner)))
            })?,
            None => without_folders(self.place.store.list(name.as_ref())?),
        };
        entries.retain(|entry| {
            let path = entry.name.as_str().get(start..).unwrap_or_default();
            match globs {
                None => !is_left_by_writers(entry.name.last()),
                Some(globs) => {
                    !is_left_by_writers(entry.name.last())
                        && globs.iter().any(|glob| glob.matches(path))
                }
            }
        });
        Ok(entries)
    }

    /// What is in a folder where nothing was found, for a message.
    fn told(&self, folder: &[String]) -> Result<String, DataError> {
        let name = self.object(folder)?;
        let place = match &name {
            Some(name) => self.place.address.join(name)?,
            None => self.place.address.clone(),
        };
        let entries = match (&self.local, &place) {
            (Some(_), Address::Folder(path)) if !path.is_dir() => return Ok(no_folder(path)),
            (Some(local), _) => {
                // A look around, not a search.
                let mut folders = 0;
                local.list_where(name.as_ref(), &mut |_| {
                    folders += 1;
                    folders <= TOLD
                })?
            }
            (None, Address::Web { .. }) => return Ok("there is no such file".to_owned()),
            (None, _) => self.place.store.list(name.as_ref())?,
        };
        if entries.is_empty() {
            return Ok(format!("{place} is empty or not there"));
        }
        let start = name.map_or(0, |name| name.as_str().len() + 1);
        let names = entries
            .iter()
            .filter_map(|entry| entry.name.as_str().get(start..));
        Ok(format!("{place} has {}", told(names)))
    }
}

/// What is to be told where a folder is missing: what is in the last one above it that is there.
fn no_folder(path: &Path) -> String {
    let text = format!("there is no {}", path.display());
    let Some(above) = path.ancestors().skip(1).find(|above| above.is_dir()) else {
        return text;
    };
    let found = std::fs::read_dir(above).into_iter().flatten().flatten();
    let mut names: Vec<String> = found
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    let names = told(names.iter().map(String::as_str));
    format!("{text}; {} has {names}", above.display())
}

/// The first few of some names.
fn told<'a>(mut names: impl Iterator<Item = &'a str>) -> String {
    let mut text = names.by_ref().take(TOLD).collect::<Vec<_>>().join(", ");
    if names.next().is_some() {
        text.push_str(", ..");
    }
    text
}

/// Without the empty objects by which some tools make folders of a bucket visible.
fn without_folders(entries: Vec<Entry>) -> Vec<Entry> {
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

/// Whether a file is what Spark, Hive and their like leave beside the tables that they write.
fn is_left_by_writers(name: &str) -> bool {
    ["_SUCCESS", "_metadata", "_common_metadata"].contains(&name)
        || name.starts_with("_committed_")
        || name.starts_with("_started_")
}
