//! Reads the merged tables into a [`RunConfig`] and reports *every* invalid key in them, not only the first.
//!
//! serde stops at the first error and, in sections with a `kind`, does not report its position. Keys are visited
//! in order, so the error is in the last key of the shortest prefix of keys that gives the same message. This
//! module finds that key by bisection, records and removes it, and reads the rest again. A section that lacks a
//! required key is then replaced by the section of the embedded example, so that the rest is read.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::message::SerdeMessage;
use super::run_config::VERSION;
use super::sections::StartSection;
use super::text::join;
use super::{ConfigProblem, DEFAULT_RUN_FILE, RunConfig, suggest};

/// Keys that select the kind of a section; the other keys depend on them.
const TAGS: [&str; 3] = ["kind", "source", "decode"];

/// The largest number of errors that are searched for, without unknown keys.
const ERRORS_MAX: usize = 40;

/// The part of a `key = value` line that an error refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AssignmentPart {
    Key,
    Value,
    Section,
}

/// An error about a key.
pub(super) struct KeyError {
    pub(super) problem: ConfigProblem,
    pub(super) about: AssignmentPart,
}

/// Reads a run. `raw` returns the text of an argument for a path, which is tried as a string.
pub(super) fn read(
    table: &Table,
    raw: &dyn Fn(&str) -> Option<String>,
) -> Result<RunConfig, Vec<KeyError>> {
    let mut reader = RunReader {
        table: table.clone(),
        errors: Vec::new(),
        removed: BTreeSet::new(),
        tried: BTreeSet::new(),
        replaced: BTreeSet::new(),
    };
    reader.version();
    for _ in 0..ERRORS_MAX {
        match try_read(&reader.table) {
            Ok(run) if reader.errors.is_empty() => return Ok(run),
            Ok(_) => break,
            Err(message) => {
                if reader.record(&message, raw).is_none() {
                    break;
                }
            }
        }
    }
    Err(reader.errors)
}

fn try_read(table: &Table) -> Result<RunConfig, String> {
    Value::Table(table.clone())
        .try_into()
        .map_err(|error: toml::de::Error| error.message().to_owned())
}

/// The tables without the errors that were found so far.
struct RunReader {
    table: Table,
    errors: Vec<KeyError>,
    /// The paths of removed keys, which are not reported as missing.
    removed: BTreeSet<String>,
    /// The paths of arguments that were tried as strings.
    tried: BTreeSet<String>,
    /// The sections that were replaced by those of the example.
    replaced: BTreeSet<String>,
}

impl RunReader {
    fn version(&mut self) {
        let Some(version) = self.table.remove("version") else {
            return;
        };
        if version != Value::Integer(VERSION) {
            let message = format!("unknown run file version {version}");
            let hint = format!("this version of ronde reads version {VERSION}");
            self.errors.push(KeyError {
                problem: ConfigProblem::error("version", message).hint(hint),
                about: AssignmentPart::Value,
            });
        }
    }

    /// Records and removes the error that gives this message; `None` if it cannot be removed.
    fn record(&mut self, message: &str, raw: &dyn Fn(&str) -> Option<String>) -> Option<()> {
        let parsed = SerdeMessage::parse(message);
        if let Some(error) = self.take_entry(message, &parsed) {
            self.errors.push(error);
            return Some(());
        }
        if let SerdeMessage::Missing { key } = parsed {
            let example: Table = toml::from_str(DEFAULT_RUN_FILE).ok()?;
            let is_section = example.contains_key(key) && !self.table.contains_key(key);
            let section = match is_section {
                true => None,
                false => culprit(&self.table, message, 1).pop(),
            };
            return self.missing(section.as_deref(), key, example);
        }
        let keys = culprit(&self.table, message, usize::MAX);
        if let SerdeMessage::UnknownKey { known, .. } = &parsed {
            return self.unknown_keys(&keys, known);
        }
        let path = path_of(&keys);
        let value = value_at(&mut self.table, &keys)?;
        if let [section] = keys.as_slice()
            && !value.is_table()
        {
            self.errors.push(not_a_section(section, value));
            return self.remove(&keys);
        }
        if let Some(text) = raw(&path)
            && !value.is_str()
            && self.tried.insert(path.clone())
        {
            let given = std::mem::replace(value, Value::String(text));
            if !still_wrong_at(&self.table, &keys) {
                return Some(());
            }
            *value_at(&mut self.table, &keys)? = given;
        }
        self.errors.push(describe(&path, &parsed));
        self.remove(&keys)
    }

