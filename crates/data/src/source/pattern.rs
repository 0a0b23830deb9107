//! [`Pattern`]: a parsed address of a run file: a fixed folder, and names or wildcards below it.

use std::path::{Path, PathBuf};

use ronde_store::{Address, ObjectName, Opener, StoreExt};

use super::braces;
use super::glob::Glob;
use crate::error::DataError;

/// The maximum length of a list of patterns.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// A parsed address.
#[derive(Debug)]
pub(super) struct Pattern {
    /// The original text.
    pub(super) shown: String,
    /// The bucket or server; for local paths, the folder that they start from.
    pub(super) root: Address,
    /// The segments of the folder before the first special character; for a plain path, all but the last segment.
    pub(super) folder: Vec<String>,
    /// The expanded alternatives in that folder.
    pub(super) choices: Vec<PatternChoice>,
    /// Whether it is a single literal path.
    pub(super) is_plain: bool,
}

/// One alternative of a pattern after brace expansion.
#[derive(Debug)]
pub(super) enum PatternChoice {
    /// A file or a folder; the pattern's folder itself when empty.
    Name(Vec<String>),
    /// The matching files below a folder.
    Glob {
        /// The segments before the first one with wildcards.
        folder: Vec<String>,
        /// The pattern of the path below that folder.
        glob: Glob,
    },
}

/// Parses patterns, and reads the lists among them.
pub(super) fn read_all(
    patterns: &[String],
    base: &Path,
    opener: &Opener,
) -> Result<Vec<Pattern>, DataError> {
    let mut read = Vec::new();
    for text in patterns {
        match text.strip_prefix('@') {
            None => read.push(Pattern::read(text, base, opener)?),
            Some(list) => read_list(list, base, opener, &mut read)?,
        }
    }
    Ok(read)
}

fn problem(pattern: &str, problem: impl std::fmt::Display) -> DataError {
    DataError::pattern(pattern, problem)
}

/// Reads the patterns of a list, one per line. Empty lines and lines that begin with `#` are ignored.
fn read_list(
    list: &str,
    base: &Path,
    opener: &Opener,
    into: &mut Vec<Pattern>,
) -> Result<(), DataError> {
    let list_path = Pattern::plain(list, base)?;
    let (name, folder, address) = match &list_path.root {
        Address::Folder(root) => {
            let whole = root.join(list_path.path().join("/"));
            let folder = whole.parent().unwrap_or(root).to_owned();
            let name = whole.file_name().unwrap_or_default().to_str();
            let name = name.map(str::to_owned);
            (
                name.ok_or_else(|| DataError::Path {
                    path: whole.clone(),
                })?,
                folder.clone(),
                Address::Folder(folder),
            )
        }
        remote => (list_path.path().join("/"), PathBuf::new(), remote.clone()),
    };
    let bytes = opener
        .open(&address)?
        .get(&ObjectName::new(name)?, LIST_BYTES_MAX)?;
    let text =
        String::from_utf8(bytes).map_err(|_| problem(list, "the list is not valid UTF-8"))?;
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.starts_with('@') {
            return Err(problem(
                line,
                format!("the list {list} cannot contain another list"),
            ));
        }
        if list_path.root.is_remote() && !line.contains("://") {
            let beside = list.rsplit_once('/').map_or("", |(folder, _)| folder);
            into.push(Pattern::read(&format!("{beside}/{line}"), base, opener)?);
        } else {
            into.push(Pattern::read(line, &folder, opener)?);
        }
    }
    Ok(())
}

impl Pattern {
    fn read(text: &str, base: &Path, opener: &Opener) -> Result<Self, DataError> {
        reject_secrets(text)?;
        let special = text.find(['*', '?', '[', '{', '}']);
        let Some(special) = special else {
            return Self::plain(text, base);
        };
        if !text.contains("://") && opener.local(base).contains(text)? {
            return Self::plain(text, base);
        }
        let cut = text[..special].rfind('/').map_or(0, |slash| slash + 1);
        let (fixed, rest) = text.split_at(cut);
        if text.contains("://") && (cut == 0 || fixed.ends_with("://")) {
            return Err(problem(
                text,
                "the name of a bucket or server cannot contain wildcards",
            ));
        }
        let (root, folder) = split_root(fixed, base)?;
        let is_web = matches!(root, Address::Web { .. });
        let mut choices = Vec::new();
        for expanded in braces::expand(rest).map_err(|message| problem(text, message))? {
            let needs_glob = Glob::is_needed_for(&expanded);
            if is_web && (needs_glob || expanded.ends_with('/')) {
                return Err(problem(text, ON_THE_WEB));
            }
            choices.push(match needs_glob {
                false => PatternChoice::Name(segments(&root, &expanded)?),
                true => glob_choice(text, &expanded)?,
            });
        }
        Ok(Self {
            shown: text.to_owned(),
            root,
            folder,
            choices,
            is_plain: false,
        })
    }