    /// Removes the entry of a list of sections, such as `[[train.parameter_groups]]`, to which a message refers, and describes
    /// its error. `None` if the message refers to something else.
    fn take_entry(&mut self, message: &str, parsed: &SerdeMessage<'_>) -> Option<KeyError> {
        let keys = culprit(&self.table, message, usize::MAX);
        let path = path_of(&keys);
        let without = |root: &Table, entry: usize| {
            let mut rest = root.clone();
            entries_at(&mut rest, &keys)?.remove(entry);
            Some(try_read(&rest).err().as_deref() != Some(message))
        };
        let count = entries_at(&mut self.table.clone(), &keys)?.len();
        let entry = (0..count).find(|entry| without(&self.table, *entry) == Some(true))?;
        let key = self.key_of_entry(&keys, entry, message);
        let place = match count {
            1 => format!("[[{path}]]"),
            _ => format!("entry {} of [[{path}]]", entry + 1),
        };
        entries_at(&mut self.table, &keys)?.remove(entry);
        self.removed.insert(path.clone());
        Some(entry_error((&path, &place), key.as_deref(), parsed))
    }

    /// Returns the key of an entry of a list whose value a message is about.
    fn key_of_entry(&self, keys: &[String], entry: usize, message: &str) -> Option<String> {
        let found = entries_at(&mut self.table.clone(), keys)?[entry].clone();
        let mut names = found.as_table()?.keys();
        let key = names.find(|name| {
            let mut rest = self.table.clone();
            let removed = entries_at(&mut rest, keys)
                .and_then(|entries| entries[entry].as_table_mut()?.remove(*name));
            removed.is_some() && try_read(&rest).err().as_deref() != Some(message)
        });
        key.cloned()
    }

    /// Records all unknown keys beside the one at `keys`.
    fn unknown_keys(&mut self, keys: &[String], known: &[&str]) -> Option<()> {
        let (_, sections) = keys.split_last()?;
        let level = table_at(&self.table, sections)?;
        // A kind of model knows its own keys only.
        let shared = match sections {
            [section] if section == "model" => &StartSection::KEYS[..],
            _ => &[],
        };
        let known = &[known, shared].concat()[..];
        let is_unknown = |key: &&String| !known.contains(&key.as_str());
        let unknown: Vec<String> = level
            .keys()
            .filter(is_unknown)
            .filter(|key| sections.is_empty() || !TAGS.contains(&key.as_str()))
            .cloned()
            .collect();
        for key in unknown.iter().chain(keys.last()) {
            let path = [sections, std::slice::from_ref(key)].concat();
            let Some(value) = value_at(&mut self.table, &path) else {
                continue;
            };
            let error = unknown_key(&path, key, value, known);
            self.errors.push(error);
            self.remove(&path)?;
        }
        Some(())
    }

    /// Records a required key that is absent from a section, or a section that is absent.
    fn missing(&mut self, section: Option<&str>, key: &str, mut example: Table) -> Option<()> {
        let path = join(section.unwrap_or_default(), key);
        let section = section.unwrap_or(key);
        if !self.removed.contains(&path) {
            self.errors.push(match section == path {
                true => missing_section(section),
                false => missing_key(section, key),
            });
        }
        let replacement = example.remove(section)?;
        self.table.insert(section.to_owned(), replacement);
        self.replaced.insert(section.to_owned()).then_some(())
    }

    fn remove(&mut self, keys: &[String]) -> Option<()> {
        self.removed.insert(path_of(keys));
        remove(&mut self.table, keys)
    }
}

/// Returns the path of the key that a message refers to, with at most `depth_max` parts. Empty: the whole run.
fn culprit(root: &Table, message: &str, depth_max: usize) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    while keys.len() < depth_max {
        let Some(level) = table_at(root, &keys) else {
            break;
        };
        let names: Vec<&String> = level.keys().collect();
        let with_first = |count: usize| {
            let keep: BTreeSet<&String> = names[..count].iter().copied().collect();
            let mut part = root.clone();
            if let Some(level) = table_at_mut(&mut part, &keys) {
                level.retain(|key, _| TAGS.contains(&key) || keep.contains(&key.to_owned()));
            }
            try_read(&part).err().as_deref() == Some(message)
        };
        let counts: Vec<usize> = (0..=names.len()).collect();
        let found = counts.partition_point(|&count| !with_first(count));
        let next = match found {
            0 => names.iter().find(|name| TAGS.contains(&name.as_str())),
            found => names.get(found - 1),
        };
        let Some(next) = next else { break };
        keys.push((*next).clone());
        if found == 0 && message_without(root, &keys).as_deref() == Some(message) {
            keys.pop();
            break;
        }
        if matches!(SerdeMessage::parse(message), SerdeMessage::UnknownKey { key, .. } if key == *next)
        {
            break;
        }
    }
    keys
}

fn message_without(root: &Table, keys: &[String]) -> Option<String> {
    let mut rest = root.clone();
    remove(&mut rest, keys);
    try_read(&rest).err()
}

fn still_wrong_at(table: &Table, keys: &[String]) -> bool {
    try_read(table)
        .err()
        .is_some_and(|message| culprit(table, &message, usize::MAX) == keys)
}

fn path_of(keys: &[String]) -> String {
    keys.iter()
        .fold(String::new(), |path, key| join(&path, key))
}