    /// Parses a path without wildcards.
    fn plain(text: &str, base: &Path) -> Result<Self, DataError> {
        if text.is_empty() {
            return Err(problem(text, "the address is empty"));
        }
        let (root, mut folder) = split_root(text, base)?;
        if matches!(root, Address::Web { .. }) && (folder.is_empty() || text.ends_with('/')) {
            return Err(problem(text, ON_THE_WEB));
        }
        let name = folder.pop().into_iter().collect();
        Ok(Self {
            shown: text.to_owned(),
            root,
            folder,
            choices: vec![PatternChoice::Name(name)],
            is_plain: true,
        })
    }

    /// Returns all segments of a plain path.
    fn path(&self) -> Vec<String> {
        let mut path = self.folder.clone();
        if let [PatternChoice::Name(name)] = &*self.choices {
            path.extend(name.iter().cloned());
        }
        path
    }
}

const ON_THE_WEB: &str = "wildcards and folders need listings, which a web server does not have: name the files, with \
                          ranges such as {00000..01023} if they are numbered, or with a list, @files.txt";

/// Rejects addresses that contain secrets before any other message could show them.
fn reject_secrets(text: &str) -> Result<(), DataError> {
    let Some((scheme, rest)) = text.split_once("://") else {
        return Ok(());
    };
    let is_web = ["http", "https"].contains(&&*scheme.to_ascii_lowercase());
    let server = rest.split('/').next().unwrap_or_default();
    if server.contains('@') || (is_web && rest.contains(['?', '#'])) {
        text.parse::<Address>()?;
    }
    Ok(())
}

/// Returns the root and the segments of an address without wildcards.
fn split_root(text: &str, base: &Path) -> Result<(Address, Vec<String>), DataError> {
    match text.split_once("://") {
        Some((scheme, rest)) => {
            let server = rest.split('/').next().unwrap_or_default();
            let whole: Address = text.parse()?;
            let root: Address = format!("{scheme}://{server}").parse()?;
            let prefix = whole.prefix().map(ObjectName::as_str).unwrap_or_default();
            Ok((root, split(prefix)))
        }
        None => {
            let root = match text.starts_with('/') {
                true => Path::new("/"),
                false => base,
            };
            Ok((Address::Folder(root.to_owned()), split(text)))
        }
    }
}

fn split(path: &str) -> Vec<String> {
    path.split('/')
        .filter(|segment| !segment.is_empty() && *segment != ".")
        .map(str::to_owned)
        .collect()
}

/// Returns the segments of a path below `root`, percent-decoded for web addresses.
fn segments(root: &Address, path: &str) -> Result<Vec<String>, DataError> {
    match root {
        Address::Web { .. } => {
            let whole: Address = format!("{root}/{path}").parse()?;
            Ok(split(
                whole.prefix().map(ObjectName::as_str).unwrap_or_default(),
            ))
        }
        _ => Ok(split(path)),
    }
}

fn glob_choice(pattern: &str, expanded: &str) -> Result<PatternChoice, DataError> {
    let parts = split(expanded);
    let fixed = parts.iter().take_while(|part| !Glob::is_needed_for(part));
    let (folder, rest) = parts.split_at(fixed.count());
    if parts.iter().any(|part| part == "..") {
        return Err(problem(pattern, ".. cannot follow a wildcard"));
    }
    if expanded.ends_with('/') {
        return Err(problem(
            pattern,
            "wildcards match files: end the pattern with /** for all files below",
        ));
    }
    let glob = Glob::new(&rest.join("/")).map_err(|message| problem(pattern, message))?;
    let folder = folder.to_vec();
    Ok(PatternChoice::Glob { folder, glob })
}