fn table_at<'a>(root: &'a Table, keys: &[String]) -> Option<&'a Table> {
    keys.iter()
        .try_fold(root, |table, key| table.get(key)?.as_table())
}

fn table_at_mut<'a>(root: &'a mut Table, keys: &[String]) -> Option<&'a mut Table> {
    keys.iter()
        .try_fold(root, |table, key| table.get_mut(key)?.as_table_mut())
}

fn value_at<'a>(root: &'a mut Table, keys: &[String]) -> Option<&'a mut Value> {
    let (last, sections) = keys.split_last()?;
    table_at_mut(root, sections)?.get_mut(last)
}

/// Returns the entries of a list of sections; `None` if something else is there.
fn entries_at<'a>(root: &'a mut Table, keys: &[String]) -> Option<&'a mut Vec<Value>> {
    let entries = value_at(root, keys)?.as_array_mut()?;
    entries.iter().all(Value::is_table).then_some(entries)
}

fn remove(root: &mut Table, keys: &[String]) -> Option<()> {
    let (last, sections) = keys.split_last()?;
    table_at_mut(root, sections)?.remove(last).map(drop)
}

fn unknown_key(path: &[String], key: &str, value: &Value, known: &[&str]) -> KeyError {
    let (message, known) = match path {
        [_] if value.is_table() => {
            let sections = known.iter().filter(|known| **known != "version");
            (
                format!("unknown section [{key}]"),
                sections.copied().collect(),
            )
        }
        [_] => {
            let message = format!("unknown key `{key}` outside of any section");
            (message, known.to_vec())
        }
        [section, ..] => (
            format!("unknown key `{key}` in [{section}]"),
            known.to_vec(),
        ),
        [] => (format!("unknown key `{key}`"), known.to_vec()),
    };
    KeyError {
        problem: ConfigProblem {
            hint: suggest::hint(key, &known),
            ..ConfigProblem::error(path_of(path), message)
        },
        about: AssignmentPart::Key,
    }
}

fn not_a_section(name: &str, value: &Value) -> KeyError {
    let message = format!("`{name}` must be a section, found {value}");
    let hint = format!("write `[{name}]` on a separate line, followed by its keys");
    KeyError {
        problem: ConfigProblem::error(name, message).hint(hint),
        about: AssignmentPart::Value,
    }
}

fn missing_section(name: &str) -> KeyError {
    let tag = if name == "data" { "source" } else { "kind" };
    let hint = format!("add `[{name}]`, followed by `{tag} = ...`");
    KeyError {
        problem: ConfigProblem::error(name, format!("the section [{name}] is missing")).hint(hint),
        about: AssignmentPart::Section,
    }
}

fn missing_key(section: &str, key: &str) -> KeyError {
    KeyError {
        problem: ConfigProblem::error(section, format!("missing key `{key}` in [{section}]"))
            .hint(format!("add `{key} = ...` to [{section}]")),
        about: AssignmentPart::Section,
    }
}

/// Describes the error of an entry of a list of sections.
fn entry_error(
    (path, place): (&str, &str),
    key: Option<&str>,
    message: &SerdeMessage<'_>,
) -> KeyError {
    let problem = match message {
        SerdeMessage::UnknownKey { key, known } => ConfigProblem {
            hint: suggest::hint(key, known),
            ..ConfigProblem::error(path, format!("unknown key `{key}` in {place}"))
        },
        SerdeMessage::Missing { key } => {
            ConfigProblem::error(path, format!("missing key `{key}` in {place}"))
                .hint(format!("add `{key} = ...` to it"))
        }
        _ => {
            let name = key.map_or_else(|| place.to_owned(), |key| format!("{key}` in `{place}"));
            ConfigProblem {
                path: path.to_owned(),
                ..describe(&name, message).problem
            }
        }
    };
    KeyError {
        problem,
        about: AssignmentPart::Value,
    }
}

/// Describes an invalid value.
fn describe(path: &str, message: &SerdeMessage<'_>) -> KeyError {
    let problem = match message {
        SerdeMessage::UnknownWord { word, known } => ConfigProblem {
            hint: suggest::hint(word, known),
            ..ConfigProblem::error(path, format!("invalid `{path}` \"{word}\""))
        },
        SerdeMessage::Wrong { found, expected } => {
            let problem =
                ConfigProblem::error(path, format!("`{path}` must be {expected}, found {found}"));
            // The usual cause is a number or boolean in quotes.
            if found.starts_with("string") && !expected.contains("string") {
                problem.hint(format!("write {expected}, without quotes"))
            } else {
                problem.hint(format!("write {expected}"))
            }
        }
        SerdeMessage::Other(text) => ConfigProblem::error(path, format!("`{path}`: {text}")),
        SerdeMessage::UnknownKey { key, .. } | SerdeMessage::Missing { key } => {
            ConfigProblem::error(path, format!("invalid key `{key}` in `{path}`"))
        }
    };
    KeyError {
        problem,
        about: AssignmentPart::Value,
    }
}
